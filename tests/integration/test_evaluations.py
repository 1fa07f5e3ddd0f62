"""Evaluation records live with the run: in every later snapshot, back to the step of a restore."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from program import tracking

import pyengine
from pyengine import errors
from pyengine.format import evaluations as format_evaluations


def saved(info: pyengine.SnapshotInfo) -> Any:
    """Return what a snapshot's meta.json says of evaluations."""
    return json.loads((Path(info.path) / "meta.json").read_text())["evaluations"]


def test_records_are_in_every_later_snapshot_and_come_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with tracking(run_dir) as (engine, _training):
        engine.restore()
        assert saved(engine.snapshot(0).wait(60)) == []
        made = engine.record_evaluation(0, mean_return=12.5, length=100)
        assert (made.step, made.metrics) == (0, {"mean_return": 12.5, "length": 100.0})
        engine.snapshot(1).wait(60)
        engine.record_evaluation(1, mean_return=math.nan, worst=-math.inf)
        info = engine.snapshot(2).wait(60)
        assert info.evaluations == 2
        records = engine.evaluations
    assert saved(info)[1]["metrics"] == {"mean_return": "nan", "worst": "-inf"}
    with tracking(run_dir) as (engine, _training):
        report = engine.restore()
        assert [record.step for record in report.evaluations] == [0, 1]
        assert report.evaluations == engine.evaluations
        assert report.evaluations[0] == records[0]
        assert math.isnan(report.evaluations[1].metrics["mean_return"])
        assert not any("evaluation" in note for note in report.notes)
        engine.snapshot(3).wait(60)
    assert [info.evaluations for info in pyengine.open_run(run_dir).snapshots] == [1, 2, 2]


def test_records_of_steps_after_the_restored_one_are_dropped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with tracking(run_dir) as (engine, _training):
        engine.restore()
        for step in (3, 4, 5, 6):  # an evaluator that runs ahead of the snapshot
            engine.record_evaluation(step, mean_return=float(step))
        engine.snapshot(4).wait(60)
    with tracking(run_dir) as (engine, _training):
        report = engine.restore()
        assert [record.step for record in report.evaluations] == [3, 4]
        assert "2 evaluation records of steps after 4 were dropped" in report.notes
        engine.record_evaluation(5, mean_return=0.0)
        report = engine.restore()
        assert [record.step for record in engine.evaluations] == [3, 4]
        assert "1 evaluation records made since that snapshot were dropped" in report.notes


def test_a_run_without_counters_keeps_them_too(tmp_path: Path) -> None:
    """meta.json belongs to no component there, and is read nevertheless."""
    with pyengine.SnapshotEngine(tmp_path / "run", track_rng=False) as engine:
        engine.restore()
        engine.record_evaluation(0, mean_return=1.0)
        engine.snapshot(0).wait(60)
        assert [record.step for record in engine.restore().evaluations] == [0]


def test_what_is_no_evaluation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        for step, metrics in (
            (0, {}),
            (-1, {"a": 1.0}),
            (1.5, {"a": 1.0}),
            (0, {"a": "high"}),
            (0, {"a" * 101: 1.0}),
            (0, {f"m{i}": 1.0 for i in range(65)}),
        ):
            with pytest.raises(errors.ConfigError):
                # Wrong on purpose.
                engine.record_evaluation(step, **metrics)  # type: ignore[arg-type]
        assert engine.evaluations == ()
    assert format_evaluations.EVALUATIONS_MAX == 10_000


def test_their_number_and_size_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyengine.engine.evaluations.EVALUATIONS_MAX", 3)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        for step in range(3):
            engine.record_evaluation(step, value=1.0)
        with pytest.raises(errors.ConfigError, match="record every n-th"):
            engine.record_evaluation(3, value=1.0)
        assert len(engine.evaluations) == 3
        monkeypatch.setattr("pyengine.engine.evaluations.EVALUATIONS_MAX", 10)
        monkeypatch.setattr("pyengine.engine.evaluations.EVALUATIONS_MAX_BYTES", 250)
        with pytest.raises(errors.ConfigError, match="bytes"):
            engine.record_evaluation(3, value=1.0)
        engine.snapshot(3).wait(60)
