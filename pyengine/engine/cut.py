"""The cut: everything of one instant into a staging slot, published in one step.

Everything that can raise runs first: capture, layout, memory, the copy of the components. Then,
where no signal handler can interrupt, all rings are frozen, their mutable fields copied and their
counts taken, and the snapshot's word (PENDING) and the staging word (STAGED) are published, last,
while the rings' locks are still held. Whatever raises before that leaves nothing behind: the
snapshot is CANCELLED, the slot FREE.

With `overlap` large tensors of optimizers are left for later (`pyengine.capture.late`), and so is
STAGED alone (`pyengine.engine.late`); everything else is of the tick as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyengine.capture.component import Captured, Component, Phase
from pyengine.capture.copiers import Copier
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.coverage import check_coverage
from pyengine.capture.lazy_torch import is_cuda_used
from pyengine.capture.slot import StagingSlot as StagingMemory
from pyengine.capture.staging import StagingLayout
from pyengine.capture.tensorfile import FileLayout, lay_out
from pyengine.config import PAGE_BYTES
from pyengine.engine.buffers import StagingBuffers, StagingSlot
from pyengine.engine.critical import run_whole
from pyengine.engine.late import LateStaging, StepGuards
from pyengine.engine.runtime import runtime
from pyengine.engine.tracked import Tracked
from pyengine.events import logger, warn_once
from pyengine.format.buffer_header import DroppedRun, LaneRecord
from pyengine.format.descriptor import FilePlan, RingCut, SlotRange, SnapshotDescriptor
from pyengine.format.levels import WEIGHT_KINDS, WEIGHTS, Level
from pyengine.format.manifest import ComponentRecord
from pyengine.format.names import ring_directory
from pyengine.shm.arena import Arena
from pyengine.shm.control import DescriptorPlace, EngineControl
from pyengine.shm.states import StagingState

if TYPE_CHECKING:
    from pyengine.capture.late import LateChoice, LateCopy
    from pyengine.replay.ring import ReplayBuffer

MUTABLE_FILE = "mutable.safetensors"
"""Name of the file beside a buffer header that holds a ring's mutable fields."""

_WEIGHTS_ALONE = "a snapshot of weights alone"
_WIDEST = LaneRecord(tail=1 << 62, total_count=1 << 62, break_pending=True)
_SLACK_BYTES = 4096
_DROPPED_RUN_BYTES = 28
"""A run of dropped rows in a packed descriptor, at most: three numbers and the list."""

_LATE_RUNS = 1024
"""Runs that other threads may drop between the planning of a cut and the cut."""


@dataclass(frozen=True, slots=True, eq=False)
class _RingPlan:
    """One ring in a snapshot; `targets` are places in the slot for its mutable fields."""

    name: str
    ring: ReplayBuffer
    sources: Mapping[str, Any]
    layout: FileLayout | None
    offset: int

    @property
    def mutable_file(self) -> str | None:
        """Path of the file of mutable fields, None where the ring has none."""
        return f"{ring_directory(self.name)}/{MUTABLE_FILE}" if self.layout is not None else None


@dataclass(frozen=True, slots=True)
class Staging:
    """How an engine stages: what may wait is copied after the tick (`overlap`), and everything is
    hashed before and after its copy (`debug`)."""

    overlap: bool = False
    debug: bool = False


