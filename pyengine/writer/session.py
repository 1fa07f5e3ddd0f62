"""What the trainer handed over: run directory, control block, rings, staging arenas.

Messages only fill this in. A restarted writer is given the same again and finds the rest in shared
memory. What cannot be taken over for want of memory is kept and tried again, and what it was to
replace stays until then: the trainer hands nothing over twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyengine.errors import ClosedError, PyengineError, SharedMemoryError, SnapshotFailedError
from pyengine.events import logger
from pyengine.format.descriptor import SnapshotDescriptor
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Channel, Message, close_all
from pyengine.shm.control import EngineControl, Entry
from pyengine.shm.states import SnapshotState, StagingState
from pyengine.writer.ring_view import RingView

_ANNOUNCED_FDS = {"ring": 2, "staging": 1}
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StagingArena:
    """The memory of one staging slot, and which of its makings this is."""

    version: int
    arena: Arena


class Session:
    """One writer's work for one trainer; owns the arenas it was given."""

    def __init__(
        self, channel: Channel, hello: Message, control_fd: int, lock_fd: int | None = None
    ) -> None:
        self.channel = channel
        self.lock_fd = lock_fd
        """Through it the trainer has taken the writer's byte of the claim for this process."""
        self.run_dir: str = hello["run_dir"]
        self.generation: int = hello["generation"]
        self.keep_last: int = hello["keep_last"]
        self.keep_best: str | None = hello["keep_best"]
        self.keep_best_mode: str = hello.get("keep_best_mode", "max")
        self.control = EngineControl.attach(Arena.attach(control_fd, hello["size"], "control"))
        self.run_id = self.control.run_id
        self.rings: dict[str, RingView] = {}
        self.retired: list[RingView] = []
        """Rings that a restore has replaced and that jobs may still use."""
        self.stagings: dict[int, StagingArena] = {}
        self.undrained: dict[str, str] = {}
        """Rings whose open rows the drain could not persist, and why."""
        self.bytes_written = 0
        """Bytes written since the last committed snapshot."""
        self._warned: set[str] = set()
        self._untaken: dict[tuple[str, Any], tuple[Message, list[int]]] = {}
        self._retry_at = 0.0
        self._refused: dict[str, str] = {}

    def take(self, message: Message, fds: list[int]) -> None:
        """Take in a message that hands something over; others are ignored here.

        Its descriptors are closed once it was taken. What makes no sense is logged and told.
        """
        kind = str(message.get("kind"))
        if _ANNOUNCED_FDS.get(kind, 0) != len(fds):
            close_all(fds)
            logger.error("message %r came with %d descriptors", kind, len(fds))
        elif kind in _ANNOUNCED_FDS:
            key = (kind, message.get("name", message.get("index")))
            _, outdated = self._untaken.pop(key, (message, []))
            close_all(outdated)
            self._take(key, message, fds)

    def take_again(self) -> None:
        """Try again, now and then, what could not be taken over."""
        if self._untaken and time.monotonic() >= self._retry_at:
            for key, (message, fds) in list(self._untaken.items()):
                del self._untaken[key]
                self._take(key, message, fds)

    def _take(self, key: tuple[str, Any], message: Message, fds: list[int]) -> None:
        warning = f"take {key}"
        try:
            if key[0] == "ring":
                self._take_ring(message, fds)
            else:
                self._take_staging(message, fds)
        except (SharedMemoryError, OSError) as error:
            self._untaken[key] = (message, fds)
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self.warn(f"{key[0]} {key[1]} cannot be taken over yet: {error}", once=warning)
            return
        except (PyengineError, ValueError, KeyError) as error:
            self.warn(f"{key[0]} {key[1]} could not be taken over: {error}")
            if key[0] == "ring":
                self._refused[str(key[1])] = str(error)
        close_all(fds)
        self.no_longer(warning)

    def _take_ring(self, message: Message, fds: list[int]) -> None:
        name, size_bytes = message["name"], message["size"]
        arena = Arena.attach(os.dup(fds[0]), size_bytes, f"ring {name}")
        seal_event = -1
        try:
            seal_event = os.dup(fds[1])
            ring = RingView(
                name,
                arena,
                seal_event,
                schema=message["schema"],
                run_dir=self.run_dir,
                generation=self.generation,
            )
        except BaseException:
            close_all([seal_event])
            arena.close()
            raise
        ring.take_back()
        former = self.rings.pop(name, None)
        if former is not None:
            self.retired.append(former)
        self.rings[name] = ring

    def _take_staging(self, message: Message, fds: list[int]) -> None:
        index, version, size_bytes = message["index"], message["version"], message["size"]
        arena = Arena.attach(os.dup(fds[0]), size_bytes, f"staging {index}")
        former = self.stagings.get(index)
        self.stagings[index] = StagingArena(version, arena)
        if former is not None:
            former.arena.close()

    def descriptor(self, entry: Entry) -> SnapshotDescriptor | None:
        """Return the descriptor of a staged snapshot, or None until its arena has arrived."""
        place = entry.descriptor
        staging = self.stagings.get(entry.index)
        if staging is None or staging.version != place.arena_version:
            return None
        return SnapshotDescriptor.unpack(bytes(staging.arena.view(place.offset, place.length)))

    def has_rings(self, descriptor: SnapshotDescriptor) -> bool:
        """Whether every ring of a snapshot has arrived; a new writer is given them one by one.

        Raises SnapshotFailedError for one that could not be taken over and never will be.
        """
        for cut in descriptor.rings:
            if cut.name in self._refused:
                raise SnapshotFailedError(f"ring {cut.name}: {self._refused[cut.name]}")
        return all(cut.name in self.rings for cut in descriptor.rings)

    def take_back(self) -> None:
        """Undo what a dead writer had begun: WRITING goes back to STAGED.

        COMMITTING is left to the snapshot's own job, which looks for the manifest.
        """
        for entry in self.control.entries:
            sequence, _ = entry.staging
            entry.move_staging(sequence, StagingState.WRITING, StagingState.STAGED)

    def abandon_staging(self) -> None:
        """Free the slots that a dead trainer was filling."""
        for entry in self.control.entries:
            sequence, state = entry.staging
            if state == StagingState.STAGING:
                entry.move_snapshot(sequence, SnapshotState.PENDING, SnapshotState.CANCELLED)
                entry.move_staging(sequence, StagingState.STAGING, StagingState.FREE)

    def tell(self, kind: str, **body: Any) -> None:
        """Send a message if the trainer is there to take it; never blocks."""
        with contextlib.suppress(ClosedError):
            self.channel.send(kind, timeout=0, **body)

    def warn(self, text: str, *, once: str | None = None) -> None:
        """Log a warning and tell the trainer; with `once`, only the first time for that key."""
        if once is not None:
            if once in self._warned:
                return
            self._warned.add(once)
        logger.warning("%s", text)
        self.tell("warning", text=text[:4000])

    def no_longer(self, once: str) -> None:
        """Let a warning of this key be given again."""
        self._warned.discard(once)

    def close_retired(self, in_use: Collection[RingView]) -> None:
        """Let go of replaced rings that no job uses any more."""
        for ring in [ring for ring in self.retired if ring not in in_use]:
            self.retired.remove(ring)
            ring.close()

    def close(self) -> None:
        """Let go of all shared memory and of the channel."""
        for ring in (*self.rings.values(), *self.retired):
            ring.close()
        self.rings.clear()
        self.retired.clear()
        for staging in self.stagings.values():
            staging.arena.close()
        self.stagings.clear()
        for _, fds in self._untaken.values():
            close_all(fds)
        self._untaken.clear()
        self.control.release()
        self.control.arena.close()
        self.channel.close()
