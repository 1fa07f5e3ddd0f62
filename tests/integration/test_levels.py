"""How a run goes on is declared, lowered by what is left out or different, and told by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from program import Training

import pyengine
from pyengine import errors
from pyengine.cli.main import main
from pyengine.format.levels import Level


def _save(run_dir: Path, *, threads: int = 1, **excluded: bool) -> pyengine.SnapshotInfo:
    training = Training()
    torch.set_num_threads(threads)
    try:
        with pyengine.SnapshotEngine(run_dir) as engine:
            training.track(engine)
            engine.declare_level("exact", condition="at an epoch border")
            for name, harmless in excluded.items():
                engine.exclude(name, f"why {name}", harmless=harmless)
            engine.restore()
            training.step(0)
            return engine.snapshot(0).wait(60)
    finally:
        torch.set_num_threads(1)


def _restore(run_dir: Path, **options: object) -> pyengine.RestoreReport:
    with pyengine.SnapshotEngine(run_dir) as engine:
        Training(seed=1).track(engine)
        return engine.restore(**options)  # type: ignore[arg-type]


def test_a_declared_level_comes_back_with_its_condition(tmp_path: Path) -> None:
    info = _save(tmp_path / "run")
    assert info.level == Level("exact", "at an epoch border")
    report = _restore(tmp_path / "run")
    assert report.level == info.level
    assert "level: exact (at an epoch border)" in str(report)


def test_what_nobody_declared_is_state_complete(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        Training().track(engine)
        engine.restore()
        level = engine.snapshot(0).wait(60).level
    assert level.name == "state-complete"
    assert level.reasons == ("nobody has declared it exact",)


def test_a_harmless_exclusion_keeps_the_level_and_another_one_does_not(tmp_path: Path) -> None:
    assert _save(tmp_path / "one", logs=True).level.name == "exact"
    info = _save(tmp_path / "two", logs=True, teacher=False)
    assert info.level == Level("partial", "at an epoch border", ("teacher: why teacher",))
    harmless = {one.name: one.harmless for one in info.components if one.status == "excluded"}
    assert harmless == {"logs": True, "teacher": False}


def test_other_threads_lower_the_level_and_are_named(tmp_path: Path) -> None:
    _save(tmp_path / "run", threads=2)
    level = _restore(tmp_path / "run").level
    assert level is not None
    assert level.name == "state-complete"
    assert level.reasons == ("threads: 2 when it was saved, 1 here",)


def test_other_flags_lower_the_level_and_are_named(tmp_path: Path) -> None:
    _save(tmp_path / "run")
    torch.use_deterministic_algorithms(True)
    try:
        report = _restore(tmp_path / "run")
    finally:
        torch.use_deterministic_algorithms(False)
    assert report.level is not None
    assert report.level.reasons == ("deterministic algorithms: False when it was saved, True here",)
    assert "level: state-complete (at an epoch border), exact when it was saved" in str(report)


def test_a_precision_that_was_set_by_torchs_newer_way_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs")

    class Matmul:
        fp32_precision = "tf32"

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    monkeypatch.setattr(torch.backends.cuda, "matmul", Matmul())
    assert _save(tmp_path / "run").runtime["float32 matmul precision"] == "tf32"


def test_another_version_lowers_the_level_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path / "run")
    monkeypatch.setattr(torch, "__version__", "9.9")
    level = _restore(tmp_path / "run").level
    assert level is not None
    assert level.name == "state-complete"
    assert [line.startswith("torch: ") and "9.9 here" in line for line in level.reasons] == [True]


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        ({"replay": "skip"}, "partial", 'replay: skipped (replay="skip": starts empty)'),
        ({"replay_last": 2}, "state-complete", "replay_last=2"),
    ],
)
def test_rows_that_stay_behind_lower_the_level(
    tmp_path: Path, options: dict[str, object], name: str, reason: str
) -> None:
    _save(tmp_path / "run")
    level = _restore(tmp_path / "run", **options).level
    assert level == Level(name, "at an epoch border", (reason,))  # type: ignore[arg-type]


def test_a_component_that_is_left_out_here_makes_it_partial(tmp_path: Path) -> None:
    _save(tmp_path / "run")
    training = Training(seed=1)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(
            policy=training.net,
            optimizer=training.optimizer,
            scheduler=training.scheduler,
            replay=training.ring,
            counters=training.counters,
        )
        level = engine.restore(allow=["explorer"]).level
    assert level is not None
    assert (level.name, level.reasons) == (
        "partial",
        ("explorer: not tracked (left in the snapshot)",),
    )


def test_a_level_that_nobody_may_declare_is_refused(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        with pytest.raises(errors.ConfigError, match="level: expected one of 'exact'"):
            engine.declare_level("weights")
        with pytest.raises(errors.ConfigError, match="harmless"):
            engine.exclude("logs", "why", harmless="no")  # type: ignore[arg-type]


def test_inspect_shows_each_component_and_the_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = _save(tmp_path / "run", logs=True, teacher=False)
    assert main(["inspect", info.path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "level partial (at an epoch border)" in lines
    assert "  because teacher: why teacher" in lines
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert rows["policy"].split()[1:4] == ["module", "saved", "yes"]
    assert "torch.nn.modules.container.Sequential" in rows["policy"]
    assert "pyengine.replay.ring.ReplayBuffer" in rows["replay"]
    assert rows["teacher"].split()[1:6] == ["excluded", "excluded:", "why", "teacher", "no"]
    assert "excluded (harmless): why logs" in rows["logs"]
    assert main(["inspect", str(tmp_path / "run")]) == 0
    of_run = capsys.readouterr().out.splitlines()
    assert of_run[of_run.index("what a restore goes on from:") + 1 :] == lines[1:]
    assert main(["inspect", str(tmp_path / "run"), "--json"]) == 0
    (snapshot,) = json.loads(capsys.readouterr().out)["snapshots"]
    assert snapshot["level"] == {
        "name": "partial",
        "condition": "at an epoch border",
        "reasons": ["teacher: why teacher"],
    }
    types = {one["name"]: one["type"] for one in snapshot["components"]}
    assert types["optimizer"] == "torch.optim.adamw.AdamW"
    assert types["process_rng"] == "the process's generators"
    assert snapshot["runtime"]["threads"] == 1
    assert snapshot["runtime"]["devices"] == "cpu"
