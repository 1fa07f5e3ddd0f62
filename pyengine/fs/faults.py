"""Doors for tests: one that follows a fault plan, one that records.

A plan is a JSON list of rules, armed for a whole process (and the writer it starts) by the
environment variable PYENGINE_FAULT_PLAN:

    {"op": "fsync",              a method of Door, "*", "changes": every call that changes what
                                 the disk holds (`open` where it makes a file), or "reads": opens of
                                 what is there, reads, and closes
     "path": "*/manifest.json*", fnmatch over the absolute path, or either path of two (optional)
     "process": "*pyengine.writer*",  fnmatch over the command line (optional)
     "nth": 3, "times": 1,       act on calls 3 .. 3 + times - 1 that match; times 0: from then on
     "when": "before",           or "after" the call took effect
     "action": "kill",           "stop" (SIGSTOP), "error", "delay", "record", "short" (a write
                                 takes a part of its bytes, then goes on: no other call is hit),
                                 "power_cut" (FS_IOC_SHUTDOWN: the file system forgets what was not
                                 flushed and refuses everything; root), "journal" (see fs.journal)
     "errno": "EIO", "seconds": 2.0,   for "error" (name or number) and "delay"
     "file": "/path/log",        for "record": one JSON line per call is appended here
     "signal_pid": 4711}         SIGKILL this process first; "parent" means the process's parent,
                                 "children" all its children
"""

from __future__ import annotations

import contextlib
import errno as errno_module
import fcntl
import fnmatch
import json
import os
import signal
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyengine.config import PAGE_BYTES
from pyengine.errors import ConfigError
from pyengine.fs.door import FILE_MODE, Buffer, Door

T = TypeVar("T")

CHANGES = frozenset(
    (
        "create",
        "write",
        "pwrite",
        "fsync",
        "fdatasync",
        "rename",
        "link",
        "clone",
        "unlink",
        "mkdir",
        "rmdir",
        "symlink",
        "ftruncate",
        "fallocate",
    )
)
"""What "changes" means; "create" is an `open` that makes a file."""

READS = frozenset(("open", "read", "pread_into", "close"))
"""What "reads" means; a `close` may be that of a file that was written."""

_GROUPS = {"changes": CHANGES, "reads": READS}
_ACTIONS = ("kill", "stop", "error", "delay", "record", "short", "power_cut", "journal")
_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


