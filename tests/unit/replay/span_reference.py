"""What spans rows, slowly: whole stacks kept as they were given, every window listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyengine import Field, ReplayBuffer, Schema

CAMERA, POSE = 3, 1
"""Depths of the two pairs."""

SCHEMA = Schema(
    {
        "obs": {
            "camera": Field((6, 2), "uint8", stack=CAMERA),
            "pose": Field((), "float32", stack=POSE),
        },
        "reward": "float32",
        "value": "float64",
        "next_obs": {
            "camera": Field((6, 2), "uint8", stack=CAMERA, next_of="obs/camera"),
            "pose": Field((), "float32", stack=POSE, next_of="obs/pose"),
        },
        "end": "bool",
        "score": Field((), "float64", mutable=True, default=0.5),
    },
    episode_end=("end",),
)
LAST = ("next_obs/camera", "next_obs/pose", "end")
NAMES = tuple(SCHEMA)


@dataclass
class Row:
    """An opening row has no values, and the frames that it keeps."""

    start: int  # row id of the first row of its sequence
    values: dict[str, Any] | None
    frames: tuple[Any, Any]
    is_dropped: bool = False


@dataclass
class Lane:
    capacity: int
    reach: int
    rows: list[Row] = field(default_factory=list)
    tail: int = 0
    pending: bool = True
    may_continue: bool = False

    def is_there(self, row: int) -> bool:
        return self.tail <= row < len(self.rows) and not self.rows[row].is_dropped

    def has_frames(self, row: int, start: int) -> bool:
        """Whether the rows before `row` are there, as far as a row's stacks reach."""
        return all(self.is_there(r) for r in range(max(start, row - self.reach), row))

    def is_valid(self, row: int) -> bool:
        if not self.is_there(row) or self.rows[row].values is None:
            return False
        return self.reach == 0 or self.has_frames(row, self.rows[row].start)

    def valid(self) -> list[int]:
        return [row for row in range(self.tail, len(self.rows)) if self.is_valid(row)]

    def continues(self, row: int) -> bool:
        """Whether a row is valid and goes on from the one before it."""
        return self.is_valid(row) and self.is_start(row) is False

    def is_start(self, row: int) -> bool:
        return row == self.rows[row].start

    def push(self, row: Row) -> None:
        self.rows.append(row)
        self.tail = max(self.tail, len(self.rows) - self.capacity)


