"""A prioritised ring through snapshots, kills and restores draws what it would have drawn."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import await_writers_end, committed

import pyengine

LANES, ROWS = 3, 1001  # the capacity is no power of two
BETA = pyengine.LinearSchedule(0.4, 1.0, 40)


def ring(
    kind: type[pyengine.ReplayBuffer] = pyengine.PrioritizedReplayBuffer, **options: Any
) -> Any:
    schema = {"obs": ((5,), "float32"), "number": "int64"}
    return kind(schema, LANES * ROWS, num_envs=LANES, seed=11, **options)


def prioritized(**options: Any) -> pyengine.PrioritizedReplayBuffer:
    buffer: pyengine.PrioritizedReplayBuffer = ring(beta=BETA, **options)
    return buffer


def insert(buffer: Any, steps: range) -> None:
    numbers = np.repeat(np.asarray(steps)[:, None], LANES, 1)
    obs = np.repeat(numbers[..., None], 5, 2).astype(np.float32)
    buffer.extend(number=numbers, obs=obs)


def learn(buffer: pyengine.PrioritizedReplayBuffer, step: int) -> bytes:
    """Insert, draw and give priorities that follow from what was drawn; return what that was."""
    insert(buffer, range(step, step + 1))
    batch = buffer.sample(64)
    assert (batch["obs"] == batch["number"][:, None]).all()
    buffer.update_priorities(batch.indices, np.abs(np.sin(batch["number"] + batch.weights * step)))
    return batch.indices.tobytes() + batch.weights.tobytes()


def digest(buffer: pyengine.PrioritizedReplayBuffer) -> str:
    rows = buffer[buffer.refs()]
    state = hashlib.sha256(str(buffer.header_record()["sampler"]).encode())
    for part in (rows["number"], buffer.column("@priority")[:], *_nodes(buffer)):
        state.update(part)
    return state.hexdigest()


def _nodes(buffer: pyengine.PrioritizedReplayBuffer) -> list[bytes]:
    assert buffer.storage is not None
    return [part for level in buffer.storage.core.priority_tree() for part in level]


def fill(buffer: Any) -> None:
    insert(buffer, range(ROWS + 377))  # wrapped, in mid-lap


def save(send: Any, run_dir: str) -> None:
    with pyengine.SnapshotEngine(run_dir, keep_last=1) as engine, prioritized() as buffer:
        engine.track(replay=buffer)
        engine.restore()
        fill(buffer)
        random = np.random.default_rng(2)
        buffer.update_priorities(buffer.refs(), random.lognormal(0, 3, len(buffer)))
        for step in range(5):
            learn(buffer, ROWS + 377 + step)
        engine.snapshot(1).wait(60)
        send(("digest", digest(buffer)))
        send(("draws", draw_many(buffer)))


def draw_many(buffer: pyengine.PrioritizedReplayBuffer) -> list[bytes]:
    """10,000 draws, beta annealed, with updates in between."""
    drawn = []
    for step in range(40):
        batch = buffer.sample(250)
        drawn.append(batch.indices.tobytes() + batch.weights.tobytes())
        buffer.update_priorities(batch.indices, batch.weights * step)
    return drawn


def resume(send: Any, run_dir: str, eager: bool, goes_on: bool) -> None:
    with pyengine.SnapshotEngine(run_dir, keep_last=1) as engine, prioritized() as buffer:
        engine.track(replay=buffer)
        report = engine.restore(eager=eager)
        send(("rows", report.component("replay").rows))
        send(("digest", digest(buffer)))
        if goes_on:
            send(("draws", draw_many(buffer)))
            engine.snapshot(2).wait(60)
            send(("after", digest(buffer)))


@pytest.mark.parametrize("eager", [False, True])
def test_indices_and_weights_are_those_without_the_restore(
    start: Any, tmp_path: Path, eager: bool
) -> None:
    run_dir = tmp_path / "run"
    saver = start(save, str(run_dir))
    before, draws = saver.receive("digest")[1], saver.receive("draws")[1]
    assert saver.join() == 0
    (first,) = committed(run_dir)

    resumed = start(resume, str(run_dir), eager, True)
    assert resumed.receive("rows")[1] == LANES * ROWS
    assert resumed.receive("digest")[1] == before
    assert resumed.receive("draws")[1] == draws
    after = resumed.receive("after")[1]
    assert resumed.join() == 0

    shutil.rmtree(run_dir / "snapshots" / first, ignore_errors=True)
    assert first not in committed(run_dir)
    again = start(resume, str(run_dir), eager, False)
    assert again.receive("rows")[1] == LANES * ROWS
    assert again.receive("digest")[1] == after
    assert again.join() == 0


def train(send: Any, run_dir: str, steps: int, kill_at: int | None) -> None:
    with (
        pyengine.SnapshotEngine(run_dir, every_steps=7, budget=None) as engine,
        prioritized() as buffer,
    ):
        engine.track(replay=buffer)
        report = engine.restore()
        send(("restored", report.next_step))
        if not report:
            fill(buffer)
        for step in range(report.next_step, steps):
            send(("batch", step, learn(buffer, ROWS + 377 + step)))
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            engine.tick(step)
        send(("end", digest(buffer)))


def test_a_killed_run_draws_the_batches_of_one_that_was_not(
    start: Any, token: str, tmp_path: Path
) -> None:
    steps = 60
    with prioritized() as buffer:
        fill(buffer)
        expected = [learn(buffer, ROWS + 377 + step) for step in range(steps)]
        end = digest(buffer)
    run_dir = str(tmp_path / "run")
    assert start(train, run_dir, steps, 24).join() == -signal.SIGKILL
    await_writers_end(token)
    assert start(train, run_dir, steps, 49).join() == -signal.SIGKILL
    await_writers_end(token)
    last = start(train, run_dir, steps, None)
    begin = last.receive("restored")[1]
    assert 0 < begin <= 50
    for step in range(begin, steps):
        assert last.receive("batch")[1:] == (step, expected[step])
    assert last.receive("end")[1] == end
    assert last.join() == 0


def add_and_die(send: Any, run_dir: str, is_plain: bool) -> None:
    kind = pyengine.ReplayBuffer if is_plain else pyengine.PrioritizedReplayBuffer
    with pyengine.SnapshotEngine(run_dir) as engine, ring(kind) as buffer:
        engine.track(replay=buffer)
        engine.restore()
        fill(buffer)
        if not is_plain:
            buffer.update_priorities(buffer.refs()[:4], [0.5, 8.0, 2.0, 0.25])
        engine.snapshot(1).wait(60)
        insert(buffer, range(ROWS + 377, ROWS + 400))
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("replay", ["exact", "latest"])
def test_rows_without_priorities_get_the_documented_default(
    start: Any, token: str, tmp_path: Path, is_plain: bool, replay: Any
) -> None:
    run_dir = str(tmp_path / "run")
    assert start(add_and_die, run_dir, is_plain).join() == -signal.SIGKILL
    await_writers_end(token)
    highest = np.float32(1 if is_plain else 8 + 1e-6)
    with pyengine.SnapshotEngine(run_dir) as engine, prioritized(alpha=0.3) as buffer:
        engine.track(replay=buffer)
        report = engine.restore(replay=replay)
        note = report.component("replay").note
        assert ("the snapshot has no priorities" if is_plain else "alpha was 0.6, is 0.3") in note
        assert buffer.max_priority == highest
        rows = ROWS + 377 + (23 if replay == "latest" else 0)
        assert buffer.total_count.tolist() == [rows] * LANES
        refs = buffer.refs()
        later = buffer.refs_at(np.arange(buffer.capacity))
        stored = buffer.column("@priority")[:]
        expected = np.where(later // LANES >= ROWS + 377, highest, np.float32(1))
        if not is_plain and replay == "exact":
            given = np.array([0.5, 8.0, 2.0, 0.25]) + 1e-6
            assert np.sort(stored[stored != 1]).tolist() == np.sort(given).astype("f").tolist()
        else:
            assert stored.tolist() == expected.tolist()
        batch = buffer.sample(3000)
        assert np.isin(batch.indices, refs).all()
        leaves = stored.astype(float) ** 0.3
        place = batch.indices % LANES * ROWS + batch.indices // LANES % ROWS
        weights = (leaves.min() / leaves[place]) ** buffer.sample(1, 1.0).weights.dtype.type(0.4)
        np.testing.assert_allclose(batch.weights, weights, rtol=1e-3)


def test_a_plain_ring_does_not_take_a_prioritised_ones_rows(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    assert start(add_and_die, run_dir, False).join() == -signal.SIGKILL
    await_writers_end(token)
    with pyengine.SnapshotEngine(run_dir) as engine, ring(pyengine.ReplayBuffer) as buffer:
        engine.track(replay=buffer)
        with pytest.raises(pyengine.errors.StateMismatchError, match="@priority"):
            engine.restore()
