"""What a restore gives back, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import committed
from program import Training, tracking

import pyengine
from pyengine import errors


def test_a_fresh_run_gives_a_false_report_and_step_zero(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        report = engine.restore()
    assert not report
    assert report.next_step == 0
    assert report.global_step is None
    assert "fresh" in str(report)


def test_the_report_names_every_component_and_prints_as_a_table(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    with tracking(run_dir) as (engine, training):
        report = engine.restore()
        assert training.digest() == digest
    assert report
    assert report.next_step == 20
    assert {component.name for component in report.components} == {
        "policy", "optimizer", "scheduler", "replay", "counters", "explorer", "process_rng",
    }  # fmt: skip
    assert all(component.found == "restored" for component in report.components)
    assert report.component("replay").rows == report.rows == 80
    assert report.component("policy").bytes > 0
    table = str(report).splitlines()
    assert any(line.split()[:3] == ["replay", "ring", "restored"] for line in table)
    assert report.snapshot is not None
    assert report.snapshot.algorithm == "dqn"
    assert report.snapshot.notes == {"env": "toy"}


def test_training_on_an_unrestored_run_is_refused(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, digest = saved
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        for call in (lambda: engine.tick(0), lambda: engine.snapshot(0)):
            with pytest.raises(errors.UnrestoredRunError, match="fresh=True"):
                call()
        engine.restore()
        assert training.digest() == digest
        engine.tick(20)


def test_fresh_begins_anew_and_keeps_the_old_line(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    old = committed(run_dir)
    with pyengine.SnapshotEngine(run_dir, fresh=True, keep_last=1) as engine:
        training = Training()
        training.track(engine)
        assert engine.restore().next_step == 0
        for step in range(3):
            training.step(step)
            engine.snapshot(step).wait(60)
    assert committed(run_dir) == [*old, "step-00000002.g0002.s0003"]


def test_restoring_twice_in_one_process_gives_the_snapshot_again(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    with tracking(run_dir) as (engine, training):
        engine.restore()
        for step in range(20, 45):
            training.step(step)
        later = training.digest()
        engine.restore()
        assert training.digest() == digest
        for step in range(20, 45):
            training.step(step)
        assert training.digest() == later
        engine.snapshot(44).wait(60)
    with tracking(run_dir, seed=6) as (engine, again):
        engine.restore()
        assert again.digest() == later


def test_a_restored_run_may_lose_the_snapshot_that_it_came_from(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    for begin, end in ((20, 24), (24, 29)):
        with tracking(run_dir, seed=begin, keep_last=1) as (engine, training):
            engine.restore()
            for step in range(begin, end):
                training.step(step)
            engine.snapshot(end - 1).wait(60)
            expected = training.digest()
    assert "step-00000019.g0001.s0001" not in committed(run_dir)
    with tracking(run_dir, seed=1) as (engine, training):
        engine.restore(eager=True)
        assert training.digest() == expected


def test_steps_that_were_made_before_are_refused(saved: tuple[Path, dict[str, str]]) -> None:
    with tracking(saved[0]) as (engine, _):
        assert engine.restore().next_step == 20
        for step in (0, 19):
            with pytest.raises(errors.ConfigError, match=r"report\.next_step = 20") as caught:
                engine.tick(step)
            assert (caught.value.expected, caught.value.got) == (20, step)
        with pytest.raises(errors.ConfigError, match="next_step"):
            engine.snapshot(18)
        engine.tick(20)


def test_a_run_that_has_ended_ends_again_with_its_last_step(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    with tracking(run_dir) as (engine, _):
        engine.restore()
        engine.close(final=19)
    with tracking(run_dir, seed=8) as (engine, training):
        assert engine.restore().next_step == 20
        assert training.digest() == digest


def test_what_cannot_be_saved_is_found_before_training(tmp_path: Path) -> None:
    counters: dict[str, object] = {}
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(counters=counters)
        counters["gone"] = (i for i in range(3))
        with pytest.raises(errors.CaptureError, match="gone"):
            engine.restore()
        counters.clear()
        assert not engine.restore()
