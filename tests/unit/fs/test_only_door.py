"""Nothing in the package changes the file system but through the door."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import pyengine

PACKAGE = Path(pyengine.__file__).parent
SOURCES = PACKAGE.parent / "csrc"

_CHANGING = frozenset(
    (
        *("write", "writev", "pwrite", "pwritev", "truncate", "ftruncate", "posix_fallocate"),
        *("rename", "renames", "replace", "link", "symlink", "unlink", "remove"),
        *("mkdir", "makedirs", "rmdir", "removedirs", "mkfifo", "mknod"),
        *("fsync", "fdatasync", "sync", "sendfile", "copy_file_range", "splice"),
        *("chmod", "fchmod", "chown", "fchown", "utime", "setxattr", "removexattr"),
    )
)
_MODULES = {"shutil", "tempfile", "pathlib"}

ALLOWED = {
    # The door, and what tests put in its place.
    "fs/door.py": "is the door",
    "fs/faults.py": "a fault plan's own log, outside the run",
    "fs/journal.py": "a journal's own file, outside the run",
    # Memory, not files: descriptors without a name.
    "shm/arena.py": "ftruncate of a nameless region of shared memory",
    "shm/channel.py": "a message in a memfd",
    "supervisor/watch.py": "fallocate of a memfd",
    "supervisor/relay.py": "pipes, and the supervisor's own output",
    # Logs: words to people, which nothing relies on and no restore reads.
    "writer/main.py": "logging.FileHandler of the writer's log",
    "integrations/sb3/logs.py": "logs of Stable-Baselines3, cut to where a restore goes on",
    "engine/process.py": "pathlib to find the package's own directory; changes nothing",
}


def _changes(path: Path) -> list[str]:
    """Return what in a module may change the file system."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names}
            module = getattr(node, "module", None)
            found += sorted(_MODULES & (names | {module}))
            if module == "os" and names & _CHANGING:
                found.append(f"from os import {names}")
        elif isinstance(node, ast.Call):
            found += _call(node)
    return found


def _call(node: ast.Call) -> list[str]:
    called = ast.unparse(node.func)
    owner, _, name = called.rpartition(".")
    if owner == "os" and name in _CHANGING:
        return [called]
    if called == "os.open":
        flags = ast.unparse(node.args[1])
        is_writing = any(flag in flags for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TMPFILE"))
        return [f"os.open({flags})"] if is_writing and "os.devnull" not in ast.unparse(node) else []
    if called in ("open", "io.open"):
        modes = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
        text = ast.literal_eval(modes[0]) if modes else "r"
        return [f"open({text!r})"] if set(text) & set("wxa+") else []
    return [called] if name in ("FileHandler", "write_text", "write_bytes") else []


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("module", [module for module in MODULES if module not in ALLOWED])
def test_module_changes_no_file_but_through_the_door(module: str) -> None:
    assert _changes(PACKAGE / module) == []


@pytest.mark.parametrize("module", ALLOWED)
def test_exception_is_still_needed(module: str) -> None:
    assert _changes(PACKAGE / module) != []


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.rename(a, b)",
        "from os import unlink",
        "import shutil",
        "open(a, 'w')",
        "open(a, mode='r+b')",
        "os.open(a, os.O_WRONLY | os.O_CREAT)",
        "logging.FileHandler(a)",
        "path.write_text(a)",
    ],
)
def test_the_check_sees_a_call_that_goes_past_the_door(tmp_path: Path, code: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(code)
    assert _changes(module) != []


def test_native_code_opens_and_changes_no_file() -> None:
    # What it writes: an eventfd; what it reserves: shared memory. Files are opened in Python.
    forbidden = ("fopen(", "open(", "rename(", "unlink(", "fsync(", "ftruncate(", "mkdir(", "link(")
    units = [*SOURCES.rglob("*.c"), *SOURCES.rglob("*.h"), *SOURCES.rglob("*.pyx")]
    if not units:
        pytest.skip("the sources of the native code are not here")
    for unit in units:
        for line in unit.read_text(encoding="utf-8").splitlines():
            words = line.replace("(", " ( ").split()
            calls = {f"{word}(" for word, after in pairwise(words) if after == "("}
            assert not calls & set(forbidden), f"{unit.name}: {line.strip()}"
