"""The engine's control block: one small arena in which trainer and writer keep the truth.

Messages over the channel only wake and explain. Which snapshots exist, what became of them, and
where their descriptors lie is here, so that a restarted writer finds everything again. Each of two
entries pairs a staging slot with the snapshot that was staged in it.

Ownership: the trainer writes an entry's descriptor words before STAGED, the writer its outcome and
error record before a terminal state; states are swapped by both. `parent` is written by the trainer
at a restore and by the writer at a commit, never at the same time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgpack

from pyengine._native.control import Words
from pyengine.config import PAGE_BYTES
from pyengine.errors import ForkedProcessError, SharedMemoryError
from pyengine.fs.forking import register_for_child
from pyengine.shm.arena import Arena
from pyengine.shm.states import SnapshotState, StagingState, pack_word, unpack_word

ENTRY_COUNT = 2
"""Staging slots of an engine: one being filled while the other is written."""

ERROR_BYTES = 4096
NAME_BYTES = 120

_MAGIC = b"PEENGINE"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ64s")
_WORDS_OFFSET = 128
_LINE, _WRITER_BEAT, _PARENT = range(3)
_WORD_COUNT = 8
_NAMES_OFFSET = 192
_NAME = struct.Struct(f"<Q{NAME_BYTES}s")
_ENTRIES_OFFSET = 512
_ENTRY_BYTES = 8192
_ENTRY_WORDS = 16
_ERROR_OFFSET = 256
_STAGING, _SNAPSHOT, _VERSION_WORD, _OFFSET, _BYTES = range(5)
_PERSIST_NS, _WRITTEN, _NEW, _ERROR_LENGTH = range(5, 9)

CONTROL_BYTES = -(-(_ENTRIES_OFFSET + ENTRY_COUNT * _ENTRY_BYTES) // PAGE_BYTES) * PAGE_BYTES
"""Size of the arena that `EngineControl.create` needs."""


@dataclass(frozen=True, slots=True)
class DescriptorPlace:
    """Where a snapshot's packed descriptor lies: version of the staging arena, offset, bytes."""

    arena_version: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a snapshot cost the writer.

    `persist_ns` from pick-up to commit; `bytes_written` everything written since the snapshot
    before, eager segments included; `new_bytes` what is new in it: rows and the snapshot's own
    files.
    """

    persist_ns: int = 0
    bytes_written: int = 0
    new_bytes: int = 0


class _NotInherited:
    """Takes the place of words and views in a forked child, where their memory is not mapped."""

    def release(self) -> None:
        """There is nothing to let go of."""

    def __getattr__(self, name: str) -> Any:
        raise ForkedProcessError(
            "the control block belongs to the process that made it, not to a forked child"
        )


class Entry:
    """One staging slot and its snapshot. Made by EngineControl; lives as long as it does.

    In a forked child its use raises ForkedProcessError.
    """

    def __init__(self, arena: Arena, index: int) -> None:
        self.index = index
        self._offset = _ENTRIES_OFFSET + index * _ENTRY_BYTES
        self._words = Words(arena.mapping, self._offset, _ENTRY_WORDS)
        self._error = arena.view(self._offset + _ERROR_OFFSET, ERROR_BYTES)
        register_for_child(self)

    @property
    def snapshot_word_offset(self) -> int:
        """Byte offset of the snapshot's word in the control arena, for a ring's hold."""
        return self._offset + 8 * _SNAPSHOT

    @property
    def staging(self) -> tuple[int, StagingState]:
        """(sequence, state) of the staging slot."""
        tag, state = unpack_word(self._words.load(_STAGING))
        return tag, StagingState(state)

    @property
    def snapshot(self) -> tuple[int, SnapshotState]:
        """(sequence, state) of the snapshot that was last begun here."""
        tag, state = unpack_word(self._words.load(_SNAPSHOT))
        return tag, SnapshotState(state)

    def claim(self, sequence: int) -> bool:
        """Trainer: FREE -> STAGING for a new sequence; False while the slot is in use."""
        word = self._words.load(_STAGING)
        if unpack_word(word)[1] != StagingState.FREE:
            return False
        staging = pack_word(sequence, StagingState.STAGING)
        return self._words.compare_exchange(_STAGING, word, staging)

    def begin(self, sequence: int) -> None:
        """Trainer, with the slot claimed: the snapshot is PENDING. Before the first hold on it."""
        for word in (_PERSIST_NS, _WRITTEN, _NEW, _ERROR_LENGTH):
            self._words.store(word, 0)
        self._words.store(_SNAPSHOT, pack_word(sequence, SnapshotState.PENDING))

    def move_staging(self, sequence: int, before: StagingState, after: StagingState) -> bool:
        """Swap the staging slot's state; whether it was (sequence, before)."""
        return self._words.compare_exchange(
            _STAGING, pack_word(sequence, before), pack_word(sequence, after)
        )

    def move_snapshot(self, sequence: int, before: SnapshotState, after: SnapshotState) -> bool:
        """Swap the snapshot's state; whether it was (sequence, before)."""
        return self._words.compare_exchange(
            _SNAPSHOT, pack_word(sequence, before), pack_word(sequence, after)
        )

    def cancel(self, sequence: int) -> bool:
        """Trainer: PENDING -> CANCELLED; False where it is committing or already decided."""
        return self.move_snapshot(sequence, SnapshotState.PENDING, SnapshotState.CANCELLED)

    @property
    def descriptor(self) -> DescriptorPlace:
        """Where the descriptor lies; valid from STAGED until the slot is FREE."""
        load = self._words.load
        return DescriptorPlace(load(_VERSION_WORD), load(_OFFSET), load(_BYTES))

    @descriptor.setter
    def descriptor(self, place: DescriptorPlace) -> None:
        self._words.store(_VERSION_WORD, place.arena_version)
        self._words.store(_OFFSET, place.offset)
        self._words.store(_BYTES, place.length)

    @property
    def outcome(self) -> Outcome:
        """What the snapshot cost; valid once it is COMMITTED."""
        load = self._words.load
        return Outcome(load(_PERSIST_NS), load(_WRITTEN), load(_NEW))

    @outcome.setter
    def outcome(self, outcome: Outcome) -> None:
        self._words.store(_PERSIST_NS, outcome.persist_ns)
        self._words.store(_WRITTEN, outcome.bytes_written)
        self._words.store(_NEW, outcome.new_bytes)

    def fail(self, sequence: int, record: dict[str, Any]) -> bool:
        """Writer: store the error record, then PENDING or COMMITTING -> FAILED.

        `record` has "type" (a name in pyengine.errors), "message", and numbers. False where the
        trainer cancelled the snapshot first.
        """
        packed = msgpack.packb(record)
        if len(packed) > ERROR_BYTES:
            excess = len(packed) - ERROR_BYTES + 16
            text = str(record["message"]).encode()
            cut = text[: max(0, len(text) - excess)].decode("utf-8", "ignore")
            packed = msgpack.packb({**record, "message": cut})
        self._error[: len(packed)] = packed
        self._words.store(_ERROR_LENGTH, len(packed))
        return self.move_snapshot(
            sequence, SnapshotState.PENDING, SnapshotState.FAILED
        ) or self.move_snapshot(sequence, SnapshotState.COMMITTING, SnapshotState.FAILED)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error record of a FAILED snapshot, or None."""
        length = min(self._words.load(_ERROR_LENGTH), ERROR_BYTES)
        if length == 0:
            return None
        record: dict[str, Any] = msgpack.unpackb(bytes(self._error[:length]))
        return record

    def release(self) -> None:
        """Let go of the arena's memory."""
        self._words.release()
        self._error.release()

    def _after_fork_in_child(self) -> None:
        inert: Any = _NotInherited()
        self._words = self._error = inert


