"""Runs whose rows are stacks of frames: killed and resumed, spoiled, and read to the last row."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_decoder import decode_snapshot
from processes import await_writers_end, committed

import pyengine
from pyengine.format.segment import iter_blocks

LANES, DEPTH = 2, 4


class Game:
    """Frames of noise; an episode begins with one frame, four, or blank ones before the first."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.obs = np.stack([self.first() for _ in range(LANES)])

    def first(self) -> np.ndarray:
        frames = self.random.integers(0, 256, (DEPTH, 5, 7), dtype=np.uint8)
        kind = self.random.integers(0, 3)
        if kind == 0:
            frames[:] = frames[-1]
        elif kind == 1:
            frames[:-1] = 0
        return frames

    def play(self) -> dict[str, np.ndarray]:
        frames = self.random.integers(0, 256, (LANES, 1, 5, 7), dtype=np.uint8)
        next_obs = np.concatenate([self.obs[:, 1:], frames], axis=1)
        over = self.random.random(LANES) < 0.1
        row = {
            "obs": self.obs,
            "reward": self.random.normal(size=LANES).astype(np.float32),
            "next_obs": next_obs,
            "terminated": over,
        }
        self.obs = next_obs.copy()
        for lane in np.flatnonzero(over):
            self.obs[lane] = self.first()
        return row

    def get(self) -> dict[str, Any]:
        return {"obs": self.obs, "random": self.random.bit_generator.state}

    def set(self, state: dict[str, Any]) -> None:
        self.obs = state["obs"]
        self.random.bit_generator.state = state["random"]


def new_ring() -> pyengine.ReplayBuffer:
    fields = {
        "obs": pyengine.Field((DEPTH, 5, 7), "uint8", stack=DEPTH),
        "reward": "float32",
        "next_obs": pyengine.Field((DEPTH, 5, 7), "uint8", stack=DEPTH, next_of="obs"),
        "terminated": "bool",
        "priority": pyengine.Field((), "float32", mutable=True, default=1.0),
    }
    schema = pyengine.Schema(fields, episode_end=("terminated",))
    return pyengine.ReplayBuffer(schema, capacity=LANES * 64, num_envs=LANES, seed=1)


def tracked(engine: pyengine.SnapshotEngine, *, with_game: bool = True) -> tuple[Any, Game]:
    ring, game = new_ring(), Game()
    if with_game:
        engine.track(replay=ring, game=pyengine.EnvironmentState(get=game.get, set=game.set))
    else:
        engine.track(replay=ring)
    return ring, game


def play(send: Any, run_dir: str, steps: int, snapshot: int | None, kill: bool) -> None:
    """Play, draw all that spans rows, and say what everything came to; or die by SIGKILL."""
    with pyengine.SnapshotEngine(run_dir) as engine:
        ring, game = tracked(engine)
        report = engine.restore()
        drawn = hashlib.sha256()
        for step in range(report.next_step, steps):
            ring.add(game.play())
            for batch in (
                ring.sample(3),
                ring.sample(3, n_step=3, gamma=0.9),
                ring.sample_sequences(2, 3, pad=True),
            ):
                drawn.update(b"".join(value.tobytes() for value in batch.values_by_field.values()))
            engine.tick(step)
            if step == snapshot:
                engine.snapshot(step).wait(60)
                drawn = hashlib.sha256()
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        send(("end", drawn.hexdigest(), contents(ring)))


def contents(ring: Any) -> dict[str, Any]:
    batch = ring.gather(ring.refs())
    values = {name: value.tobytes() for name, value in batch.values_by_field.items()}
    starts = [ring.breaks(lane).tolist() for lane in range(LANES)]
    return {**values, "refs": ring.refs().tolist(), "starts": starts, "len": len(ring)}


@pytest.mark.parametrize("snapshot", [1, 30, 33, 200])
def test_a_killed_run_of_stacks_goes_on_bit_for_bit(
    start: Any, token: str, tmp_path: Path, snapshot: int
) -> None:
    alone, killed = str(tmp_path / "alone"), str(tmp_path / "killed")
    steps = snapshot + 60
    expected = start(play, alone, steps, snapshot, False).receive("end")
    assert start(play, killed, snapshot + 9, snapshot, True).join() == -signal.SIGKILL
    await_writers_end(token)
    assert start(play, killed, steps, None, False).receive("end") == expected


