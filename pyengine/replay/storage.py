"""The memory of a ring: arena, control block, native core, and the files that segments live in.

Made at the first append or by a restore, gone at close. The writer process shares arena and seal
event through their descriptors; everything else here is private to this process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyengine._native.control import RingControl
from pyengine._native.mapping import Mapping as MemoryMapping
from pyengine._native.ring import NoMemory, RingCore
from pyengine.errors import ClosedError, SharedMemoryError
from pyengine.format.segment import KIND_SEGMENT, Run, header_image
from pyengine.fs.forking import register_for_child
from pyengine.replay.allowance import allow_memory
from pyengine.replay.faults import no_memory_error
from pyengine.replay.plan import RingPlan, default_bytes, default_value, numpy_dtype
from pyengine.replay.reserving import keep_slots_ready, slots_ahead
from pyengine.replay.spilling import Spiller
from pyengine.shm.arena import Arena


class Storage:
    """Owns the arena of one ring; `close()` lets go of it, views of mutable fields keep it mapped.

    `line` is the line that segments are written under. Until `start_reserving` nothing else than
    the caller, and a thread of his that gives slots memory, touches it: a restore fills it alone.
    In a forked child everything is inert.
    """

    def __init__(self, plan: RingPlan, *, label: str, line: int) -> None:
        self.plan = plan
        self.label = label
        self.on_damage: Literal["raise", "drop"] = "raise"
        # Entered again by a signal handler that samples where its thread was settling a bad block.
        self.settling = threading.RLock()
        self.recoveries: dict[tuple[int, int, int], int] = {}
        self.mapped: dict[tuple[int, int], MemoryMapping] = {}
        self.paths: dict[tuple[int, int], str] = {}
        self._closing = threading.Event()
        self.seal_event = -1
        self.arena = Arena.create(plan.arena_bytes, label)
        try:
            _, _, slots_offset = RingControl.plan_bytes(*plan.control_sizes())
            self.arena.reserve(0, slots_offset)
            self.control = RingControl.create(self.arena.mapping, *plan.control_sizes())
            self.control.line = line
            self.seal_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self.core = self._open_core()
            self.core.allow_bytes(0)  # the first slot asks
            self._fill_defaults()
            self.spiller = Spiller(plan, self.core, self.control, self.mapped, self.paths)
        except BaseException:
            self.close()
            raise
        register_for_child(self)

    def _open_core(self) -> RingCore:
        schema = self.plan.schema
        image = header_image(
            self.plan.layout,
            line=0,
            kind=KIND_SEGMENT,
            runs=[Run(lane=0, first_row=0, row_count=0)],
        )
        stored = list(schema.append_fields)
        mutable = schema.mutable_fields
        first_stack = len(stored) + len(mutable)
        targets = {name: number for number, name in enumerate((*stored, *mutable))}
        for number, pair in enumerate(schema.stacks):
            targets[pair.obs] = first_stack + 2 * number
            targets[pair.next_obs] = first_stack + 2 * number + 1
        given = {name: field for name, field in schema.items() if not field.mutable} | mutable
        return RingCore(
            self.arena.mapping,
            self.arena.fd,
            self.seal_event,
            image,
            tuple(given),
            b"".join(numpy_dtype(field).char.encode() for field in given.values()),
            tuple((targets[name], field.row_bytes, field.shape) for name, field in given.items()),
            tuple(
                (field.row_bytes, offset)
                for field, offset in zip(mutable.values(), self.plan.mutable_offsets, strict=True)
            ),
            tuple(default_bytes(field) for field in mutable.values()),
            tuple(stored.index(name) for name in schema.episode_end),
            tuple((stored.index(pair.next_obs), pair.depth) for pair in schema.stacks),
        )

    @property
    def closing(self) -> threading.Event:
        """Set when the storage is closed."""
        return self._closing

    def mutable_arrays(self) -> dict[str, NDArray[Any]]:
        """Return live arrays (capacity, *shape) of the mutable fields, flat by position."""
        arrays: dict[str, NDArray[Any]] = {}
        for (name, field), offset in zip(
            self.plan.schema.mutable_fields.items(), self.plan.mutable_offsets, strict=True
        ):
            view = self.arena.view(offset, field.row_bytes * self.plan.capacity)
            flat = np.frombuffer(view, numpy_dtype(field))
            arrays[name] = flat.reshape(self.plan.capacity, *field.shape)
        return arrays

    def windows(self) -> list[tuple[int, int]]:
        """Return (tail, total count) of each lane."""
        # The tail is stored before the count, so that it must be read after it.
        windows = []
        for lane in range(self.plan.num_lanes):
            total = self.control.total_count(lane)
            windows.append((min(self.control.tail(lane), total), total))
        return windows

    def valid_rows(self) -> int:
        """Return how many rows can be drawn."""
        if self.plan.schema.stacks:
            return self.core.valid_rows
        rows = sum(total - tail for tail, total in self.windows())
        return max(0, rows - self.core.dropped_rows)

    def _fill_defaults(self) -> None:
        fields = self.plan.schema.mutable_fields
        for name, array in self.mutable_arrays().items():
            if fields[name].default:  # fresh memory is zero already
                array[...] = default_value(fields[name])

    def drop_retired(self) -> None:
        """Unmap files whose rows have left the window; any number of threads at once.

        No lock: a signal handler may add rows while this runs. Each key is popped by one thread.
        """
        if not self.core.take_retired():
            return
        rows = self.plan.segment_rows
        with contextlib.suppress(ClosedError):  # closed meanwhile: they are gone already
            for key in list(self.mapped):
                if (key[1] + 1) * rows <= self.control.tail(key[0]):
                    mapping = self.mapped.pop(key, None)
                    self.paths.pop(key, None)
                    if mapping is not None:
                        mapping.close()

    def allow_memory(self, label: str) -> None:
        """Let slots take more shared memory where there is some; SharedMemoryError where not."""
        plan = self.plan
        allow_memory(self.core, plan.layout.file_bytes, label, lanes=plan.num_lanes)

    def spill(self) -> bool:
        """Free slots that are missing by letting segments live in their files; whether one was."""
        missing = self.spiller.missing(slots_ahead(self.plan.layout.file_bytes))
        return missing > 0 and self.spiller.spill(missing) > 0

    def open_segment(self, lane: int, segment: int, label: str) -> int:
        """Open a slot for a restore; return the offset of its image. SharedMemoryError."""
        while True:
            try:
                image = self.core.open_segment(lane, segment)
            except NoMemory as fault:
                raise no_memory_error(label, self, fault) from None
            if image is not None:
                return image
            self.allow_memory(label)

    def close(self) -> None:
        """Let go of memory, descriptors and mapped files. Idempotent; any thread.

        Waits for calls that are inside the core, the reserving thread's among them, which may be
        within one slot's fallocate. RuntimeError, with nothing changed, inside the core's lock.
        """
        core = getattr(self, "core", None)
        if core is not None:
            core.close()
        self._closing.set()
        control = getattr(self, "control", None)
        if control is not None:
            control.release()
        while self.mapped:
            with contextlib.suppress(KeyError):  # another thread took the last one
                self.mapped.popitem()[1].close()
        event, self.seal_event = self.seal_event, -1
        if event >= 0:
            os.close(event)
        self.arena.close()

    def __del__(self) -> None:
        if getattr(self, "arena", None) is not None:
            self.close()

    def _after_fork_in_child(self) -> None:
        # The parent's thread may have held its lock at the fork.
        self._closing = threading.Event()
        self.settling = threading.RLock()
        self.core.disarm()
        self.control.release()  # who kept it gets ClosedError, not unmapped memory
        os.close(self.seal_event)
        self.seal_event = -1

    def start_reserving(self) -> None:
        """Have slots ready ahead of the head: from here on a thread does so, until `close`."""
        with contextlib.suppress(SharedMemoryError):  # the append that needs it says so itself
            self.allow_memory("reserving ahead")
        threading.Thread(
            target=keep_slots_ready,
            args=(weakref.ref(self), self._closing),
            name="pyengine-reserve",
            daemon=True,
        ).start()