class EngineControl:
    """A view of the control block in `arena`, which must outlive it. Any thread may use it.

    In a forked child its use raises ForkedProcessError.
    `create` fills in a fresh arena of CONTROL_BYTES, `attach` reads one made by another process.
    """

    def __init__(self, arena: Arena) -> None:
        magic, version, entries, generation, run_id = _HEADER.unpack_from(arena.mapping, 0)
        if (magic, version, entries) != (_MAGIC, _VERSION, ENTRY_COUNT):
            raise SharedMemoryError(
                "the region does not hold an engine's control block of this version",
                needed_bytes=CONTROL_BYTES,
                free_bytes=arena.size_bytes,
            )
        self.arena = arena
        self.generation: int = generation
        self.run_id: str = run_id.rstrip(b"\0").decode()
        self._words = Words(arena.mapping, _WORDS_OFFSET, _WORD_COUNT)
        self._names = arena.view(_NAMES_OFFSET, 2 * _NAME.size)
        self.entries = tuple(Entry(arena, index) for index in range(ENTRY_COUNT))
        register_for_child(self)

    @classmethod
    def create(cls, arena: Arena, *, generation: int, run_id: str, line: int = 0) -> EngineControl:
        """Write a fresh control block into a zeroed arena and return its view."""
        arena.reserve(0, CONTROL_BYTES)
        _HEADER.pack_into(
            arena.mapping, 0, _MAGIC, _VERSION, ENTRY_COUNT, generation, run_id.encode()
        )
        control = cls(arena)
        control.line = line
        return control

    @classmethod
    def attach(cls, arena: Arena) -> EngineControl:
        """Return the view of a block that another process made; SharedMemoryError if it is none."""
        return cls(arena)

    @property
    def line(self) -> int:
        """Id of the line that the engine writes."""
        return self._words.load(_LINE)

    @line.setter
    def line(self, value: int) -> None:
        self._words.store(_LINE, value)

    @property
    def parent(self) -> str | None:
        """Name of the snapshot that the next one descends from."""
        index = self._words.load(_PARENT)
        if index == 0:
            return None
        length, text = _NAME.unpack_from(self._names, (index - 1) * _NAME.size)
        name: str = text[:length].decode()
        return name or None

    @parent.setter
    def parent(self, name: str | None) -> None:
        # Two places in turn: who dies between the two stores leaves the former name whole.
        text = (name or "").encode()
        if len(text) > NAME_BYTES:
            raise ValueError(f"a snapshot's name of {len(text)} bytes")
        index = 1 if self._words.load(_PARENT) == 2 else 2
        _NAME.pack_into(self._names, (index - 1) * _NAME.size, len(text), text)
        self._words.store(_PARENT, index)

    @property
    def writer_heartbeat(self) -> int:
        """CLOCK_MONOTONIC nanoseconds that the writer stored last (0: never)."""
        return self._words.load(_WRITER_BEAT)

    @writer_heartbeat.setter
    def writer_heartbeat(self, now_ns: int) -> None:
        self._words.store(_WRITER_BEAT, now_ns)

    def release(self) -> None:
        """Let go of the arena's memory, so that it can be unmapped at once. Idempotent."""
        for entry in self.entries:
            entry.release()
        self._words.release()
        self._names.release()

    def _after_fork_in_child(self) -> None:
        inert: Any = _NotInherited()
        self._words = self._names = inert
