"""What a ring needs: segment rows, slots, arena, all from schema, capacity and lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyengine._native.control import RingControl
from pyengine.config import SEGMENT_MIN_BYTES
from pyengine.errors import ConfigError
from pyengine.events import logger
from pyengine.format.counts import COUNT_MAX, as_count
from pyengine.format.schema import Field, Schema
from pyengine.format.segment import (
    SegmentLayout,
    plan_layout,
    round_to_page,
    segment_rows,
)
from pyengine.shm.headroom import most_mappings

_LANES_MAX = (1 << 32) - 1
_MANY_LANES = 256
_MEMORY_RATIO = 1.5
_WORTH_A_WARNING_BYTES = 64 * 1024 * 1024
_MANY_FILES = 1024
_OTHER_MAPPINGS = 4096
"""Left to the rest of the process, which has 426 with torch for the CPU (2026-11-30)."""


@dataclass(frozen=True, slots=True)
class RingPlan:
    """The sizes of a ring. `mutable_offsets` are byte offsets in the arena, one a mutable field.

    `memory_limit` is None where all segments of a full ring have slots.
    """

    schema: Schema
    capacity: int
    num_lanes: int
    rows_per_lane: int
    layout: SegmentLayout
    slot_count: int
    mutable_bytes: int
    mutable_offsets: tuple[int, ...]
    arena_bytes: int
    memory_limit: int | None

    @property
    def segment_rows(self) -> int:
        """Rows of a segment (R)."""
        return self.layout.row_capacity

    @property
    def segment_count(self) -> int:
        """How many segments hold a full window: files, of which each snapshot names every one."""
        return self.num_lanes * -(-self.rows_per_lane // self.segment_rows)

    @property
    def rows_in_memory(self) -> int:
        """How many rows the slots hold, those of the open segments and of spares not counted."""
        if self.memory_limit is None:
            return self.capacity
        return (self.slot_count - _least_slots(self.schema, self.num_lanes)) * self.segment_rows

    def control_sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """Return the arguments of RingControl.create and plan_bytes."""
        return (
            self.num_lanes,
            self.rows_per_lane,
            self.segment_rows,
            self.slot_count,
            self.layout.file_bytes,
            self.layout.block_count,
            self.mutable_bytes,
        )


def plan_ring(
    schema: Schema, capacity: int, num_lanes: int, memory_limit: int | None = None
) -> RingPlan:
    """Return the plan; ConfigError for counts that cannot work, a warning for wasted memory.

    `memory_limit`: bytes that the slots take at most.
    """
    capacity = as_count("capacity", capacity, least=1)
    num_lanes = as_count("num_envs", num_lanes, least=1, most=_LANES_MAX)
    if capacity % num_lanes:
        below = capacity - capacity % num_lanes
        near = f"{below} or {below + num_lanes}" if below else str(num_lanes)
        raise ConfigError(
            f"capacity={capacity} leaves a remainder over num_envs={num_lanes} lanes; use {near}",
            field="capacity",
            expected=near,
            got=capacity,
        )
    per_lane = capacity // num_lanes
    rows = segment_rows(schema.row_bytes, per_lane)
    layout = plan_layout(schema.append_fields, rows)
    if schema.stacks:
        _check_stacks(schema, capacity, num_lanes, rows)
    slot_count = -(-per_lane // rows) * num_lanes + _least_slots(schema, num_lanes)
    if memory_limit is not None:
        limited = _limited_slots(schema, num_lanes, layout, memory_limit, slot_count)
        memory_limit = memory_limit if limited < slot_count else None
        slot_count = limited
    fields = schema.mutable_fields
    mutable_bytes, starts = _place_mutables(fields, capacity)
    sizes = (num_lanes, per_lane, rows, slot_count, layout.file_bytes, layout.block_count)
    try:
        arena_bytes, mutable_offset, _ = RingControl.plan_bytes(*sizes, mutable_bytes)
    except (ValueError, OverflowError):
        needed = capacity * (schema.row_bytes + sum(f.row_bytes for f in fields.values()))
        raise ConfigError(
            f"capacity={capacity}: rows of {needed} bytes in all do not fit any memory; an arena "
            f"takes up to {COUNT_MAX}",
            field="capacity",
            expected=f"rows of at most {COUNT_MAX} bytes",
            got=capacity,
        ) from None
    plan = RingPlan(
        schema,
        capacity,
        num_lanes,
        per_lane,
        layout,
        slot_count,
        mutable_bytes,
        tuple(mutable_offset + start for start in starts),
        arena_bytes,
        memory_limit,
    )
    if memory_limit is not None:
        _check_mappings(plan)
    _warn_if_wasteful(plan)
    return plan


def least_memory(plan: RingPlan) -> int:
    """Return the smallest `memory_limit` that a ring of this plan takes, in bytes."""
    return _least_slots(plan.schema, plan.num_lanes) * plan.layout.file_bytes


def _least_slots(schema: Schema, num_lanes: int) -> int:
    """Return the slots of open segments and the spares: without fewer no lane could go on."""
    # Opening rows of a stack may reach into one segment more.
    return num_lanes * (2 if schema.stacks else 1) + max(2, num_lanes // 4)


def _limited_slots(
    schema: Schema, num_lanes: int, layout: SegmentLayout, memory_limit: int, whole: int
) -> int:
    """Return how many slots fit a limit, at most `whole`; ConfigError where too few do."""
    memory_limit = as_count("memory_limit", memory_limit)
    least = _least_slots(schema, num_lanes)
    if memory_limit // layout.file_bytes < least:
        needed = least * layout.file_bytes
        raise ConfigError(
            f"memory_limit={memory_limit}: {num_lanes} lanes need at least {least} segments of "
            f"{layout.file_bytes} bytes in memory, {needed} bytes; fewer lanes, or a smaller "
            "capacity, which has smaller segments, need less",
            field="memory_limit",
            expected=f"at least {needed}",
            got=memory_limit,
        )
    return min(whole, memory_limit // layout.file_bytes)


def _check_mappings(plan: RingPlan) -> None:
    """Raise ConfigError where the process could not map all files of the ring."""
    most = most_mappings()
    if plan.segment_count + _OTHER_MAPPINGS > most:
        raise ConfigError(
            f"memory_limit: the ring's {plan.segment_count} segment files are mapped, and a "
            f"process has at most {most} mappings here; raise vm.max_map_count, or use fewer lanes "
            "with rows of shape (num_envs, *shape)",
            field="memory_limit",
            expected=f"vm.max_map_count of at least {plan.segment_count + _OTHER_MAPPINGS}",
            got=most,
        )


def _check_stacks(schema: Schema, capacity: int, num_lanes: int, rows: int) -> None:
    """Raise ConfigError where a step's opening rows could not lie in two segments."""
    depth = max(pair.depth for pair in schema.stacks)
    if rows >= depth:
        return
    least = 1 << (depth - 1).bit_length()
    enough = 64 * least  # rule 1 of the page; below it where rows are small
    per_lane = next(
        (n for n in range(1, enough) if segment_rows(schema.row_bytes, n) >= depth), enough
    )
    if segment_rows(schema.row_bytes, per_lane) < depth:
        raise ConfigError(
            f"stacks of {depth} rows of {schema.row_bytes} bytes do not fit a segment",
            field="stack",
            expected="rows of at most a stack's share of a segment",
            got=schema.row_bytes,
        )
    raise ConfigError(
        f"capacity={capacity}: stacks of {depth} need at least {per_lane} rows in each of the "
        f"{num_lanes} lanes",
        field="capacity",
        expected=f"at least {per_lane * num_lanes}",
        got=capacity,
    )


