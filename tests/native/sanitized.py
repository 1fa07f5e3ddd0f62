"""Programs built from csrc/core alone, with a sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "csrc" / "core"
# GCC says that ThreadSanitizer does not model fences; what stands between them here is atomic.
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-Wno-tsan"]
# A core that was broken on purpose has things that nobody uses.
NO_WARNINGS = ["-w"]

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a function that builds a program of this folder with the C core and a sanitizer.

    `core` is another copy of the core. Skips where the compiler or the machine lacks the sanitizer.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")

    def with_sanitizer(program: str, sanitizer: str, core: Path = CORE) -> Path:
        flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", f"-fsanitize={sanitizer}"]
        if "undefined" in sanitizer:
            flags.append("-fno-sanitize-recover=all")
        _check_sanitizer(compiler, flags, tmp_path, sanitizer)
        target = tmp_path / f"{program}-{sanitizer.replace(',', '-')}"
        units = [HERE / "world.c", *sorted(HERE.glob(f"{program}*.c")), *sorted(core.glob("*.c"))]
        warnings = WARNINGS if core == CORE else NO_WARNINGS
        line = [compiler, *flags, *warnings, f"-I{core}", *map(str, units)]
        built = subprocess.run(
            [*line, "-o", str(target), "-lpthread", "-ldl", "-lm"], capture_output=True, text=True
        )
        assert built.returncode == 0, built.stderr
        return target

    return with_sanitizer


def run(
    program: Path, *arguments: object, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its output is text."""
    line = [str(program), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout)


def _check_sanitizer(compiler: str, flags: list[str], tmp_path: Path, name: str) -> None:
    source, target = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run([compiler, *flags, str(source), "-o", str(target)], capture_output=True)
    if built.returncode != 0 or subprocess.run([target], capture_output=True).returncode != 0:
        pytest.skip(f"this machine's {compiler} has no working -fsanitize={name}")
