"""What the trainer handed over: run directory, control block, rings, staging arenas.

Messages only fill this in. A restarted writer is given the same again and finds the rest in shared
memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyengine.errors import ClosedError, PyengineError
from pyengine.events import logger
from pyengine.format.descriptor import SnapshotDescriptor
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Channel, Message, close_all
from pyengine.shm.control import EngineControl, Entry
from pyengine.shm.states import SnapshotState, StagingState
from pyengine.writer.ring_view import RingView

_ANNOUNCED_FDS = {"ring": 2, "staging": 1}


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
        self.control = EngineControl.attach(Arena.attach(control_fd, hello["size"], "control"))
        self.run_id = self.control.run_id
        self.rings: dict[str, RingView] = {}
        self.retired: list[RingView] = []
        """Rings that a restore has replaced and that jobs may still use."""
        self.stagings: dict[int, StagingArena] = {}
        self.undrained: set[str] = set()
        """Rings whose open rows the drain could not persist."""
        self.bytes_written = 0
        """Bytes written since the last committed snapshot."""
        self._warned: set[str] = set()

    def take(self, message: Message, fds: list[int]) -> None:
        """Take in a message that hands something over; others are ignored here.

        What cannot be used is logged and told, and its descriptors are closed.
        """
        kind = message.get("kind")
        if _ANNOUNCED_FDS.get(str(kind), 0) != len(fds):
            close_all(fds)
            logger.error("message %r came with %d descriptors", kind, len(fds))
            return
        try:
            if kind == "ring":
                self._take_ring(message, fds)
            elif kind == "staging":
                arena = Arena.attach(fds[0], message["size"], f"staging {message['index']}")
                former = self.stagings.get(message["index"])
                self.stagings[message["index"]] = StagingArena(message["version"], arena)
                if former is not None:
                    former.arena.close()
        except (PyengineError, OSError, ValueError, KeyError) as error:
            self.warn(f"{kind} could not be taken over: {error}")

    def _take_ring(self, message: Message, fds: list[int]) -> None:
        arena_fd, seal_event = fds
        try:
            arena = Arena.attach(arena_fd, message["size"], f"ring {message['name']}")
        except BaseException:
            close_all([seal_event])
            raise
        former = self.rings.pop(message["name"], None)
        if former is not None:
            self.retired.append(former)
        ring = RingView(
            message["name"], arena, seal_event, schema=message["schema"], run_dir=self.run_dir
        )
        ring.take_back()
        self.rings[ring.name] = ring

    def descriptor(self, entry: Entry) -> SnapshotDescriptor | None:
        """Return the descriptor of a staged snapshot, or None until its arena has arrived."""
        place = entry.descriptor
        staging = self.stagings.get(entry.index)
        if staging is None or staging.version != place.arena_version:
            return None
        return SnapshotDescriptor.unpack(bytes(staging.arena.view(place.offset, place.length)))

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
        self.control.release()
        self.control.arena.close()
        self.channel.close()
