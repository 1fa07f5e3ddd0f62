"""The trainer's end of the writer: what it was given, and who replaces it when it dies.

The truth about snapshots lies in the control block; the link only carries descriptors and wakes.
Everything that was handed over is remembered and handed over again to a new writer, which finds
the staged snapshots in the control block. The writer is looked after whenever the engine is used
(ticks, waits, a ring that waits for a slot); there is no thread for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyengine import config
from pyengine.engine.critical import run_whole
from pyengine.engine.process import WriterProcess
from pyengine.errors import ClosedError, WriterDiedError
from pyengine.events import logger
from pyengine.fs.forking import register_for_child
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Message, close_all

DEATHS_IN_A_ROW = 4
"""After so many deaths without a snapshot committed in between, the writer is given up."""

_SLICE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A message with descriptors, kept for the next writer."""

    kind: str
    body: dict[str, Any]
    fds: tuple[int, ...]


@dataclass(slots=True)
class _Parcels:
    """What a writer must be given before it can work, in this order."""

    hello: _Parcel
    rings: dict[str, _Parcel] = field(default_factory=dict)
    stagings: dict[int, _Parcel] = field(default_factory=dict)

    def all(self) -> list[_Parcel]:
        return [self.hello, *self.rings.values(), *self.stagings.values()]


