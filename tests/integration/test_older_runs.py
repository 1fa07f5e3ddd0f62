"""Whole runs that older versions wrote are restored, and gone on with."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from program import ROWS_PER_LANE, Training, new_ring

import pyengine

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("version", ["v1"])
def test_a_run_of_an_older_version_is_restored_to_the_last_bit(
    tmp_path: Path, version: str, eager: bool
) -> None:
    told = json.loads((GOLDEN / version / "run_holds.json").read_text())
    with tarfile.open(GOLDEN / version / "run.tar.xz") as tar:
        tar.extractall(tmp_path)
    run_dir = tmp_path / "run"
    assert len(pyengine.open_run(run_dir).snapshots) == 2
    training = Training(seed=5, ring=new_ring(rows_per_lane=8))
    assert ROWS_PER_LANE != 8
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        report = engine.restore(eager=eager)
        assert report.snapshot is not None
        assert (report.snapshot.name, report.snapshot.run_id) == (told["snapshot"], told["run_id"])
        assert training.counters["updates"] == told["updates"]
        digest = training.digest()
        assert {name: digest[name] for name in told["digest"]} == told["digest"]
        assert (report.evaluations, report.snapshot.evaluations) == ((), 0)
        assert report.snapshot.metrics == {"return": 7.0}
        engine.record_evaluation(report.next_step, mean_return=1.0)
        training.step(report.next_step)
        engine.snapshot(report.next_step).wait(60)
        digest = training.digest()
    manifest = json.loads((run_dir / "latest" / "manifest.json").read_text())
    assert manifest["schema_version"] == 3
    again = Training(seed=6, ring=new_ring(rows_per_lane=8))
    with pyengine.SnapshotEngine(run_dir) as engine:
        again.track(engine)
        report = engine.restore(eager=eager)
        assert again.digest() == digest
        assert [record.metrics for record in report.evaluations] == [{"mean_return": 1.0}]