@dataclass(frozen=True, slots=True)
class Call:
    """One call through a door: the operation and the absolute paths it is about."""

    op: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a fault plan; see the top of this module."""

    op: str
    action: str
    path: str = "*"
    process: str = "*"
    nth: int = 1
    times: int = 1
    when: str = "before"
    errno: int | str = "EIO"
    seconds: float = 0.0
    file: str = ""
    signal_pid: int | str | None = None

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS or self.when not in ("before", "after"):
            raise ConfigError(f"fault plan: no action {self.action!r} {self.when!r}")
        if self.op not in ("*", "create", *_GROUPS) and not callable(getattr(Door, self.op, None)):
            raise ConfigError(f"fault plan: no operation {self.op!r}")

    def is_for(self, op: str, paths: tuple[str, ...]) -> bool:
        """Return whether the rule speaks of this call."""
        is_meant = self.op in ("*", op) or op in _GROUPS.get(self.op, ())
        if not is_meant and (self.op, op) != ("open", "create"):
            return False
        return any(fnmatch.fnmatch(path, self.path) for path in paths)


def parse_plan(text: str) -> list[Rule]:
    """Read a fault plan, and keep the rules that are for this process. ConfigError: not a plan."""
    try:
        rules = [Rule(**entry) for entry in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"PYENGINE_FAULT_PLAN is not a fault plan: {error}") from error
    command = " ".join(sys.orig_argv)
    return [rule for rule in rules if fnmatch.fnmatch(command, rule.process)]


def door_of(plan: str) -> Door:
    """Return the door that a fault plan asks for. ConfigError: not a plan."""
    rules = parse_plan(plan)
    for rule in rules:
        if rule.action == "journal":
            from pyengine.fs.journal import JournalDoor

            return JournalDoor(rule.file)
    return FaultDoor(rules)


def _path_at(path: str, dir_fd: int | None) -> str:
    if dir_fd is None:
        return os.path.abspath(path)
    return os.path.join(_path_of(dir_fd), path)


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"fd:{fd}"


class ObservedDoor(Door, ABC):
    """A door that passes every call through `_around`."""

    @abstractmethod
    def _around(self, op: str, paths: tuple[str, ...], call: Callable[[], T]) -> T:
        """Make the call, or fail instead, and return what it returned."""

    def _around_write(
        self, op: str, paths: tuple[str, ...], view: memoryview, write: Callable[[int, int], None]
    ) -> None:
        """Make a write, of which `write(begin, end)` does a part."""
        self._around(op, paths, lambda: write(0, len(view)))

    def open(
        self, path: str, flags: int, mode: int = FILE_MODE, *, dir_fd: int | None = None
    ) -> int:
        paths = (_path_at(path, dir_fd),)
        op = "create" if flags & os.O_CREAT else "open"
        return self._around(op, paths, lambda: Door.open(self, path, flags, mode, dir_fd=dir_fd))

    def read(self, fd: int, count: int) -> bytes:
        return self._around("read", (_path_of(fd),), lambda: Door.read(self, fd, count))

    def pread_into(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        paths = (_path_of(fd),)
        return self._around("pread_into", paths, lambda: Door.pread_into(self, fd, buffers, offset))

    def write(self, fd: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._around_write(
            "write", (_path_of(fd),), view, lambda begin, end: Door.write(self, fd, view[begin:end])
        )

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        view = memoryview(data).cast("B")

        def write(begin: int, end: int) -> None:
            Door.pwrite(self, fd, view[begin:end], offset + begin)

        self._around_write("pwrite", (_path_of(fd),), view, write)

    def fsync(self, fd: int) -> None:
        self._around("fsync", (_path_of(fd),), lambda: Door.fsync(self, fd))

    def fdatasync(self, fd: int) -> None:
        self._around("fdatasync", (_path_of(fd),), lambda: Door.fdatasync(self, fd))

    def close(self, fd: int) -> None:
        self._around("close", (_path_of(fd),), lambda: Door.close(self, fd))

    def rename(self, source: str, target: str) -> None:
        paths = (os.path.abspath(source), os.path.abspath(target))
        self._around("rename", paths, lambda: Door.rename(self, source, target))

    def link(self, source: str, target: str) -> None:
        paths = (os.path.abspath(source), os.path.abspath(target))
        self._around("link", paths, lambda: Door.link(self, source, target))

    def clone(self, source_fd: int, target_fd: int) -> None:
        paths = (_path_of(source_fd), _path_of(target_fd))
        self._around("clone", paths, lambda: Door.clone(self, source_fd, target_fd))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        paths = (_path_at(path, dir_fd),)
        self._around("unlink", paths, lambda: Door.unlink(self, path, dir_fd=dir_fd))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._around("mkdir", (os.path.abspath(path),), lambda: Door.mkdir(self, path, mode))

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        paths = (_path_at(path, dir_fd),)
        self._around("rmdir", paths, lambda: Door.rmdir(self, path, dir_fd=dir_fd))

    def symlink(self, target: str, path: str) -> None:
        paths = (os.path.abspath(path),)
        self._around("symlink", paths, lambda: Door.symlink(self, target, path))

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        paths = (_path_of(fd),)
        self._around("ftruncate", paths, lambda: Door.ftruncate(self, fd, size_bytes))

    def fallocate(self, fd: int, offset: int, size_bytes: int) -> None:
        paths = (_path_of(fd),)
        self._around("fallocate", paths, lambda: Door.fallocate(self, fd, offset, size_bytes))


class FaultDoor(ObservedDoor):
    """Follow a fault plan. Counts are per rule and process-wide."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = list(rules)
        self._counts = [0] * len(self._rules)
        self._lock = threading.Lock()

    def _around(self, op: str, paths: tuple[str, ...], call: Callable[[], T]) -> T:
        return self._follow(self._due(op, paths), op, paths, call)

    def _around_write(
        self, op: str, paths: tuple[str, ...], view: memoryview, write: Callable[[int, int], None]
    ) -> None:
        due = self._due(op, paths)
        begin = 0
        if len(view) > 1 and any(rule.action == "short" for rule in due):
            begin = _part_of(len(view))
            write(0, begin)
        self._follow(due, op, paths, lambda: write(begin, len(view)))

    def _follow(self, due: list[Rule], op: str, paths: tuple[str, ...], call: Callable[[], T]) -> T:
        for rule in due:
            if rule.when == "before":
                _act(rule, op, paths)
        result = call()
        for rule in due:
            if rule.when == "after":
                _act(rule, op, paths)
        return result

    def _due(self, op: str, paths: tuple[str, ...]) -> list[Rule]:
        due = []
        with self._lock:
            for index, rule in enumerate(self._rules):
                if rule.is_for(op, paths):
                    self._counts[index] += 1
                    past = self._counts[index] - rule.nth
                    if rule.action == "record" or (
                        past >= 0 and (rule.times == 0 or past < rule.times)
                    ):
                        due.append(rule)
        return due


def _part_of(length: int) -> int:
    """Return where a short write ends: at a page where there are several, as devices end them."""
    half = length // 2
    return half - half % PAGE_BYTES or half


def _act(rule: Rule, op: str, paths: tuple[str, ...]) -> None:
    if rule.action == "power_cut":
        cut_power(paths[0])
    for pid in _pids_of(rule.signal_pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif rule.action == "delay":
        time.sleep(rule.seconds)
    elif rule.action == "record":
        _append(rule.file, Call(op, paths))
    elif rule.action == "error":
        number = (
            rule.errno if isinstance(rule.errno, int) else int(getattr(errno_module, rule.errno))
        )
        raise OSError(number, os.strerror(number), paths[0])


def _pids_of(who: int | str | None) -> list[int]:
    if who is None:
        return []
    if who == "parent":
        return [os.getppid()]
    if who != "children":
        return [int(who)]
    pids = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            pids += [int(pid) for pid in file.read().split()]
    return pids


def cut_power(path: str) -> None:
    """Cut the power of the disk that holds `path`: nothing that was not flushed is kept."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


def _append(file: str, call: Call) -> None:
    line = json.dumps({"op": call.op, "paths": call.paths, "pid": os.getpid()}) + "\n"
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class Recorder(ObservedDoor):
    """Pass every call on and remember it, in `calls`, once it has succeeded."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def _around(self, op: str, paths: tuple[str, ...], call: Callable[[], T]) -> T:
        result = call()
        self.calls.append(Call(op, paths))
        return result

    def ops(self, *names: str) -> list[Call]:
        """Return the recorded calls of these operations, in order; all of them without a name."""
        return [call for call in self.calls if not names or call.op in names]
