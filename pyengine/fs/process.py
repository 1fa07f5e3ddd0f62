"""Which process is meant: host, boot, pid and start time together, never the pid alone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that no later process can be mistaken for.

    `start_ticks` is field 22 of /proc/<pid>/stat (clock ticks since boot); `pid_namespace` the
    inode of its pid namespace, since containers of one host share a boot id.
    """

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> ProcessIdentity:
        """Read what `to_dict` gave. ValueError: fields are missing or of another type."""
        values: dict[str, Any] = {}
        for name, kind in _FIELDS.items():
            value = record.get(name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}")
            values[name] = value
        return cls(**values)

    def is_local(self) -> bool:
        """Return whether the process's pid means something here: same host, boot and namespace."""
        here = current()
        return (self.host, self.boot_id, self.pid_namespace) == (
            here.host,
            here.boot_id,
            here.pid_namespace,
        )

    def is_alive(self) -> bool:
        """Return whether exactly this process runs here; a zombie does not, its locks are free."""
        if not self.is_local():
            return False
        status = read_status(self.pid)
        return status is not None and status.start_ticks == self.start_ticks and not status.is_dead

    def is_frozen(self) -> bool:
        """Return whether exactly this process can do nothing until somebody wakes it: stopped by a
        signal or a debugger, or by the freezer of its cgroup. One that a disk keeps waiting is not.
        """
        status = read_status(self.pid) if self.is_alive() else None
        return status is not None and (status.is_stopped or _is_in_frozen_cgroup(self.pid))

    def kill(self, *, wait_seconds: float) -> bool:
        """SIGKILL the process and wait for its end; False where it is another one, or stays.

        The pid is pinned by a pidfd before its start time is compared, so that a reused pid is
        never hit. Blocks up to `wait_seconds`.
        """
        if not self.is_local() or self.pid == os.getpid():
            return False
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.is_alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(max(0, int(wait_seconds * 1000))))
        except PermissionError:
            return False
        finally:
            os.close(pidfd)


_FIELDS: dict[str, type] = {
    "host": str,
    "boot_id": str,
    "pid_namespace": int,
    "pid": int,
    "start_ticks": int,
}


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What /proc says of a process: its state letter, start, the processor time it has used, its
    parent and its process group."""

    state: str
    start_ticks: int
    cpu_ticks: int
    parent: int = 0
    group: int = 0

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in "Tt"

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and waits to be reaped."""
        return self.state in "ZXx"


def read_status(pid: int) -> ProcessStatus | None:
    """Read /proc/<pid>/stat; None where there is no such process."""
    return _read_stat(f"/proc/{pid}/stat")


def _read_stat(path: str) -> ProcessStatus | None:
    try:
        with open(path, "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    # The command name may hold anything; the fields count from the last parenthesis.
    fields = text[text.rindex(")") + 2 :].split()
    cpu_ticks = int(fields[11]) + int(fields[12])
    return ProcessStatus(fields[0], int(fields[19]), cpu_ticks, int(fields[1]), int(fields[2]))


def all_pids() -> list[int]:
    """Return the ids of all processes that can be seen here."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def describe(pid: int) -> str:
    """Return what a process does, for messages to people: its state and where it waits in the
    kernel, of the thread that waits for the disk where there is one."""
    thread, state = str(pid), "?"
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            found = _read_stat(f"/proc/{pid}/task/{entry}/stat")
            if found is not None and (state == "?" or found.state == "D"):
                thread, state = entry, found.state
    place = _first_line(f"/proc/{pid}/task/{thread}/wchan")
    where = f" in {place}" if place not in ("", "0") else ""
    return f"in state {state} ({_STATES.get(state, 'unknown')}){where}"


_STATES = {
    "D": "waiting for a disk",
    "R": "running",
    "S": "sleeping",
    "T": "stopped by a signal",
    "Z": "dead",
    "t": "stopped by a debugger",
}


def _is_in_frozen_cgroup(pid: int, proc: str = "/proc", mount: str = "/sys/fs/cgroup") -> bool:
    """Whether the freezer of cgroup v2 holds the process. That of v1 is not looked at: a process
    in it does not die either before it is thawed."""
    with contextlib.suppress(OSError):
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8") as file:
            paths = [line[3:].strip() for line in file if line.startswith("0::")]
        for path in paths:
            for root in (mount, f"{mount}/unified"):
                with contextlib.suppress(OSError), open(f"{root}{path}/cgroup.events") as events:
                    return "frozen 1" in events.read().splitlines()
    return False


def _first_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.readline().strip()
    return ""


def current() -> ProcessIdentity:
    """Return the identity of this process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process that can be seen here; None: there is none."""
    status = read_status(pid)
    if status is None:
        return None
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=boot_id,
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        pid=pid,
        start_ticks=status.start_ticks,
    )