def default_bytes(field: Field) -> bytes | None:
    """Return one row of a mutable field's default, or None where `add` must be given a value."""
    if field.default is None:
        return None
    return np.full(field.shape, default_value(field), numpy_dtype(field)).tobytes()


def default_value(field: Field) -> Any:
    """Return one element of a field's default as its NumPy dtype carries it."""
    if field.dtype != "bfloat16":
        return field.default
    # The upper half of a float32, rounded to nearest even.
    bits = int(np.float32(field.default).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def numpy_dtype(field: Field) -> np.dtype[Any]:
    """Return the NumPy dtype that carries a field (bfloat16 as uint16)."""
    return np.dtype(field.spec.numpy)


def _place_mutables(fields: dict[str, Field], capacity: int) -> tuple[int, list[int]]:
    starts, cursor = [], 0
    for field in fields.values():
        starts.append(cursor)
        cursor += round_to_page(field.row_bytes * capacity)
    return cursor, starts


def _warn_if_wasteful(plan: RingPlan) -> None:
    rows_bytes = plan.capacity * plan.schema.row_bytes
    taken_bytes = plan.arena_bytes - plan.mutable_bytes
    is_wasteful = taken_bytes > max(_MEMORY_RATIO * rows_bytes, _WORTH_A_WARNING_BYTES)
    if plan.num_lanes > _MANY_LANES or is_wasteful or _has_many_files(plan):
        logger.warning(
            "a ring takes %d MiB for %d MiB of rows, in %d segment files: %s",
            taken_bytes >> 20,
            rows_bytes >> 20,
            plan.segment_count,
            _cause_of_waste(plan),
        )


def _has_many_files(plan: RingPlan) -> bool:
    """Whether files are many because they are small; those of a large ring are large."""
    payload = plan.segment_rows * plan.schema.row_bytes
    return plan.segment_count > _MANY_FILES and payload < SEGMENT_MIN_BYTES


def _cause_of_waste(plan: RingPlan) -> str:
    """Return what takes the memory beside the rows, or the files, and what to do about it."""
    payload = plan.segment_rows * plan.schema.row_bytes
    spare_bytes = (plan.slot_count - plan.capacity // plan.segment_rows) * payload
    padding_bytes = plan.slot_count * (plan.layout.file_bytes - payload)
    # Padding is there with one lane too, in fewer segments.
    of_lanes = spare_bytes >= padding_bytes // plan.num_lanes or _has_many_files(plan)
    if plan.num_lanes > 1 and of_lanes:
        return (
            f"each of its {plan.num_lanes} lanes has segments of its own; one lane whose rows have "
            "shape (num_envs, *shape) takes less"
        )
    return (
        f"each of its {len(plan.layout.fields)} fields takes whole pages in each segment of "
        f"{plan.segment_rows} rows; fewer and larger fields, or more rows, waste less"
    )