def fill(run_dir: Path, steps: int) -> dict[int, dict[str, Any]]:
    """Play without a game to restore; return every transition of lane 0 by its row id."""
    seen = {}
    with pyengine.SnapshotEngine(run_dir) as engine:
        ring, game = tracked(engine, with_game=False)
        engine.restore()
        for _ in range(steps):
            row = game.play()
            ring.add(row)
            seen[int(ring.total_count[0]) - 1] = {name: value[0] for name, value in row.items()}
        engine.snapshot(0).wait(60)
    return seen


def test_the_page_alone_reads_stacks(tmp_path: Path) -> None:
    seen = fill(tmp_path, 150)
    directory = tmp_path / "snapshots" / committed(tmp_path)[-1]
    manifest = (directory / "manifest.json").read_bytes()
    _, values = decode_snapshot(lambda path: (directory / path).read_bytes(), manifest)
    rows = {row: value for (lane, row), value in values["replay"]["rows"].items() if lane == 0}
    with pyengine.SnapshotEngine(tmp_path) as engine:
        ring, _ = tracked(engine, with_game=False)
        engine.restore()
        assert [ref // LANES for ref in ring.refs().tolist() if ref % LANES == 0] == sorted(rows)
        batch = ring.gather([row * LANES for row in rows])
    for i, (row, values) in enumerate(rows.items()):
        for name in ("obs", "reward", "next_obs", "terminated"):
            np.testing.assert_array_equal(values[name], seen[row][name])
            np.testing.assert_array_equal(batch[name][i], seen[row][name])


@pytest.mark.parametrize("field", ["next_obs", "@start"])
def test_rows_whose_frames_are_damaged_are_dropped_with_those_that_need_them(
    tmp_path: Path, field: str
) -> None:
    seen = fill(tmp_path, 150)
    directory = tmp_path / "snapshots" / committed(tmp_path)[-1] / "buffer" / "replay"
    with new_ring() as ring:
        layout, rows = ring._plan.layout, ring._plan.segment_rows
    (number,) = (f.first_block for f in layout.fields if f.name == field)
    offset = next(start for block, start, _ in iter_blocks(layout) if block == number)
    full = sorted(directory.glob("segment-*-0-*-*-*.seg"), key=lambda p: int(p.name.split("-")[3]))
    first = int(full[1].name.split("-")[3])
    with full[1].open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
    with pyengine.SnapshotEngine(tmp_path, on_damage="drop") as engine:
        ring, _ = tracked(engine, with_game=False)
        engine.restore(fall_back=False)
        for _ in range(3):
            ring.sample(200)
        assert [(d.lane, d.first_row, d.row_count) for d in ring.dropped] == [(0, first, rows)]
        refs = ring.refs()
        found = (refs[refs % LANES == 0] // LANES).tolist()
        batch = ring.gather([row * LANES for row in found])
        for i, row in enumerate(found):
            np.testing.assert_array_equal(batch["obs"][i], seen[row]["obs"])
            np.testing.assert_array_equal(batch["next_obs"][i], seen[row]["next_obs"])
        there = [row for row in seen if row >= int(ring.tail[0])]
        gone = [row for row in there if row not in found]
        assert set(range(first, first + rows)) & set(there) <= set(gone)
        # Beside them those whose stacks reach into what is gone, or before the tail.
        assert len(gone) <= rows + 2 * DEPTH
        assert ring.breaks(0).tolist() == sorted(set(ring.breaks(0).tolist()))
        assert min(row for row in found if row >= first + rows) in ring.breaks(0)


def test_rows_after_the_snapshot_come_back_with_their_stacks(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    assert start(play, run_dir, 50, 20, True).join() == -signal.SIGKILL
    await_writers_end(token)
    with new_ring() as expected, pyengine.SnapshotEngine(run_dir) as engine:
        game = Game()
        for _ in range(50):
            expected.add(game.play())
        ring, _ = tracked(engine)
        engine.restore(replay="latest")
        assert contents(ring) == contents(expected)
        ring.add(game.play())
        expected.break_episode()
        expected.add(game.play())
        assert ring.breaks(0)[-1] == ring.total_count[0] - 1
