"""Damage in the small records of a run is told, or costs nothing but what it says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from damaged_runs import STEPS, digests, flip, original, three
from program import tracking

import pyengine
from pyengine import errors
from pyengine.catalog import generation, markers, quarantine
from pyengine.catalog.lines import read_lines
from pyengine.catalog.run_record import read_branched_from, read_run_id

__all__ = ["digests", "original", "three"]


def places(path: Path) -> range:
    """A bit of every byte but the last, a line break that is as good as none."""
    return range(path.stat().st_size - 1)


def test_no_flipped_bit_of_run_json_passes(three: Path) -> None:
    path = three / "run.json"
    run_id = read_run_id(str(three))
    for offset in places(path):
        flip(path, offset, bit=offset % 8)
        with pytest.raises(
            (errors.RunDirectoryError, errors.FormatVersionError), match=r"run\.json"
        ):
            read_run_id(str(three))
        assert read_branched_from(str(three)) is None
        flip(path, offset, bit=offset % 8)
    assert read_run_id(str(three)) == run_id
    flip(path, path.read_bytes().index(run_id.encode()))
    with pytest.raises(errors.RunDirectoryError, match="checksum"):
        pyengine.SnapshotEngine(three)
    with pytest.raises(errors.RunDirectoryError, match="checksum"):
        pyengine.open_run(three)


def test_no_flipped_bit_of_a_line_passes(three: Path) -> None:
    (path,) = (three / "lines").iterdir()
    for offset in places(path):
        flip(path, offset, bit=offset % 8)
        told: list[errors.RestoreError | OSError] = []
        assert read_lines(str(three), told.append) == {}
        (error,) = told
        assert isinstance(error, (errors.DamageError, errors.FormatVersionError))
        assert error.path == str(path)
        flip(path, offset, bit=offset % 8)
    assert len(read_lines(str(three))) == 1


def test_rows_of_a_line_that_is_damaged_stay_behind_and_it_is_told(
    three: Path, digests: dict[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = (three / "lines").iterdir()
    flip(path, path.read_bytes().index(b"start_rows"))
    with tracking(three) as (engine, training):
        report = engine.restore(replay="latest")
        assert report.global_step == STEPS[2]
        assert training.digest() == digests[STEPS[2]]
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "may stay behind" in told
    assert str(path) in told


def test_no_flipped_bit_of_a_claim_names_another_process(three: Path) -> None:
    path = three / "generations" / "0001"
    owner = generation.read_party(str(three), 1, "owner")
    assert owner.identity is not None
    end = path.read_bytes().index(b"\n")
    for offset in range(end):
        flip(path, offset, bit=offset % 8)
        found = generation.read_party(str(three), 1, "owner")
        assert (found.identity, found.since) == (None, "an unknown time")
        flip(path, offset, bit=offset % 8)
    flip(path, 40)
    with tracking(three) as (engine, _training):
        assert engine.restore().global_step == STEPS[2]


def test_no_flipped_bit_of_a_marker_counts_deaths(three: Path) -> None:
    """A snapshot is tried last after two: a count that a disk has changed must not be believed."""
    name = os.readlink(three / "latest").split("/")[1]
    with markers.applying(str(three), 1, name):
        path = three / "recovery" / f"restoring.{name}"
        assert markers.restore_deaths(str(three)) == {name: 1}
        for offset in places(path):
            flip(path, offset, bit=offset % 8)
            assert markers.restore_deaths(str(three)) == {}
            flip(path, offset, bit=offset % 8)


def test_no_flipped_bit_of_a_record_in_quarantine_names_another_file(three: Path) -> None:
    latest = (three / "latest").resolve()
    flip(latest / "model" / "policy.safetensors", 4200)
    with tracking(three) as (engine, _training):
        engine.restore()
    (damaged,) = quarantine.damaged_files(str(three)).values()
    path = three / "quarantine" / f"{latest.name}.json"
    assert damaged.path == str(path.with_suffix("") / "model" / "policy.safetensors")
    for offset in places(path):
        flip(path, offset, bit=offset % 8)
        assert quarantine.damaged_files(str(three)) == {}
        ((_, reason),) = quarantine.lost_snapshots(str(three))
        assert "cannot be read" in reason
        flip(path, offset, bit=offset % 8)
