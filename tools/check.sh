#!/usr/bin/env bash
# Static checks: lint, format, types, layers, and our C with every warning an error.
set -euo pipefail
bin=${1:-.venv/bin}
cd "$(dirname "$0")/.."

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/lint-imports"
for unit in csrc/core/*.c tests/native/*.c benchmarks/*.c; do
  cc -std=c11 -D_GNU_SOURCE -Icsrc/core -Wall -Wextra -Wconversion -Wshadow -Werror -fsyntax-only "$unit"
done
echo "checks passed"
