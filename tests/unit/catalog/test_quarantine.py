"""Proof of damage, and the move into quarantine, on real snapshots."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal

import pytest

from pyengine.catalog import commit, commit_lock, quarantine, scan
from pyengine.catalog.claim import highest_generation
from pyengine.catalog.info import Problem
from pyengine.errors import DamageError, FormatVersionError, StaleGenerationError
from pyengine.format import names
from pyengine.fs import door, faults
from pyengine.fs.faults import Recorder

MODEL = "model/policy.safetensors"


def _flip(path, offset=20):
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def _suspicion(info, file):
    path = os.path.join(info.path, file)
    return DamageError(f"{path}: x", path=path)


def _damage(info, file=MODEL):
    path = os.path.join(info.path, file)
    return quarantine.Damage(info.name, file, Problem(path, "corruption", "bad", 7, "aa", "bb"))


def test_a_file_that_is_whole_is_no_damage(run, make):
    info = make.publish(run.run_dir)
    suspects = quarantine.suspects(info, _suspicion(info, MODEL))
    assert [record.path for record in suspects] == [MODEL]
    assert quarantine.prove(info, suspects) is None


def test_a_changed_row_is_proven_with_its_offset(run, make):
    info = make.publish(run.run_dir)
    file = "buffer/replay/segment-a.seg"
    _flip(os.path.join(info.path, file), 4096 + 3)
    damage = quarantine.prove(info, quarantine.suspects(info, _suspicion(info, file)))
    assert (damage.file, damage.problem.kind, damage.problem.offset) == (file, "corruption", 4096)
    record = damage.to_record()
    assert record["expected"] != record["got"]


def test_a_missing_file_is_proven(run, make):
    info = make.publish(run.run_dir)
    path = os.path.join(info.path, MODEL)
    os.unlink(path)
    error = FileNotFoundError(2, "gone", path)
    damage = quarantine.prove(info, quarantine.suspects(info, error))
    assert (damage.file, damage.problem.kind) == (MODEL, "missing")


def test_the_second_look_goes_past_the_page_cache(run, make, monkeypatch):
    info = make.publish(run.run_dir)
    _flip(os.path.join(info.path, MODEL))
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *_: dropped.append(os.fstat(fd).st_ino))
    quarantine.prove(info, quarantine.suspects(info, _suspicion(info, MODEL)))
    assert dropped == [os.stat(os.path.join(info.path, MODEL)).st_ino]
    manifest = os.path.join(info.path, names.MANIFEST)
    _flip(manifest)
    with pytest.raises(DamageError):
        scan.read_snapshot(run.run_dir, info.name)
    assert dropped[1:] == [os.stat(manifest).st_ino]


def test_an_error_about_something_else_has_no_suspects(run, make):
    info = make.publish(run.run_dir)
    for path in ("/nowhere", os.path.join(info.path, "not-listed"), None):
        assert quarantine.suspects(info, FileNotFoundError(2, "gone", path)) == []
    assert quarantine.suspects(info, FormatVersionError("x", path="meta.json", version=9)) == []


def test_rows_read_from_a_copy_in_the_pool_put_all_segments_under_suspicion(run, make):
    info = make.publish(run.run_dir)
    pooled = os.path.join(run.run_dir, "segments", "replay", "x.seg")
    suspects = quarantine.suspects(info, DamageError("x", path=pooled))
    assert len(suspects) == 3
    assert all(record.covers == "segment" for record in suspects)


def test_a_move_is_durable_and_recorded(run, make, monkeypatch):
    info = make.publish(run.run_dir)
    recorder = Recorder()
    monkeypatch.setattr(door, "active", recorder)
    target = quarantine.move(run.run_dir, run.generation, _damage(info))
    monkeypatch.undo()
    assert target == os.path.join(run.run_dir, "quarantine", info.name)
    assert os.path.exists(os.path.join(target, MODEL))
    assert not os.path.exists(info.path)
    with open(f"{target}.json", encoding="utf-8") as file:
        record = json.load(file)
    found_at = record.pop("found_at")
    assert found_at.endswith("Z")
    assert record == {
        "snapshot": info.name,
        "file": MODEL,
        "kind": "corruption",
        "offset": 7,
        "expected": "aa",
        "got": "bb",
        "text": "bad",
        "schema_version": 2,
        "xxh3_64": record["xxh3_64"],
    }
    ops = [call.op for call in recorder.calls]
    move = max(i for i, op in enumerate(ops) if op == "rename")
    assert ops[move + 1 :].count("fsync") == 2
    assert "fsync" in ops[:move]


def test_what_a_reader_has_locked_is_not_moved_from_under_it(run, make):
    info = make.publish(run.run_dir)
    with commit.hold_snapshot(info.path):
        assert quarantine.move(run.run_dir, run.generation, _damage(info)) is None
        assert os.path.exists(info.path)
        assert os.listdir(os.path.join(run.run_dir, "quarantine")) == []
    assert quarantine.move(run.run_dir, run.generation, _damage(info)) is not None


def test_a_manifest_that_nobody_can_have_locked_does_not_keep_it(run, make):
    info = make.publish(run.run_dir)
    manifest = os.path.join(info.path, "manifest.json")
    os.unlink(manifest)
    os.mkdir(manifest)
    assert quarantine.move(run.run_dir, run.generation, _damage(info)) is not None


def test_a_move_by_a_stale_generation_touches_nothing(run, make):
    info = make.publish(run.run_dir)
    open(os.path.join(run.run_dir, "generations", "0002"), "x").close()
    with pytest.raises(StaleGenerationError):
        quarantine.move(run.run_dir, 1, _damage(info))
    assert os.path.exists(info.path)
    assert os.listdir(os.path.join(run.run_dir, "quarantine")) == []


def test_a_record_without_its_directory_takes_the_name(run, make):
    """A death between the record and the move: the next move does not replace the record."""
    info = make.publish(run.run_dir)
    path = os.path.join(run.run_dir, "quarantine", f"{info.name}.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{}")
    target = quarantine.move(run.run_dir, run.generation, _damage(info))
    assert os.path.basename(target) == f"{info.name}-2"
    with open(path, encoding="utf-8") as file:
        assert file.read() == "{}"


def test_files_of_quarantine_are_known_by_their_inode(run, make):
    info = make.publish(run.run_dir, sequence=1)
    other = make.publish(run.run_dir, sequence=2)
    apart = make.publish(run.run_dir, sequence=3)
    shared = os.path.join(other.path, MODEL)
    os.unlink(shared)
    os.link(os.path.join(info.path, MODEL), shared)
    shutil.copy(os.path.join(info.path, MODEL), os.path.join(apart.path, MODEL))
    target = quarantine.move(run.run_dir, run.generation, _damage(info))
    damaged = quarantine.damaged_files(run.run_dir)
    assert [file.path for file in damaged.values()] == [os.path.join(target, MODEL)]
    assert quarantine.shared_file(other, damaged) is None, "it expects other bytes of that file"
    alike = dataclasses.replace(other, files=info.files)
    assert quarantine.shared_file(alike, damaged) == (MODEL, os.path.join(target, MODEL))
    assert quarantine.shared_file(apart, damaged) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"file": "../../x"}', '{"file": 3}'])
def test_a_record_that_cannot_be_read_is_no_knowledge(run, make, text):
    info = make.publish(run.run_dir)
    target = quarantine.move(run.run_dir, run.generation, _damage(info))
    with open(f"{target}.json", "w", encoding="utf-8") as file:
        file.write(text)
    assert quarantine.damaged_files(run.run_dir) == {}
    ((path, reason), *_) = quarantine.lost_snapshots(run.run_dir)
    assert path == target
    assert "cannot be read" in reason


def test_names_read_back_and_count_as_generations(run, make):
    for text in ("step-00000100.g0007.s0001", "step-00000100.g0007.s0001-2"):
        assert names.parse_quarantine_name(text).generation == 7
        assert names.parse_quarantine_name(f"{text}.json").generation == 7
    for text in ("step-1", "x.json", "step-00000100.g0007.s0001-", "step-00000100.g0007.s0001-a"):
        assert names.parse_quarantine_name(text) is None
    os.mkdir(os.path.join(run.run_dir, "quarantine", "step-00000100.g0007.s0001-2"))
    assert highest_generation(run.run_dir) == 7
    with commit_lock.commit_lock(run.run_dir, 1):
        pass


@pytest.mark.parametrize("op", ["rename", "fsync", "pwrite", "open"])
def test_a_kill_at_any_call_leaves_the_snapshot_in_one_place_and_a_record_beside_it(run, make, op):
    """The next start moves what was not moved; what was moved stays; nothing is without a record.

    A record without its directory may stay: it was written first.
    """
    moved, nth, status = 0, 0, -1
    while status != 0:
        nth += 1
        info = make.publish(run.run_dir, sequence=nth, keep_last=99)
        child = os.fork()
        if child == 0:
            rules = [{"op": op, "nth": nth, "action": "kill"}]
            door.active = faults.FaultDoor(faults.parse_plan(json.dumps(rules)))
            quarantine.move(run.run_dir, run.generation, _damage(info))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
        target = os.path.join(run.run_dir, "quarantine", info.name)
        assert os.path.exists(info.path) != os.path.exists(target)
        moved += os.path.exists(target)
        assert os.path.exists(f"{target}.json") or os.path.exists(info.path)
        for place in (info.path, target):
            if os.path.exists(place):
                assert sorted(os.listdir(place)) == ["buffer", "manifest.json", "model"]
    assert nth > 1
    assert moved >= 1
