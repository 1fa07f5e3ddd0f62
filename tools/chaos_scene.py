"""What chaos may lay its hands on: the processes and files of one supervised run.

The learner is whoever wrote the diary's last "started"; a writer is known by its command line and
the files of the run that it holds open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos_diary import events_of, last_step_of
from chaos_disk import Disk

from pyengine.catalog import scan
from pyengine.fs.process import all_pids, read_status

WAIT_SECONDS = 90.0
_SLICE_SECONDS = 0.02


class GivenUpError(Exception):
    """What was waited for did not happen; says what."""


class Scene:
    """One run under its supervisor; `directory` holds the diary, and the run in disk/ below it."""

    def __init__(self, directory: Path, supervisor: subprocess.Popen[bytes]) -> None:
        self.run_dir = directory / "disk" / "run"
        self.witness = directory
        self.harmed_snapshots: set[str] = set()
        self._supervisor = supervisor
        self._pidfd = os.pidfd_open(supervisor.pid)
        self.disk = Disk(directory)
        self._frozen: list[int] = []

    def close(self) -> None:
        """Wake whom a fault froze, and give the disk back."""
        self.disk.empty()
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        os.close(self._pidfd)

    @property
    def is_over(self) -> bool:
        """Whether the supervisor has ended."""
        return bool(self._poll(0))

    def wait(self, seconds: float) -> None:
        """Let time go by, or the run end."""
        self._poll(seconds)

    def await_that(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; GivenUpError after 90 s, or where the run ends before."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise GivenUpError(f"{what}: not within {WAIT_SECONDS:.0f} s")
            if self._poll(_SLICE_SECONDS) and not is_so():
                raise GivenUpError(f"{what}: the run ended before")

    def _poll(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    @property
    def start(self) -> int:
        """The number of the agent's present start; 0 before the first."""
        started = [e["start"] for e in events_of(self.witness) if e["event"] == "started"]
        return max(started, default=0)

    def step(self) -> int:
        """Return the step that was made last, by the present start; -1 where it made none."""
        record = last_step_of(self.witness)
        return -1 if record is None or record["start"] != self.start else int(record["step"])

    def last_at(self) -> float:
        """Return when the newest step was made; 0 where none was."""
        record = last_step_of(self.witness)
        return 0.0 if record is None else float(record["at"])

    def learner(self) -> int:
        """Return the agent's pid."""
        started = [e for e in events_of(self.witness) if e["event"] == "started"]
        pid: int = started[-1]["pid"]
        return pid

    def writers(self) -> list[int]:
        """Return the pids of the writers of this run that live, the newest last."""
        found = []
        for pid in all_pids():
            status = read_status(pid)
            if status is None or status.is_dead or not self._writes_here(pid):
                continue
            found.append((status.start_ticks, pid))
        return [pid for _, pid in sorted(found)]

    def _writes_here(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            if b"pyengine.writer" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                return False
            return any(
                os.readlink(link).startswith(f"{self.run_dir}/")
                for link in _links(Path(f"/proc/{pid}/fd"))
            )
        return False

    def kill_learner(self) -> int:
        """SIGKILL the agent, wait for its end; return its pid."""
        pid = self.learner()
        self.signal_one(pid, signal.SIGKILL)
        self.await_that(f"the end of {pid}", lambda: _is_gone(pid))
        return pid

    def kill_and_drain(self) -> None:
        """SIGKILL the agent and wait until its writer has drained."""
        drains = self.writers()
        self.kill_learner()
        self.await_that("the writer drains", lambda: all(map(_is_gone, drains)))

    def signal_writer(self, number: int) -> int:
        """Send a signal to the writer; return its pid."""
        self.await_that("a writer", lambda: bool(self.writers()))
        pid = self.writers()[-1]
        self.signal_one(pid, number)
        return pid

    def signal_one(self, pid: int, number: int) -> None:
        """Send a signal; a process that is gone by now has had its fault."""
        if number == signal.SIGSTOP:
            self._frozen.append(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number == signal.SIGCONT and pid in self._frozen:
            self._frozen.remove(pid)

    def newest(self) -> Path:
        """Return the newest committed snapshot's directory; LookupError where there is none."""
        names = scan.committed_names(str(self.run_dir))
        if not names:
            raise LookupError("no snapshot is committed")
        return self.run_dir / "snapshots" / names[-1].text

    def files(self, snapshot: Path) -> list[Path]:
        """Return a snapshot's files but for the manifest, sorted."""
        return sorted(
            path for path in snapshot.rglob("*") if path.is_file() and path.name != "manifest.json"
        )

    def own_files(self, snapshot: Path) -> list[Path]:
        """Return the files whose bytes no other snapshot shares, the manifest among them."""
        others = {
            path.stat().st_ino
            for other in (self.run_dir / "snapshots").iterdir()
            if other != snapshot
            for path in other.rglob("*")
        }
        own = [path for path in self.files(snapshot) if path.stat().st_ino not in others]
        return [snapshot / "manifest.json", *(path for path in own if path.stat().st_size)]

    def segments(self, snapshot: Path) -> list[Path]:
        """Return the full segments of a snapshot, which a restore only maps. The open rows that a
        dying run's writer has saved are a file of the pool too, but are read at once."""
        segments = [path for path in self.files(snapshot) if path.name.startswith("segment-")]
        return [path for path in segments if "-part-" not in path.name]

    def harmed(self, path: Path, how: str) -> str:
        """Take note that the snapshot of a file need not be restored any more; return words."""
        inside = path.relative_to(self.run_dir / "snapshots")
        self.harmed_snapshots.add(inside.parts[0])
        return f"{Path(*inside.parts[1:])} of the newest snapshot {how}"


def _links(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from directory.iterdir()


def _is_gone(pid: int) -> bool:
    status = read_status(pid)
    return status is None or status.is_dead