class Reference:
    """A ring of whole stacks, or of plain rows: every question is asked row by row."""

    def __init__(self, lanes: int, per_lane: int, *, stacked: bool = True) -> None:
        self.stacked = stacked
        self.lanes = [Lane(per_lane, CAMERA if stacked else 0) for _ in range(lanes)]

    def add(self, index: int, values: dict[str, Any]) -> None:
        lane = self.lanes[index]
        if self.stacked and not self._goes_on(lane, values):
            start = len(lane.rows)
            for frames in opening_frames(values):
                lane.push(Row(start, None, frames))
        elif not self.stacked and lane.pending:
            start = len(lane.rows)
        else:
            start = lane.rows[-1].start
        newest = values["next_obs/camera"][-2:], values["next_obs/pose"]
        lane.push(Row(start, values, newest))
        lane.pending = bool(values["end"])
        lane.may_continue = True

    def _goes_on(self, lane: Lane, values: dict[str, Any]) -> bool:
        if lane.pending or not lane.may_continue:
            return False
        row = lane.rows[-1].values
        assert row is not None  # an opening row is never the last one
        return all(
            np.array_equal(row[f"next_{name}"], values[name]) for name in ("obs/camera", "obs/pose")
        )

    def drop(self, index: int, first: int, count: int) -> None:
        lane = self.lanes[index]
        for row in range(max(first, lane.tail), min(first + count, len(lane.rows))):
            lane.rows[row].is_dropped = True
        self._look_at_newest(lane)

    def _look_at_newest(self, lane: Lane) -> None:
        total = len(lane.rows)
        if not lane.rows or not lane.has_frames(total, lane.rows[-1].start):
            lane.may_continue = False

    def restore(self, *, keep_breaks: bool, replay_last: int | None) -> None:
        for lane in self.lanes:
            lane.pending = lane.pending or not keep_breaks
            if replay_last is not None:
                lane.tail = max(lane.tail, len(lane.rows) - replay_last // len(self.lanes))
            # What was forgotten by a drop long ago may be known again.
            lane.may_continue = bool(lane.rows) and lane.tail < len(lane.rows)
            self._look_at_newest(lane)

    def refs(self) -> list[int]:
        count = len(self.lanes)
        return sorted(r * count + i for i, lane in enumerate(self.lanes) for r in lane.valid())

    def values(self, ref: int) -> dict[str, Any]:
        row, lane = divmod(ref, len(self.lanes))
        values = self.lanes[lane].rows[row].values
        assert values is not None
        return values

    def breaks(self, index: int) -> list[int]:
        """Valid rows that start a sequence: behind opening rows, or first behind dropped ones."""
        lane, found = self.lanes[index], set()
        valid = lane.valid()
        for row in valid:
            before = lane.rows[row - 1] if row > lane.tail else None
            if lane.is_start(row) or (before is not None and before.values is None):
                found.add(row)
        for row in range(lane.tail, len(lane.rows)):
            if lane.rows[row].is_dropped:
                found.update([v for v in valid if v > row][:1])
        return sorted(found)

    def steps(self, ref: int, most: int) -> list[int]:
        """The refs of up to `most` steps from a valid one."""
        count = len(self.lanes)
        row, index = divmod(ref, count)
        lane, found = self.lanes[index], [ref]
        while len(found) < most and row + len(found) < len(lane.rows):
            if not lane.continues(row + len(found)):
                break
            found.append(ref + len(found) * count)
        return found

    def windows(self, length: int, *, pad: bool) -> list[list[int]]:
        """Every window of a sequence, as refs."""
        count, found = len(self.lanes), []
        for index, lane in enumerate(self.lanes):
            runs: list[list[int]] = []
            for row in lane.valid():
                if runs and runs[-1][-1] == row - 1 and lane.continues(row):
                    runs[-1].append(row)
                else:
                    runs.append([row])
            for run in runs:
                refs = [row * count + index for row in run]
                found += [refs[i : i + length] for i in range(len(refs) - length + 1)]
                if pad and len(refs) < length:
                    found.append(refs)
        return found


def opening_frames(values: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The fewest rows of frames from which both stacks come back."""
    camera = values["obs/camera"].reshape(CAMERA, 2, 2)
    for count in range(1, CAMERA + 1):
        kept = camera[CAMERA - count :]
        if all(np.array_equal(frame, kept[0]) for frame in camera[: CAMERA - count]):
            return [(frame.reshape(2, 2), values["obs/pose"]) for frame in kept]
    raise AssertionError("a stack always comes back from all of its frames")


def n_step_return(rewards: list[Any], gamma: float, dtype: Any) -> tuple[Any, np.float32]:
    """Return (sum, discount): Python's floats are doubles."""
    total, factor = float(rewards[0]), gamma
    for reward in rewards[1:]:
        total = total + factor * float(reward)
        factor = factor * gamma
    return dtype(total), np.float32(factor)


class Player:
    """Drives ring and reference through the same history, with frames so few that they repeat."""

    def __init__(self, ring: ReplayBuffer, reference: Reference) -> None:
        self.ring = ring
        self.reference = reference
        self.seen: list[dict[str, Any] | None] = [None] * len(reference.lanes)

    def step(self, lane: int, random: np.random.Generator) -> dict[str, Any]:
        """A transition that continues the lane's last one, or begins an episode of any kind."""
        last = self.seen[lane]
        frame = random.integers(0, 2, (2, 2)).astype(np.uint8)
        pose = np.float32(random.integers(0, 3))
        if last is None or last["end"] or random.random() < 0.15:
            kind = random.integers(0, 3)
            first = random.integers(0, 2, (CAMERA, 2, 2)).astype(np.uint8)
            if kind == 0:
                first[:] = first[-1]
            elif kind == 1:
                first[:-1] = 0
            camera, before = first.reshape(6, 2), np.float32(random.integers(0, 3))
        else:
            camera, before = last["next_obs/camera"], last["next_obs/pose"]
        values = {
            "obs/camera": camera,
            "obs/pose": before,
            "reward": np.float32(random.normal()),
            "value": np.float64(random.normal()),
            "next_obs/camera": np.concatenate([camera[2:], frame]),
            "next_obs/pose": pose,
            "end": np.bool_(random.random() < 0.15),
            "score": np.float64(random.random()),
        }
        self.seen[lane] = values
        return values

    def add(self, random: np.random.Generator, *, masked: bool) -> None:
        lanes = len(self.reference.lanes)
        mask = random.random(lanes) < 0.6 if masked else np.ones(lanes, bool)
        rows = []
        for lane in range(lanes):
            former = self.seen[lane]
            rows.append(self.step(lane, random))
            if mask[lane]:
                self.reference.add(lane, rows[lane])
            else:
                self.seen[lane] = former
        columns = {name: column[0] for name, column in self.columns([rows]).items()}
        self.ring.add(**columns, mask=mask if masked else None)

    def extend(self, random: np.random.Generator, lane: int | None) -> None:
        lanes = range(len(self.reference.lanes)) if lane is None else [lane]
        steps = int(random.integers(0, 12))
        rows = [[self.step(index, random) for index in lanes] for _ in range(steps)]
        for row in rows:
            for index, values in zip(lanes, row, strict=True):
                self.reference.add(index, values)
        columns = self.columns(rows)
        if rows and lane is None:
            self.ring.extend(**columns)
        elif rows:
            self.ring.extend(**{name: value[:, 0] for name, value in columns.items()}, lane=lane)

    def columns(self, rows: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """What `extend` takes of rows, step by step."""
        return {
            name: np.array([[values[name] for values in row] for row in rows])
            for name in NAMES
            if rows
        }
