"""Saved and tracked state that differ: refused by name, with nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import Training, new_ring, tracking

import pyengine
from pyengine import errors


def fresh_objects() -> dict[str, Any]:
    training = Training(seed=5)
    return {
        "policy": training.net,
        "optimizer": training.optimizer,
        "scheduler": training.scheduler,
        "replay": training.ring,
        "counters": training.counters,
        "explorer": training.rng,
        "training": training,
    }


@pytest.mark.parametrize("without", ["policy", "counters", "replay"])
def test_a_saved_component_that_is_not_tracked_is_refused(
    saved: tuple[Path, dict[str, str]], without: str
) -> None:
    run_dir, _ = saved
    objects = fresh_objects()
    training = objects.pop("training")
    del objects[without]
    if without == "policy":
        del objects["optimizer"], objects["scheduler"]
    before = training.digest()
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(**objects)
        with pytest.raises(errors.ComponentMismatchError, match=without) as caught:
            engine.restore()
        assert without in caught.value.not_tracked
        assert training.digest() == before, "nothing live changed"
        report = engine.restore(allow=caught.value.not_tracked)
        assert report.component(without).found == "not tracked"


def test_a_tracked_component_that_was_not_saved_is_refused(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    training = Training(seed=5)
    extra = {"x": 1}
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.track(extra=extra)
        with pytest.raises(errors.ComponentMismatchError) as caught:
            engine.restore()
        assert caught.value.not_saved == ("extra",)
        report = engine.restore(allow=["extra"])
        assert report.component("extra").found == "not saved"
        assert training.digest() == digest
    assert extra == {"x": 1}


def test_an_exclusion_is_visible_in_snapshot_and_report(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pyengine.SnapshotEngine(run_dir, track_rng=False) as engine:
        engine.track(counters={"n": 1})
        engine.exclude("teacher", "frozen, comes from the hub")
        info = engine.snapshot(0).wait(60)
    status = {record.name: (record.status, record.reason) for record in info.components}
    assert status["teacher"] == ("excluded", "frozen, comes from the hub")
    assert status["process_rng"] == ("excluded", "track_rng=False")
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(counters={"n": 0})
        with pytest.raises(errors.ComponentMismatchError, match="process_rng"):
            engine.restore()
        report = engine.restore(allow=["process_rng"])
    assert "track_rng=False" in report.component("process_rng").note


def test_state_that_does_not_fit_changes_nothing(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    training = Training(seed=5)
    training.ring = new_ring(5, rows_per_lane=16)
    before = training.digest()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        with pytest.raises(errors.StateMismatchError, match="capacity") as caught:
            engine.restore()
        assert caught.value.component == "replay"
        assert training.digest() == before
        # Not poisoned: nothing was touched. Another ring is wanted, or none.
        report = engine.restore(replay="skip")
        assert report.component("replay").found == "skipped"
        assert report.rows == 0
        assert len(training.ring) == 0


def test_another_kind_of_object_under_a_saved_name_is_refused(
    saved: tuple[Path, dict[str, str]],
) -> None:
    objects = fresh_objects()
    training = objects.pop("training")
    del objects["counters"]
    digest = training.digest()
    with pyengine.SnapshotEngine(saved[0]) as engine:
        engine.track(**objects, counters=np.zeros(3))
        with pytest.raises(errors.StateMismatchError) as refused:
            engine.restore()
    assert (refused.value.expected, refused.value.got) == ("tensor", "counters")
    assert training.digest() == digest


def test_a_schema_that_differs_is_told_by_its_fields(tmp_path: Path) -> None:
    fields = {"obs": ((3,), "float32"), "reward": "float32", "old": "bool"}
    with (
        pyengine.ReplayBuffer(fields, 16) as ring,
        pyengine.SnapshotEngine(tmp_path / "run") as engine,
    ):
        engine.track(replay=ring)
        ring.add(obs=[1, 2, 3], reward=1, old=True)
        engine.snapshot(0).wait(60)
    fields = {"obs": ((4,), "float32"), "reward": "float32"}
    with (
        pyengine.ReplayBuffer(fields, 16) as ring,
        pyengine.SnapshotEngine(tmp_path / "run") as engine,
    ):
        engine.track(replay=ring)
        with pytest.raises(errors.StateMismatchError) as caught:
            engine.restore()
    assert caught.value.expected == {"field 'obs'": "float32[4]", "field 'old'": "none"}
    assert caught.value.got == {"field 'obs'": "float32[3]", "field 'old'": "bool[]"}
    assert "reward" not in str(caught.value)


@pytest.mark.parametrize("settings", [{}, {"replay": "skip"}])
def test_rows_that_a_restore_replaces_are_told(
    saved: tuple[Path, dict[str, str]], settings: dict[str, Any]
) -> None:
    with tracking(saved[0]) as (engine, training):
        training.step(0)
        held = len(training.ring)
        report = engine.restore(**settings)
    assert held > 0
    assert f"{held} rows that it held before are gone" in report.component("replay").note
