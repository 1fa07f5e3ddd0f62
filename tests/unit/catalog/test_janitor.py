"""The janitor: removes what dead generations left, and nothing else."""

from __future__ import annotations

import os

import pytest

from pyengine.catalog import commit, janitor
from pyengine.catalog.claim import claim_run
from pyengine.catalog.commit_lock import commit_lock
from pyengine.format import names


@pytest.fixture
def littered(run, make, tmp_path):
    """A run whose generation 1 left unfinished things everywhere; returns (path, snapshot)."""
    info = make.publish(run.run_dir)
    make.stage(run.run_dir, sequence=7)
    root = run.run_dir
    os.makedirs(os.path.join(root, "segments", "replay"))
    for place in ("", "generations", "lines", "segments/replay", "recovery", "snapshots"):
        with open(os.path.join(root, place, names.temporary_name(1, "x")), "w"):
            pass
    os.makedirs(os.path.join(root, "snapshots", names.trash_name(1, "y"), "deep"))
    os.makedirs(os.path.join(root, "snapshots", names.snapshot_name(5, 1, 9), "model"))
    for kept in ("snapshots/my notes", "segments/replay/other.bin", "notes.txt", ".hidden"):
        with open(os.path.join(root, kept), "w"):
            pass
    run.release()
    return root, info


def _all_names(root):
    return sorted(
        os.path.relpath(os.path.join(base, name), root)
        for base, directories, files in os.walk(root)
        for name in directories + files
    )


def test_claim_removes_unfinished_things_and_nothing_else(littered):
    root, info = littered
    with claim_run(root):
        left = _all_names(root)
    assert not [name for name in left if ".tmp-" in name or ".trash-" in name or "s0009" in name]
    for kept in ("snapshots/my notes", "segments/replay/other.bin", "notes.txt", ".hidden"):
        assert kept in left
    assert os.path.join("snapshots", info.name, "manifest.json") in left


def test_things_of_a_living_generation_stay(run, make):
    staged, _ = make.stage(run.run_dir, sequence=7)
    with commit_lock(run.run_dir, 1) as held:
        assert janitor.sweep(held) == []
    assert os.path.isdir(staged)


def test_new_writer_sweeps_its_dead_predecessor_but_not_its_trainer(run, make):
    staged, _ = make.stage(run.run_dir, sequence=7)
    trainer_file = os.path.join(run.run_dir, "lines", names.temporary_name(1, "x"))
    with open(trainer_file, "w"):
        pass
    unfinished = os.path.join(run.run_dir, "snapshots", names.snapshot_name(5, 1, 9))
    os.mkdir(unfinished)
    with commit_lock(run.run_dir, 1) as held:
        trash = janitor.sweep_predecessor(held)
    commit.empty_trash(trash)
    assert not os.path.exists(staged)
    assert not os.path.exists(unfinished)
    assert os.path.exists(trainer_file)
    assert make.snapshot_names(run.run_dir) == []


def test_sweep_survives_a_second_kill(littered, monkeypatch):
    root, _ = littered
    monkeypatch.setattr(commit, "empty_trash", lambda paths: None)  # killed before deleting
    with claim_run(root):
        assert [name for name in _all_names(root) if ".trash-" in name]
    monkeypatch.undo()
    with claim_run(root):
        assert not [name for name in _all_names(root) if ".trash-" in name]
