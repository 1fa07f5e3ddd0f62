"""The trainer's end of the writer: what it was given, and who replaces it when it dies.

The truth about snapshots lies in the control block; the link only carries descriptors and wakes.
Everything that was handed over is remembered (engine.parcels) and handed over again to a new
writer, which finds the staged snapshots in the control block. The writer is looked after whenever
the engine is used (ticks, waits, a ring that waits for a slot); there is no thread for it.

A signal handler may use the engine while its own thread is in here. So what changes the process or
the parcels runs whole (engine.critical) under `_changing`, which no other code takes: a handler
waits for it and then finds it done.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pyengine import config
from pyengine.catalog.generation import reserve_writer_lock
from pyengine.engine.critical import run_whole
from pyengine.engine.parcels import Parcel, Parcels
from pyengine.engine.process import WriterProcess, import_path
from pyengine.engine.stopped import StopWatch
from pyengine.errors import ClosedError, WriterDiedError
from pyengine.events import logger
from pyengine.fs.forking import register_for_child
from pyengine.fs.process import read_status
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Message, close_all

K = TypeVar("K")

DEATHS_IN_A_ROW = 4
"""After so many deaths without a snapshot committed in between, the writer is given up."""

STOPPED_SECONDS = 5.0
"""A writer that is seen stopped for so long, while somebody waits for it, is replaced."""

_SLICE_SECONDS = 0.25


class WriterLink:
    """One engine's connection to its writer; owns the process, not the arenas.

    `hello` is the body of the first message, `control` the arena that goes with it; `on_message`
    is called with every message that arrives, in the thread that polls. Starting does not wait for
    the writer; `poll` sees to it. Made where no signal handler can interrupt it, as are the calls
    that hand something over. Inert in a forked child.
    """

    def __init__(
        self, hello: dict[str, Any], control: Arena, on_message: Callable[[Message], None]
    ) -> None:
        parcel = Parcel("hello", {**hello, "size": control.size_bytes}, (control.fd,))
        self._parcels = Parcels(parcel)
        self._claim = (str(hello["run_dir"]), int(hello["generation"]))
        self._import_path = import_path()
        self._on_message = on_message
        self._lock = threading.RLock()
        self._changing = threading.Lock()
        self._deaths = 0
        self._started_at = time.monotonic()
        self._is_ready = False
        self._is_lost = False
        self._is_closed = False
        self._is_complete: bool | None = None
        self._stop: StopWatch | None = None
        self._owner_pid = os.getpid()
        self._process: WriterProcess | None = None
        register_for_child(self)
        try:
            self._start()
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

    @property
    def is_ready(self) -> bool:
        """Whether the writer holds its lock on the run and takes snapshots up."""
        return self._is_ready

    @property
    def is_complete(self) -> bool | None:
        """Whether the writer left nothing unwritten, as it said at its end; None: it did not."""
        return self._is_complete

    def give_ring(self, name: str, arena: Arena, seal_event: int, **body: Any) -> None:
        """Hand over a ring's arena and the eventfd that tells of sealed segments."""
        body = {"name": name, "size": arena.size_bytes, **body}
        self._give(self._parcels.rings, name, Parcel("ring", body, (arena.fd, seal_event)))

    def give_staging(self, index: int, version: int, arena: Arena) -> None:
        """Hand over a staging arena; it replaces the one of that index."""
        body = {"index": index, "version": version, "size": arena.size_bytes}
        self._give(self._parcels.stagings, index, Parcel("staging", body, (arena.fd,)))

    def _give(self, parcels: dict[K, Parcel], key: K, parcel: Parcel) -> None:
        with self._changing:
            former = parcels.get(key)
            parcels[key] = parcel
            try:
                self._send(parcel)
            finally:
                if former is not None:
                    former.close()

    def warm(self, name: str) -> None:
        """Have the mapped files of a ring read and verified, when there is nothing else to do."""
        parcel = self._parcels.warming[name] = Parcel("warm", {"ring": name})
        self._send(parcel, timeout=0.0)

    def wake(self) -> None:
        """Tell the writer to look at the control block."""
        self._send(Parcel("wake", {}), timeout=0.0)

    def poll(self) -> None:
        """Take in messages and replace a dead writer. Never blocks for long.

        Raises WriterDiedError once, when the writer keeps dying; `is_lost` from then on.
        """
        with self._lock:
            process = self._process
            if process is None:
                if not self._is_lost:
                    run_whole(self._start)  # the last attempt raised
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
            if not poller.poll(int(1000 * min(seconds, _SLICE_SECONDS))):
                self.end_if_stopped()
        self.poll()

    def end_if_stopped(self) -> None:
        """End a writer that a signal has stopped and nobody wakes; `poll` then replaces it.

        To be called where something waits for the writer: it reads /proc. One under a debugger, or
        that the disk keeps waiting, is left alone.
        """
        with self._lock:
            process = self._process
            if process is None:
                return
            if self._stop is None or self._stop.pid != process.pid:
                self._stop = StopWatch(process.pid)
            if self._stop.look(time.monotonic(), read_status(process.pid)) >= STOPPED_SECONDS:
                logger.warning(
                    "the writer (pid %d) was stopped by a signal %.0f s ago and nobody has woken "
                    "it; replacing it",
                    process.pid,
                    STOPPED_SECONDS,
                )
                self._stop = None
                process.end()

    def revive(self) -> None:
        """Start a writer again after it was given up."""
        with self._lock:
            if self._is_lost:
                self._deaths = DEATHS_IN_A_ROW - 1
                self._is_lost = False
                run_whole(self._start)  # a handler that was faster has started it already

    def drain(self, grace_seconds: float) -> None:
        """Ask the writer to finish what is staged and sealed, then to end."""
        self._send(Parcel("close", {"grace_seconds": grace_seconds}))

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
        self._let_go(WriterProcess.release)

    def kill(self) -> None:
        """End the writer at once. Idempotent."""
        self._let_go(WriterProcess.kill)

    def _let_go(self, end: Callable[[WriterProcess], None]) -> None:
        self._is_closed = True
        process, self._process = self._process, None
        if self._owner_pid == os.getpid():
            try:
                if process is not None:
                    end(process)
            finally:
                self._parcels.close()

    def _send(
        self,
        parcel: Parcel,
        *more_fds: int,
        timeout: float = config.SLOT_WAIT_SECONDS,
    ) -> None:
        """Send, unless the writer is gone: then its successor gets the parcel."""
        process = self._process
        if process is None:
            return
        fds = (*parcel.fds, *more_fds)
        with contextlib.suppress(ClosedError):
            sent = process.channel.send(parcel.kind, fds=fds, timeout=timeout, **parcel.body)
            if not sent and fds:
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
                elif message.get("kind") == "drained":
                    self._is_complete = message.get("complete") is True
                elif message.get("kind") == "warmed":
                    self._parcels.warming.pop(str(message.get("ring")), None)
                self._on_message(message)

    def _check_start(self, process: WriterProcess) -> None:
        waited = time.monotonic() - self._started_at
        if waited > config.WRITER_START_SECONDS:
            self._started_at = time.monotonic()
            logger.warning("the writer (pid %d) is not up after %.0f s", process.pid, waited)

    def _replace(self, process: WriterProcess) -> None:
        end = run_whole(lambda: self._succeed(process))
        if end is not None:
            logger.warning("the writer %s; starting another one", end)

    def _succeed(self, process: WriterProcess) -> str | None:
        """Put another writer in the place of a dead one; return how that ended.

        None where it was replaced already. Raises WriterDiedError where it is given up.
        """
        with self._changing:
            if self._process is not process:
                return None
            self._deaths += 1
            end = process.describe_end()
            process.release()
            self._process = None
            if self._deaths >= DEATHS_IN_A_ROW:
                self._is_lost = True
                raise WriterDiedError(
                    f"the writer {end}, as {self._deaths - 1} before it did; the next snapshot "
                    "tries again. Its log lies beside the claim in generations/"
                )
        self._start()
        return end

    def _start(self) -> None:
        """Start a writer unless there is one, and give it what it must have. Runs whole."""
        with self._changing:
            if self._process is None and not self._is_closed:
                self._make()
        if self._is_closed:
            self._let_go(WriterProcess.kill)  # closed meanwhile, by another thread

    def _make(self) -> None:
        self._is_ready = False
        self._is_complete = None
        self._started_at = time.monotonic()
        lock = reserve_writer_lock(*self._claim)
        try:
            self._process = WriterProcess(self._import_path)
            self._send(self._parcels.hello, *(() if lock is None else (lock.fd,)))
        finally:
            # From here on it is the writer's alone, and goes with it.
            if lock is not None:
                lock.hand_over()
        for parcel in self._parcels.all()[1:]:
            self._send(parcel)

    def _after_fork_in_child(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.disown()
        self._parcels.close()