class WriterLink:
    """One engine's connection to its writer; owns the process, not the arenas.

    `hello` is the body of the first message, `control` the arena that goes with it; `on_message`
    is called with every message that arrives, in the thread that polls. Starting does not wait for
    the writer; `poll` sees to it. Inert in a forked child.
    """

    def __init__(
        self, hello: dict[str, Any], control: Arena, on_message: Callable[[Message], None]
    ) -> None:
        parcel = _Parcel("hello", {**hello, "size": control.size_bytes}, (control.fd,))
        self._parcels = _Parcels(parcel)
        self._on_message = on_message
        self._lock = threading.RLock()
        self._deaths = 0
        self._started_at = time.monotonic()
        self._is_ready = False
        self._is_lost = False
        self._is_closed = False
        self._owner_pid = os.getpid()
        self._process: WriterProcess | None = WriterProcess()
        register_for_child(self)
        try:
            self._send(self._parcels.hello)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the writer, None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def is_lost(self) -> bool:
        """Whether the writer was given up; `revive` tries again."""
        return self._is_lost

    def give_ring(self, name: str, arena: Arena, seal_event: int, **body: Any) -> None:
        """Hand over a ring's arena and the eventfd that tells of sealed segments."""
        body = {"name": name, "size": arena.size_bytes, **body}
        parcel = _Parcel("ring", body, (arena.fd, seal_event))
        self._parcels.rings[name] = parcel
        self._send(parcel)

    def give_staging(self, index: int, version: int, arena: Arena) -> None:
        """Hand over a staging arena; it replaces the one of that index."""
        body = {"index": index, "version": version, "size": arena.size_bytes}
        parcel = _Parcel("staging", body, (arena.fd,))
        self._parcels.stagings[index] = parcel
        self._send(parcel)

    def warm(self, name: str) -> None:
        """Have the mapped files of a ring read and verified, when there is nothing else to do."""
        self._send(_Parcel("warm", {"ring": name}, ()), timeout=0.0)

    def wake(self) -> None:
        """Tell the writer to look at the control block."""
        self._send(_Parcel("wake", {}, ()), timeout=0.0)

    def poll(self) -> None:
        """Take in messages and replace a dead writer. Never blocks for long.

        Raises WriterDiedError once, when the writer keeps dying; `is_lost` from then on.
        """
        with self._lock:
            process = self._process
            if process is None:
                if not self._is_lost and not self._is_closed:
                    run_whole(self._start)  # an interrupt came between the two
                return
            self._receive(process)
            if not process.is_alive():
                self._replace(process)
            elif not self._is_ready:
                self._check_start(process)

    def wait(self, seconds: float) -> None:
        """Wait for something to happen at the writer, at most `seconds`; then poll."""
        process = self._process
        if process is not None:
            poller = select.poll()
            with contextlib.suppress(OSError, ValueError):
                poller.register(process.channel, select.POLLIN)
                poller.register(process.pidfd, select.POLLIN)
            # Another thread may take the message that this one waits for: look up now and then.
            poller.poll(int(1000 * min(seconds, _SLICE_SECONDS)))
        self.poll()

    def await_ready(self, seconds: float) -> None:
        """Wait until the writer holds its lock on the run, at most `seconds`.

        From then on a dead trainer's snapshots are safe with it: the next start waits for it.
        Raises WriterDiedError where it cannot be started.
        """
        deadline = time.monotonic() + seconds
        while not self._is_ready and self._process is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                logger.warning("the writer is not up after %.0f s; going on without it", seconds)
                return
            self.wait(remaining)

    def revive(self) -> None:
        """Start a writer again after it was given up."""
        with self._lock:
            if self._is_lost:
                self._deaths = DEATHS_IN_A_ROW - 1
                self._is_lost = False
                run_whole(self._start)

    def drain(self, grace_seconds: float) -> None:
        """Ask the writer to finish what is staged and sealed, then to end."""
        self._send(_Parcel("close", {"grace_seconds": grace_seconds}, ()))

    def join(self, seconds: float) -> bool:
        """Wait until the writer has ended; whether it did. Not a death: it is not replaced."""
        with self._lock:
            process = self._process
            if process is None:
                return True
            deadline = time.monotonic() + seconds
            while not process.join(min(_SLICE_SECONDS, max(0.0, deadline - time.monotonic()))):
                self._receive(process)
                if time.monotonic() >= deadline:
                    return False
            self._receive(process)
            return True

    def release(self) -> None:
        """Let go of the writer: it ends once it has drained. Idempotent."""
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None and self._owner_pid == os.getpid():
            process.release()

    def kill(self) -> None:
        """End the writer at once. Idempotent."""
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None and self._owner_pid == os.getpid():
            process.kill()

    def _send(self, parcel: _Parcel, timeout: float = config.SLOT_WAIT_SECONDS) -> None:
        """Send, unless the writer is gone: then its successor gets the parcel."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ClosedError):
            sent = process.channel.send(parcel.kind, fds=parcel.fds, timeout=timeout, **parcel.body)
            if not sent and parcel.fds:
                # A writer that does not read for so long is stopped; it must not miss descriptors.
                logger.warning("the writer (pid %d) does not respond; replacing it", process.pid)
                process.kill()

    def _receive(self, process: WriterProcess) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                received = process.channel.receive(0)
                if received is None:
                    return
                message, fds = received
                close_all(fds)
                if message.get("kind") == "ready":
                    self._is_ready = True
                elif message.get("kind") == "committed":
                    self._deaths = 0
                self._on_message(message)

    def _check_start(self, process: WriterProcess) -> None:
        waited = time.monotonic() - self._started_at
        if waited > config.WRITER_START_SECONDS:
            self._started_at = time.monotonic()
            logger.warning("the writer (pid %d) is not up after %.0f s", process.pid, waited)

    def _replace(self, process: WriterProcess) -> None:
        self._deaths += 1
        end = process.describe_end()
        process.release()
        self._process = None
        if self._deaths >= DEATHS_IN_A_ROW:
            self._is_lost = True
            raise WriterDiedError(
                f"the writer {end}, as {self._deaths - 1} before it did; the next snapshot tries "
                "again. Its log lies beside the claim in generations/"
            )
        logger.warning("the writer %s; starting another one", end)
        run_whole(self._start)

    def _start(self) -> None:
        self._is_ready = False
        self._started_at = time.monotonic()
        self._process = WriterProcess()
        for parcel in self._parcels.all():
            self._send(parcel)

    def _after_fork_in_child(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.disown()
