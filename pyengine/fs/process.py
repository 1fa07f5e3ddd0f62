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
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
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


def written_bytes(pid: int) -> int:
    """Return the bytes that a process has sent to storage; 0 where that cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", "rb") as file:
        for line in file:
            if line.startswith(b"write_bytes:"):
                return int(line.split(b":")[1])
    return 0


def current() -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    status = read_status(pid)
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=boot_id,
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        pid=pid,
        start_ticks=status.start_ticks if status else 0,
    )
