"""Nothing in the package changes the file system but through the door."""

from __future__ import annotations

import ast
import re
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
    "writer/priority.py": "the nice of a scheduling group, in /proc",
    "writer/main.py": "logging.FileHandler of the writer's log",
    "integrations/sb3/logs.py": "logs of Stable-Baselines3, cut to where a restore goes on",
    "integrations/torchrl/checkpoint.py": "a scratch directory, in which a checkpoint is read",
    "integrations/torchrl/checkpointer.py": "a save in TorchRL's own format, outside the run",
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


_NATIVE_CALLS = frozenset(
    (
        *("fopen", "freopen", "fdopen", "open", "openat", "creat", "syscall", "ioctl", "msync"),
        *("write", "writev", "pwrite", "pwritev", "fwrite", "dprintf", "vmsplice", "splice"),
        *("sendfile", "copy_file_range", "fallocate", "posix_fallocate", "truncate", "ftruncate"),
        *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
        *("unlink", "unlinkat", "remove", "rmdir", "mkdir", "mkdirat", "mknod", "mkfifo"),
        *("fsync", "fdatasync", "sync", "syncfs", "sync_file_range"),
    )
)
_NATIVE_ALLOWED = {
    ("append.c", "write"): "an eventfd",
    ("pages.h", "posix_fallocate"): "shared memory",
}


def _native_changes(text: str) -> set[str]:
    """Return which calls in a unit of C or Cython may open or change a file."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|#[^\n]*", "", text, flags=re.DOTALL)
    return {name for name in re.findall(r"(?<![\w.>])(\w+)\s*\(", code) if name in _NATIVE_CALLS}


def test_native_code_opens_and_changes_no_file() -> None:
    kinds = ("*.c", "*.h", "*.pyx", "*.pxi", "*.pxd")
    units = [unit for kind in kinds for unit in SOURCES.rglob(kind)]
    if not units:
        pytest.skip("the sources of the native code are not here")
    assert {unit.suffix for unit in units} == {kind[1:] for kind in kinds}
    found = {
        (unit.name, call)
        for unit in units
        for call in _native_changes(unit.read_text(encoding="utf-8"))
    }
    assert found == _NATIVE_ALLOWED.keys()


@pytest.mark.parametrize("name", sorted(_NATIVE_CALLS))
def test_the_check_of_native_code_sees(name: str) -> None:
    assert _native_changes(f"    if ({name} (fd, a) < 0) // open(b)") == {name}
    assert _native_changes(f"/* {name}(fd) */ file.{name}(a); pe_{name}(b);") == set()
