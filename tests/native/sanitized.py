"""Programs built from csrc/core alone, with a sanitizer."""

from __future__ import annotations

import hashlib
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


class Objects:
    """Object files of this folder and of cores; what they are made of has one for all programs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, unit: Path, core: Path, command: list[str]) -> Path:
        """Compile a unit with the headers of a core, unless that was done before."""
        made_of = _inputs(unit, core)
        is_whole = made_of == _inputs(CORE / unit.name if unit.parent == core else unit, CORE)
        line = [*command, *(WARNINGS if is_whole else NO_WARNINGS)]
        name = hashlib.sha256("\0".join(line).encode() + made_of).hexdigest()
        target = self._directory / f"{unit.stem}-{name:.16}.o"
        if not target.exists():
            _run([*line, f"-I{core}", "-c", str(unit), "-o", str(target)])
        return target


def _inputs(unit: Path, core: Path) -> bytes:
    headers = [path for folder in (core, HERE) for path in sorted(folder.glob("*.h"))]
    return b"\0".join(path.read_bytes() for path in (unit, *headers))


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return Objects(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def build(tmp_path: Path, objects: Objects) -> Build:
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
        command = [compiler, *flags]
        _check_sanitizer(command, tmp_path, sanitizer)
        target = tmp_path / f"{program}-{sanitizer.replace(',', '-')}"
        shared = [HERE / "world.c", HERE / "readers.c"]
        units = [*shared, *sorted(HERE.glob(f"{program}*.c")), *sorted(core.glob("*.c"))]
        parts = [str(objects.of(unit, core, command)) for unit in units]
        _run([*command, *parts, "-o", str(target), "-lpthread", "-ldl", "-lm"])
        return target

    return with_sanitizer


def run(
    program: Path, *arguments: object, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its output is text."""
    line = [str(program), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout)


def _run(line: list[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _check_sanitizer(command: list[str], tmp_path: Path, name: str) -> None:
    source, target = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run([*command, str(source), "-o", str(target)], capture_output=True)
    if built.returncode != 0 or subprocess.run([target], capture_output=True).returncode != 0:
        pytest.skip(f"this machine's {command[0]} has no working -fsanitize={name}")
