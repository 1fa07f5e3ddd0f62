"""The rows that a restore gives back: all, the newest, none; and where episodes break."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from program import Training, new_ring, tracking

import pyengine


def test_only_the_newest_rows_come_back_where_that_is_asked_for(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    with tracking(run_dir) as (engine, training):
        report = engine.restore(replay_last=12)
        assert report.component("replay").rows == 12
        assert "replay_last=12" in report.component("replay").note
        numbers = training.ring[training.ring.refs()]["number"]
        assert np.unique(numbers).tolist() == [17, 18, 19]
        for step in range(20, 60):
            training.step(step)
        engine.snapshot(59).wait(60)
        digest = training.digest()
    with tracking(run_dir, seed=6) as (engine, again):
        engine.restore()
        assert again.digest() == digest


@pytest.mark.parametrize("replay_last", [0, 1])
def test_a_ring_restored_without_rows_in_mid_segment_takes_rows_again(
    saved: tuple[Path, dict[str, str]], replay_last: int
) -> None:
    """Restored, saved and restored while empty, then filled until it wraps."""
    run_dir, _ = saved
    for step in (20, 21):
        training = Training()
        assert int(training.ring.total_count[0]) == 0
        with pyengine.SnapshotEngine(run_dir) as engine:
            training.track(engine)
            report = engine.restore(replay_last=replay_last)
            assert (report.rows, len(training.ring)) == (0, 0)
            assert training.ring.total_count.tolist() == [20] * training.ring.num_envs
            engine.snapshot(step).wait(60)
    for count in (3, 40):
        training = Training()
        with pyengine.SnapshotEngine(run_dir) as engine:
            training.track(engine)
            engine.restore(eager=count == 40)
            first = int(training.ring.total_count[0])
            for number in range(first, first + count):
                training.insert(number)
            engine.snapshot(first + count).wait(60)
            rows = training.ring[training.ring.refs()]
            kept = min(first + count - 20, training.ring.capacity // training.ring.num_envs)
            assert rows["number"][-1] == first + count - 1
            assert len(rows["number"]) == kept * training.ring.num_envs
            assert np.array_equal(rows["check"], rows["number"] * 3 + 1)


def test_a_ring_that_is_skipped_is_empty_whatever_it_held(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    with tracking(run_dir) as (engine, training):
        for number in range(3):
            training.insert(100 + number)
        assert engine.restore(replay="skip").component("replay").rows == 0
        assert (len(training.ring), training.ring.total_count.tolist()) == (0, [0, 0, 0, 0])
        training.insert(7)
        engine.snapshot(20).wait(60)
    with tracking(run_dir, seed=6) as (engine, again):
        engine.restore()
        assert again.ring[again.ring.refs()]["number"].tolist() == [7] * again.ring.num_envs


def test_environment_state_keeps_episodes_whole_and_its_absence_breaks_them(
    tmp_path: Path,
) -> None:
    state = {"frame": 3}
    environment = pyengine.EnvironmentState(get=lambda: dict(state), set=state.update)
    for name, tracked in (("with", {"environment": environment}), ("without", {})):
        run_dir = tmp_path / name
        ring = new_ring()
        with pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(replay=ring, **tracked)
            engine.restore()
            Training(ring=ring).insert(0)
            engine.snapshot(0).wait(60)
        ring = new_ring()
        with pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(replay=ring, **tracked)
            engine.restore()
            Training(ring=ring).insert(1)
        assert ring.breaks(0).tolist() == ([0] if tracked else [0, 1])
