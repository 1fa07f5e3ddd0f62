"""Doors for tests: one that follows a fault plan, one that records.

A plan is a JSON list of rules, armed for a whole process (and the writer it starts) by the
environment variable PYENGINE_FAULT_PLAN:

    {"op": "fsync",              a method of Door, or "*"
     "path": "*/manifest.json*", fnmatch over the absolute path, or either path of two (optional)
     "process": "*pyengine.writer*",  fnmatch over the command line (optional)
     "nth": 3, "times": 1,       act on calls 3 .. 3 + times - 1 that match; times 0: from then on
     "when": "before",           or "after" the call took effect
     "action": "kill",           "stop" (SIGSTOP), "error", "delay", "record"
     "errno": "EIO", "seconds": 2.0,   for "error" (name or number) and "delay"
     "file": "/path/log",        for "record": one JSON line per call is appended here
     "signal_pid": 4711}         SIGKILL this process first; "parent" means the process's parent
"""

from __future__ import annotations

import errno as errno_module
import fnmatch
import json
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyengine.errors import ConfigError
from pyengine.fs.door import Buffer, Door

T = TypeVar("T")

_ACTIONS = ("kill", "stop", "error", "delay", "record")


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
        if self.op != "*" and not callable(getattr(Door, self.op, None)):
            raise ConfigError(f"fault plan: no operation {self.op!r}")

    def is_for(self, op: str, paths: tuple[str, ...]) -> bool:
        """Return whether the rule speaks of this call."""
        return self.op in ("*", op) and any(fnmatch.fnmatch(path, self.path) for path in paths)


def parse_plan(text: str) -> list[Rule]:
    """Read a fault plan, and keep the rules that are for this process. ConfigError: not a plan."""
    try:
        rules = [Rule(**entry) for entry in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"PYENGINE_FAULT_PLAN is not a fault plan: {error}") from error
    command = " ".join(sys.orig_argv)
    return [rule for rule in rules if fnmatch.fnmatch(command, rule.process)]


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

    def open(self, path: str, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
        paths = (_path_at(path, dir_fd),)
        return self._around(
            "open", paths, lambda: Door.open(self, path, flags, mode, dir_fd=dir_fd)
        )

    def read(self, fd: int, count: int) -> bytes:
        return self._around("read", (_path_of(fd),), lambda: Door.read(self, fd, count))

    def pread_into(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        paths = (_path_of(fd),)
        return self._around("pread_into", paths, lambda: Door.pread_into(self, fd, buffers, offset))

    def write(self, fd: int, data: Buffer) -> None:
        self._around("write", (_path_of(fd),), lambda: Door.write(self, fd, data))

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        self._around("pwrite", (_path_of(fd),), lambda: Door.pwrite(self, fd, data, offset))

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
        due = self._due(op, paths)
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


def _act(rule: Rule, op: str, paths: tuple[str, ...]) -> None:
    if rule.signal_pid is not None:
        pid = os.getppid() if rule.signal_pid == "parent" else int(rule.signal_pid)
        os.kill(pid, signal.SIGKILL)
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif rule.action == "delay":
        time.sleep(rule.seconds)
    elif rule.action == "record":
        _append(rule.file, Call(op, paths))
    else:
        number = (
            rule.errno if isinstance(rule.errno, int) else int(getattr(errno_module, rule.errno))
        )
        raise OSError(number, os.strerror(number), paths[0])


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
