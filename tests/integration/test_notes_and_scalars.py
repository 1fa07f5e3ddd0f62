"""Notes come back with the run, and figures of snapshots go where the script wants them."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import Training

import pyengine
from pyengine import errors
from pyengine.cli.main import main


def _run(run_dir: Path, **settings: Any) -> pyengine.SnapshotEngine:
    engine = pyengine.SnapshotEngine(run_dir, **settings)
    Training().track(engine)
    return engine


def test_notes_come_back_and_what_a_script_says_itself_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _run(tmp_path / "run", notes={"env": "toy"}) as engine:
        assert not engine.restore()
        assert engine.notes.get("wandb") is None
        engine.notes["wandb"] = "1a2b"
        engine.notes["logs"] = {"directory": "logs/7"}
        engine.snapshot(0).wait(60)
    with _run(tmp_path / "run", notes={"env": "other"}) as engine:
        assert dict(engine.notes) == {"env": "other"}
        report = engine.restore()
        assert report.snapshot is not None
        assert report.snapshot.notes["env"] == "toy"
        assert dict(engine.notes) == {
            "env": "other",
            "wandb": "1a2b",
            "logs": {"directory": "logs/7"},
        }
        engine.notes["logs"]["directory"] = "changed"  # a copy
        assert engine.notes["logs"] == {"directory": "logs/7"}
        del engine.notes["logs"]
        info = engine.snapshot(1).wait(60)
    assert info.notes == {"env": "other", "wandb": "1a2b"}
    assert main(["inspect", info.path]) == 0
    assert 'note wandb = "1a2b"' in capsys.readouterr().out.splitlines()
    assert main(["inspect", info.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["snapshots"][0]["notes"] == info.notes


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "x" * (1 << 20), "\ud800"])
def test_a_note_that_no_manifest_can_hold_is_refused_and_changes_nothing(
    tmp_path: Path, value: object
) -> None:
    with _run(tmp_path / "run", notes={"env": "toy"}) as engine:
        engine.restore()
        with pytest.raises(errors.ConfigError, match="notes"):
            engine.notes["env"] = value
        assert dict(engine.notes) == {"env": "toy"}
        engine.snapshot(0).wait(60)


class SummaryWriter:
    """Takes scalars as TensorBoard's does."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.logged.append((tag, value, step))


@pytest.mark.parametrize("as_function", [False, True])
def test_a_snapshot_logs_what_it_has_cost_at_its_step(tmp_path: Path, as_function: bool) -> None:
    writer = SummaryWriter()
    with _run(tmp_path / "run") as engine:
        engine.log_scalars(writer.add_scalar if as_function else writer, prefix="run/")
        engine.restore()
        pending = engine.snapshot(7)
        pending.wait(60)
        assert engine.tick(8) is None
        outcome = pending.outcome
        assert outcome is not None
        assert writer.logged == [
            ("run/stall_seconds", pending.stall_seconds, 7),
            ("run/persist_seconds", outcome.persist_ns / 1e9, 7),
            ("run/bytes_written", outcome.bytes_written, 7),
            ("run/new_bytes", outcome.new_bytes, 7),
        ]
        engine.log_scalars(None)
        engine.snapshot(9).wait(60)
    assert len(writer.logged) == 4


def test_the_last_snapshot_of_a_run_is_logged_by_close(tmp_path: Path) -> None:
    writer = SummaryWriter()
    with _run(tmp_path / "run") as engine:
        engine.log_scalars(writer)
        engine.restore()
        engine.close(final=3)
    assert [(tag, step) for tag, _, step in writer.logged][:1] == [("pyengine/stall_seconds", 3)]


def test_snapshots_that_are_left_out_are_logged(tmp_path: Path) -> None:
    writer = SummaryWriter()
    with _run(tmp_path / "run", every_steps=1, budget=None) as engine:
        engine.log_scalars(writer)
        engine.restore()
        pid = engine.writer_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            for step in range(1, 5):
                engine.tick(step)
        finally:
            os.kill(pid, signal.SIGCONT)
    logged = writer.logged
    skipped = [(value, step) for tag, value, step in logged if tag == "pyengine/skipped_snapshots"]
    assert skipped == [(1.0, 3), (2.0, 4)]


def test_a_writer_that_fails_is_told_of_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(tag: str, value: float, step: int) -> None:
        raise OSError("no space for plots")

    log: Callable[..., None] = fail
    with _run(tmp_path / "run") as engine, caplog.at_level(logging.WARNING):
        engine.log_scalars(log)
        engine.restore()
        for step in range(3):
            engine.snapshot(step).wait(60)
    told = [record.message for record in caplog.records if "no space for plots" in record.message]
    assert told == ["a figure could not be logged: OSError: no space for plots"]


def test_what_takes_no_scalars_is_refused(tmp_path: Path) -> None:
    with _run(tmp_path / "run") as engine, pytest.raises(errors.ConfigError, match="add_scalar"):
        engine.log_scalars("logs/")