class Cutter:
    """Takes the cuts of one engine; owns the views of its staging arenas, not the arenas.

    `guards` are put on the optimizers that own what is copied late; `on_settled` is called whenever
    a slot was filled so.
    """

    def __init__(
        self,
        control: EngineControl,
        buffers: StagingBuffers,
        tracked: Tracked,
        staging: Staging,
        guards: StepGuards,
        on_settled: Callable[[], None],
    ) -> None:
        self._control = control
        self._buffers = buffers
        self._tracked = tracked
        self._staging = staging
        self._guards = guards
        self._on_settled = on_settled
        self._warned: set[str] = set()
        self._layout = StagingLayout()
        self._memories: dict[int, tuple[int, str, StagingMemory]] = {}
        self._record_sizes: dict[str, tuple[str | None, int]] = {}

    def take(
        self,
        slot: StagingSlot,
        draft: SnapshotDescriptor,
        meta: Mapping[str, Any],
        on_published: Callable[[], None],
    ) -> None:
        """Fill the claimed slot and publish the snapshot that `draft` describes.

        `draft` has everything but components, files and rings; `meta` goes into meta.json.
        `on_published` is called once the cut is taken, where nothing can interrupt it. Raises
        CaptureError, SharedMemoryError and what tracked objects raise: nothing is staged then.
        """
        try:
            self._take(slot, draft, meta, on_published)
        except BaseException:
            # An interrupt that came after the publication leaves the snapshot to the writer.
            self._buffers.give_up_claims()
            raise

    def _take(
        self,
        slot: StagingSlot,
        draft: SnapshotDescriptor,
        meta: Mapping[str, Any],
        on_published: Callable[[], None],
    ) -> None:
        components, saved_rings = self._chosen(draft.level)
        captured = [component.capture() for component in components]
        check_coverage(components, captured)
        if draft.level.name != WEIGHTS:
            self._tracked.check_reachable(captured)
            # Only now: what could not be captured whole is excluded while it is captured.
            draft = replace(draft, level=self._tracked.level())
        choice = self._choose_late(components)
        plan = self._layout.plan(captured, meta)
        rings, end = self._plan_rings(saved_rings, plan.required_bytes)
        files = [*plan.files, *(self._mutable_plan(ring) for ring in rings if ring.layout)]
        draft = replace(
            draft,
            components=(*self._records(plan.components), *self._other_records(captured, rings)),
            files=tuple(files),
            runtime=runtime(captured),
            static=tuple(sorted(self._tracked.static)),
        )
        room = len(draft.pack()) + _SLACK_BYTES
        room += sum(self._record_bytes(ring) + _dropped_bytes(ring.ring) for ring in rings)
        arena = self._buffers.fit(slot, end + room)
        late = self._memory(slot, arena).fill(plan, choice.tensors if choice else None)
        if choice is not None and late is not None:
            self._guards.put_on(choice.optimizers)
        targets = [self._mutable_targets(ring, arena) for ring in rings]
        place = arena.view(end, arena.size_bytes - end)

        def publish() -> None:
            self._publish(slot, draft, rings, targets, place, end, late)
            on_published()
            if late is not None:
                staging = LateStaging(late, slot.entry, draft.sequence, self._on_settled)
                self._buffers.begin_late(slot, staging)

        try:
            run_whole(publish)
        finally:
            place.release()
        if draft.level.name != WEIGHTS:
            self._buffers.make_ahead(end + room)

    def _chosen(self, level: Level) -> tuple[list[Component], Mapping[str, ReplayBuffer]]:
        """Return the components and rings of a snapshot of that level."""
        components = list(self._tracked.components.values())
        if level.name != WEIGHTS:
            return components, self._tracked.rings
        return [one for one in components if one.kind in WEIGHT_KINDS], {}

    def _choose_late(self, components: list[Component]) -> LateChoice | None:
        """Return what may be copied after the tick; None where nothing may."""
        if not self._staging.overlap or all(c.phase is not Phase.OPTIMIZER for c in components):
            return None
        from pyengine.capture.late import choose_late

        choice = choose_late(components)
        for why, size in choice.refused.items():
            warn_once(
                self._warned,
                why,
                "overlap: %.1f MB that optimizers own are copied during the tick all the same: %s",
                size / 1e6,
                why,
            )
        return choice if choice.tensors else None

    def make_ahead(self) -> None:
        """Begin to make memory for a slot, as large as the state that there is now.

        With the learner at rest; calls no methods of tracked objects' own. What it cannot capture
        is for the snapshot to tell.
        """
        try:
            captured = [component.capture() for component in self._tracked.ready()]
            needed = self._layout.plan(captured, {}).required_bytes
        except Exception as error:  # user code may raise anything
            logger.debug("no staging slot ahead of its use: %s", error)
            return
        for ring in self._tracked.rings.values():
            fields = ring.schema.mutable_fields.values()
            needed += sum(field.row_bytes for field in fields) * ring.capacity + PAGE_BYTES
        self._buffers.make_ahead(needed + _SLACK_BYTES)

    def _publish(
        self,
        slot: StagingSlot,
        draft: SnapshotDescriptor,
        rings: list[_RingPlan],
        targets: list[dict[str, Any]],
        place: memoryview,
        offset: int,
        late: LateCopy | None,
    ) -> None:
        entry, sequence = slot.entry, draft.sequence
        with contextlib.ExitStack() as locks:
            for ring in rings:
                locks.enter_context(ring.ring.freeze())
            entry.begin(sequence)
            records = []
            for ring, views in zip(rings, targets, strict=True):
                for name, view in views.items():
                    np.copyto(view, ring.sources[name], casting="no")
                words = self._control.arena.mapping
                lanes = ring.ring.cut(words, entry.snapshot_word_offset, sequence)
                records.append(_ring_record(ring, lanes, ring.ring.dropped))
            packed = replace(draft, rings=tuple(records)).pack()
            place[: len(packed)] = packed
            entry.descriptor = DescriptorPlace(slot.version, offset, len(packed))
            if late is None:
                entry.move_staging(sequence, StagingState.STAGING, StagingState.STAGED)

    def _plan_rings(
        self, rings: Mapping[str, ReplayBuffer], start: int
    ) -> tuple[list[_RingPlan], int]:
        """Place the rings' mutable fields from `start` on; return the plans and their end."""
        plans, end = [], start
        for name, ring in rings.items():
            sources = ring.mutable_arrays()
            layout = lay_out(list(sources), list(sources.values()), "{}") if sources else None
            plans.append(_RingPlan(name, ring, sources, layout, end))
            if layout is not None:
                end += -(-layout.size_bytes // PAGE_BYTES) * PAGE_BYTES
        return plans, end

    def _record_bytes(self, ring: _RingPlan) -> int:
        """Return room for a ring's record in the descriptor, dropped rows apart.

        It depends on schema, lanes and memory: remembered, as it takes longer to find than all
        else that a tick does for a ring.
        """
        arena = _arena_of(ring.ring)
        known = self._record_sizes.get(ring.name)
        if known is None or known[0] != arena:
            record = _ring_record(ring, (_WIDEST,) * ring.ring.num_envs, ())
            known = self._record_sizes[ring.name] = (arena, record.packed_bytes)
        return known[1]

    def _mutable_plan(self, ring: _RingPlan) -> FilePlan:
        assert ring.layout is not None
        assert ring.mutable_file is not None
        return FilePlan(ring.mutable_file, (SlotRange(ring.offset, ring.layout.size_bytes),))

    def _mutable_targets(self, ring: _RingPlan, arena: Arena) -> dict[str, Any]:
        if ring.layout is None:
            return {}
        header = ring.layout.header
        arena.view(ring.offset, len(header))[:] = header
        targets: dict[str, Any] = {}
        for (name, source), offset in zip(ring.sources.items(), ring.layout.offsets, strict=True):
            memory = arena.view(ring.offset + offset, source.nbytes)
            targets[name] = np.frombuffer(memory, source.dtype).reshape(source.shape)
        return targets

    def _records(self, records: Iterable[ComponentRecord]) -> list[ComponentRecord]:
        types = self._tracked.types
        return [replace(record, type=types.get(record.name)) for record in records]

    def _other_records(
        self, captured: list[Captured], rings: list[_RingPlan]
    ) -> list[ComponentRecord]:
        """Return the records of rings (their files come from the writer), of exclusions, and of
        what a snapshot of weights leaves out."""
        tracked = self._tracked
        records = [ComponentRecord(ring.name, "ring", "saved") for ring in rings]
        present = {one.name for one in captured} | {ring.name for ring in rings}
        for name in sorted(tracked.names - present):
            kind = tracked.components[name].kind if name in tracked.components else "ring"
            records.append(ComponentRecord(name, kind, "excluded", _WEIGHTS_ALONE))
        for name, reason in tracked.excluded.items():
            harmless = name in tracked.harmless
            records.append(ComponentRecord(name, "excluded", "excluded", reason, harmless=harmless))
        return self._records(records)

    def _memory(self, slot: StagingSlot, arena: Arena) -> StagingMemory:
        """Return the filling side of a slot, made anew with each arena and when CUDA comes in."""
        index = slot.entry.index
        device = "cuda" if is_cuda_used() else "cpu"
        known = self._memories.get(index)
        if known is not None and known[:2] == (slot.version, device):
            return known[2]
        if known is not None:
            known[2].close()
        copier = new_copier(device)
        memory = StagingMemory(arena.mapping, copier, is_watched=self._staging.debug)
        self._memories[index] = (slot.version, device, memory)
        return memory

    def close(self) -> None:
        """Let go of all views of the arenas. Idempotent."""
        while self._memories:
            _, (*_, memory) = self._memories.popitem()
            memory.close()


def _ring_record(
    ring: _RingPlan, lanes: tuple[LaneRecord, ...], dropped: tuple[DroppedRun, ...]
) -> RingCut:
    header = ring.ring.header_record()
    return RingCut(ring.name, lanes, header, ring.mutable_file, _arena_of(ring.ring), dropped)


def _arena_of(ring: ReplayBuffer) -> str | None:
    return None if ring.storage is None else ring.storage.arena.identity


def _dropped_bytes(ring: ReplayBuffer) -> int:
    """Room for a ring's dropped runs in the descriptor: none where none can come."""
    return (len(ring.dropped) + _LATE_RUNS) * _DROPPED_RUN_BYTES if ring.may_drop else 0


def new_copier(device: str) -> Copier:
    """Return the copier of a kind of device: "cuda", or "cpu"."""
    if device == "cuda":
        from pyengine.capture.copiers.cuda import CudaCopier

        return CudaCopier()
    return CpuCopier()
