"""Snapshots of weights alone, milestones, and what stays of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from program import Training

import pyengine
from pyengine import errors
from pyengine.catalog.branch import branch_run


def _steps(run_dir: Path) -> list[tuple[int, str, bool]]:
    found = pyengine.open_run(run_dir).snapshots
    return [(info.global_step, info.level.name, info.milestone) for info in found]


def _weights(training: Training) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in training.net.state_dict().items()}


@pytest.fixture
def light(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A run with one snapshot of weights, at step 3, and those weights."""
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        for step in range(4):
            training.step(step)
        info = engine.snapshot(3, weights_only=True).wait(60)
        assert info.is_weights_only
        return tmp_path / "run", _weights(training)


def test_a_snapshot_of_weights_holds_modules_and_lists_what_it_leaves_out(
    light: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    run_dir, weights = light
    (info,) = pyengine.open_run(run_dir).snapshots
    status = {one.name: (one.kind, one.status, one.reason) for one in info.components}
    alone = "a snapshot of weights alone"
    assert status == {
        "policy": ("module", "saved", None),
        "optimizer": ("optimizer", "excluded", alone),
        "scheduler": ("scheduler", "excluded", alone),
        "counters": ("counters", "excluded", alone),
        "explorer": ("rng", "excluded", alone),
        "process_rng": ("rng", "excluded", alone),
        "replay": ("ring", "excluded", alone),
    }
    assert {record.path for record in info.files} == {"model/policy.safetensors", "meta.json"}
    loaded = pyengine.load(run_dir, only=["policy"])["policy"]
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


def test_a_restore_refuses_to_go_on_from_weights_alone_unless_it_is_told_to(
    light: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    run_dir, weights = light
    training = Training(seed=1)
    before = _weights(training)
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        with pytest.raises(errors.WeightsOnlyError, match=r"restore\(weights=True\)") as raised:
            engine.restore()
        assert raised.value.snapshots == ("step-00000003.g0001.s0001",)
        assert all(torch.equal(before[name], now) for name, now in _weights(training).items())
        with pytest.raises(errors.UnrestoredRunError):
            engine.tick(4)
        report = engine.restore(weights=True)
        assert (report.next_step, report.level and report.level.name) == (4, "weights")
        found = {one.name: one.found for one in report.components}
        assert found.pop("policy") == "restored"
        assert set(found.values()) == {"skipped"}
        assert found.keys() >= {"optimizer", "replay", "process_rng", "counters"}
        assert all(torch.equal(weights[name], now) for name, now in _weights(training).items())
        training.step(4)
        engine.snapshot(4).wait(60)
    again = Training(seed=2)
    with pyengine.SnapshotEngine(run_dir) as engine:
        again.track(engine)
        assert engine.restore().global_step == 4
        assert again.digest() == training.digest()


@pytest.mark.parametrize("replay", ["exact", "latest"])
def test_a_plain_restore_takes_the_newest_snapshot_to_go_on_from(
    tmp_path: Path, replay: str
) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        for step in range(20):
            training.step(step)
        engine.snapshot(19).wait(60)
        digest, rows = training.digest(), len(training.ring)
        training.insert(20)
        light = engine.snapshot(20, weights_only=True).wait(60)
    run_dir = tmp_path / "run"
    assert pyengine.load(run_dir).keys() >= {"optimizer", "policy"}
    branch_run(f"{run_dir}@latest", str(tmp_path / "branch"))
    for path in (run_dir, tmp_path / "branch"):
        again = Training(seed=1)
        with pyengine.SnapshotEngine(path) as engine:
            again.track(engine)
            report = engine.restore(replay=replay)  # type: ignore[arg-type]
            assert report.global_step == 19
            passed = f"{light.name} was passed over: it holds weights alone"
            assert (passed in report.notes) == (path == run_dir)
            if replay == "exact":
                assert again.digest() == digest
            elif path == run_dir:
                assert len(again.ring) == rows + 4


def test_weights_of_a_full_snapshot_can_be_taken_alone(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        training.step(0)
        engine.snapshot(0).wait(60)
    again = Training(seed=1)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        again.track(engine)
        report = engine.restore(weights=True)
    assert report.component("optimizer").found == "skipped"
    assert again.counters["updates"] == 0
    assert torch.equal(again.net[0].weight, training.net[0].weight)


def test_with_damaged_full_snapshots_the_error_names_the_weights_that_are_left(
    tmp_path: Path,
) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.restore()
        training.step(0)
        full = engine.snapshot(0).wait(60)
        engine.snapshot(1, weights_only=True).wait(60)
    path = Path(full.path, "model", "policy.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        Training(seed=1).track(engine)
        with pytest.raises(errors.NothingRestorableError, match=r"restore\(weights=True\)"):
            engine.restore()
        assert engine.restore(weights=True).global_step == 1


@pytest.mark.parametrize(("kind", "level"), [("weights", "weights"), ("full", "state-complete")])
def test_milestones_are_never_pruned(tmp_path: Path, kind: str, level: str) -> None:
    run_dir = tmp_path / "run"
    for start in range(2):
        training = Training(seed=start)
        with pyengine.SnapshotEngine(
            run_dir,
            every_steps=4,
            budget=None,
            keep_last=1,
            when_busy="wait",
            milestone_every=10,
            milestones=kind,  # type: ignore[arg-type]
        ) as engine:
            training.track(engine)
            report = engine.restore()
            for step in range(report.next_step, report.next_step + 22):
                training.step(step)
                pending = engine.tick(step)
                if pending is not None:
                    pending.wait(60)
            engine.close(final=step)
    found = _steps(run_dir)
    # Where a full snapshot is due too, one of weights is the next tick's.
    expected = {"weights": [10, 21, 30, 41], "full": [10, 20, 30, 40]}[kind]
    milestones = [(step, name) for step, name, is_milestone in found if is_milestone]
    assert milestones == [(step, level) for step in expected]
    others = [(step, name) for step, name, is_milestone in found if not is_milestone]
    assert others[-1] == (43, "state-complete")
    # The one that was restored, and that of the line that was left, stay as well.
    assert len(others) <= 3


def test_of_other_snapshots_of_weights_the_last_ones_stay(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run", keep_last=2) as engine:
        training.track(engine)
        engine.restore()
        for step in range(8):
            training.step(step)
            engine.snapshot(step, weights_only=step % 2 == 1).wait(60)
    assert _steps(tmp_path / "run") == [
        (4, "state-complete", False),
        (5, "weights", False),
        (6, "state-complete", False),
        (7, "weights", False),
    ]


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 2)])
def test_the_best_snapshot_by_a_metric_stays(tmp_path: Path, mode: str, best: int) -> None:
    training = Training()
    with pyengine.SnapshotEngine(
        tmp_path / "run",
        keep_last=1,
        keep_best="loss",
        keep_best_mode=mode,  # type: ignore[arg-type]
    ) as engine:
        training.track(engine)
        engine.restore()
        for step, loss in enumerate([3.0, 9.0, 1.0, 5.0, 4.0]):
            engine.snapshot(step, {"loss": loss}).wait(60)
    assert [step for step, *_ in _steps(tmp_path / "run")] == [best, 4]


def test_a_wish_is_not_fulfilled_by_a_milestone_of_weights(tmp_path: Path) -> None:
    training = Training()
    with pyengine.SnapshotEngine(tmp_path / "run", milestone_every=10) as engine:
        training.track(engine)
        engine.restore()
        assert engine.tick(9) is None
        wished = engine._taker.wish()
        assert engine.tick(10) is wished
        assert not wished.wait(60).is_weights_only
        milestone = engine.tick(11)
        assert milestone is not None
        info = milestone.wait(60)
        assert (info.is_weights_only, info.milestone, info.global_step) == (True, True, 11)
        assert engine.tick(12) is None


@pytest.mark.parametrize(
    "settings",
    [{"milestone_every": 0}, {"milestones": "all"}, {"keep_best_mode": "best"}],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(errors.ConfigError, match=next(iter(settings))):
        pyengine.SnapshotEngine(tmp_path / "run", **settings)  # type: ignore[arg-type]
