"""A component that never changes while the step advances is named once."""

from __future__ import annotations

from pathlib import Path

from trainer_side import trainer_on

from pyengine.format.manifest import ComponentRecord

POLICY = ComponentRecord("policy", "module", "saved", None, ("model/policy",), 1)
TABLE = ComponentRecord("table", "state", "saved", None, ("state/table",), 1)


def warnings_of(run: Path, steps: list[tuple[int, bytes]], **arguments: object) -> list[str]:
    with trainer_on(run) as trainer:
        for step, weights in steps:
            files = {"model/policy": weights, "state/table": b"constant"}
            trainer.snapshot(step, files=files, components=(POLICY, TABLE), **arguments)
        assert trainer.close_writer() == 0
        trainer.wait_for("drained")
        return trainer.texts("warning")


def test_three_equal_snapshots_are_one_warning(tmp_path: Path) -> None:
    (text,) = warnings_of(tmp_path / "run", [(step, b"same") for step in range(1, 6)])
    assert "'policy'" in text
    assert "step 1" in text


def test_a_component_that_changes_is_not_named(tmp_path: Path) -> None:
    steps = [(1, b"a"), (2, b"a"), (3, b"b"), (4, b"b"), (5, b"c")]
    assert warnings_of(tmp_path / "run", steps) == []


def test_a_step_that_does_not_advance_is_no_evidence(tmp_path: Path) -> None:
    assert warnings_of(tmp_path / "run", [(1, b"same")] * 4) == []


def test_a_static_component_is_not_named(tmp_path: Path) -> None:
    steps = [(step, b"same") for step in range(1, 5)]
    assert warnings_of(tmp_path / "run", steps, static=("policy",)) == []
