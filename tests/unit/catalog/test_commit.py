"""The commit: durable order, generation check, what a failure leaves behind."""

from __future__ import annotations

import os

import pytest

from pyengine.catalog import commit, lines, markers, scan
from pyengine.catalog.claim import claim_run
from pyengine.catalog.commit_lock import commit_lock
from pyengine.errors import SnapshotFailedError, StaleGenerationError
from pyengine.format import names
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Recorder, Rule
from pyengine.fs.locks import is_locked


def test_committed_snapshot_is_found(run, make):
    info = make.publish(run.run_dir)
    (found,) = scan.scan_snapshots(run.run_dir).snapshots
    assert (found.name, found.files) == (info.name, info.files)
    assert make.snapshot_names(run.run_dir) == [info.name]
    assert os.path.samefile(os.path.join(run.run_dir, "latest"), info.path)


def test_durable_order_of_a_commit(run, make, monkeypatch):
    staged, manifest = make.stage(run.run_dir)
    recorder = Recorder()
    monkeypatch.setattr(door, "active", recorder)
    commit.publish_snapshot(run.run_dir, staged, manifest, begin=lambda: True, keep_last=3)
    snapshots = os.path.join(run.run_dir, "snapshots")
    final = os.path.join(snapshots, manifest.name)
    temporary = os.path.join(final, "manifest.json.tmp")
    calls = [(call.op, *call.paths) for call in recorder.ops("rename", "fsync", "pwrite")]
    assert calls[:7] == [
        ("rename", staged, final),
        ("fsync", snapshots),
        ("pwrite", temporary),
        ("fsync", temporary),
        ("rename", temporary, os.path.join(final, "manifest.json")),
        ("fsync", final),
        ("rename", os.path.join(run.run_dir, ".tmp-g0001-latest"), run.run_dir + "/latest"),
    ]


def test_visible_is_told_before_pruning_and_inside_the_lock(run, make):
    make.publish(run.run_dir, sequence=1)
    seen = []

    def visible(info):
        seen.append((info.name, make.snapshot_names(run.run_dir)))
        assert is_locked(os.path.join(run.run_dir, names.LOCK))

    lines.open_line(run.run_dir, 1, parent=None, start_rows={})
    info = make.publish(run.run_dir, sequence=2, keep_last=1, visible=visible)
    assert seen[0][0] == info.name
    assert len(seen[0][1]) == 2
    assert make.snapshot_names(run.run_dir) == [info.name]


def test_cancelled_snapshot_leaves_nothing(run, make):
    assert make.publish(run.run_dir, begin=lambda: False) is None
    assert make.snapshot_names(run.run_dir) == []
    assert not os.path.lexists(os.path.join(run.run_dir, "latest"))


def test_stale_generation_touches_nothing(run, make):
    staged, manifest = make.stage(run.run_dir)
    run.release()
    with claim_run(run.run_dir):
        before = make.snapshot_names(run.run_dir)
        os.mkdir(staged)  # swept by the new claim; as if the writer had made it again
        with pytest.raises((StaleGenerationError, SnapshotFailedError)):
            commit.publish_snapshot(
                run.run_dir, staged, manifest, begin=lambda: pytest.fail("swapped"), keep_last=3
            )
        os.rmdir(staged)
        assert make.snapshot_names(run.run_dir) == before
        with pytest.raises(StaleGenerationError), commit_lock(run.run_dir, 1):
            pytest.fail("entered")


def test_stale_writer_with_a_whole_staged_directory_is_refused(run, make):
    run.release()
    with claim_run(run.run_dir):
        staged, manifest = make.stage(run.run_dir, generation=1)
        with pytest.raises(StaleGenerationError):
            commit.publish_snapshot(
                run.run_dir, staged, manifest, begin=lambda: pytest.fail("swapped"), keep_last=1
            )
        assert make.snapshot_names(run.run_dir) == [os.path.basename(staged)]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(op="fsync", path="*/manifest.json.tmp", action="error"),
        Rule(op="rename", path="*/manifest.json", action="error"),
        Rule(op="rename", path="*/manifest.json", action="error", when="after"),
        Rule(op="fsync", path="*/snapshots", action="error"),
        Rule(op="fsync", path="*/step-*.s0002", action="error"),
        Rule(op="pwrite", path="*/manifest.json.tmp", action="error", errno="ENOSPC"),
    ],
    ids=lambda rule: f"{rule.op} {rule.path} {rule.when} {rule.errno}",
)
def test_failed_commit_can_be_staged_anew(run, make, monkeypatch, rule):
    old = make.publish(run.run_dir, sequence=1)
    staged, manifest = make.stage(run.run_dir, sequence=2)
    monkeypatch.setattr(door, "active", FaultDoor([rule]))
    with pytest.raises((OSError, SnapshotFailedError)):
        commit.publish_snapshot(run.run_dir, staged, manifest, begin=lambda: True, keep_last=1)
    monkeypatch.undo()
    assert scan.newest_restorable(run.run_dir).name == old.name
    assert os.path.samefile(os.path.join(run.run_dir, "latest"), old.path)
    again = make.publish(run.run_dir, sequence=2, attempt=1)
    assert scan.newest_restorable(run.run_dir).name == again.name


NOT_DURABLE = [
    Rule(op="fsync", path="*/step-*.s0002", action="error"),
    Rule(op="rename", path="*/.trash-*", action="error", times=0),
]


def test_manifest_that_is_not_durable_never_stays(run, make, monkeypatch):
    staged, manifest = make.stage(run.run_dir, sequence=2)
    monkeypatch.setattr(door, "active", FaultDoor(NOT_DURABLE))
    with pytest.raises(OSError, match="Input/output"):
        commit.publish_snapshot(run.run_dir, staged, manifest, begin=lambda: True, keep_last=1)
    monkeypatch.undo()
    assert commit.find_committed(run.run_dir, manifest.name) is None
    assert make.publish(run.run_dir, sequence=2, attempt=1).name == manifest.name


def test_manifest_that_is_not_durable_and_stays_ends_all_attempts(run, make, monkeypatch):
    staged, manifest = make.stage(run.run_dir, sequence=2)
    stays = Rule(op="unlink", path="*/manifest.json", action="error", times=0)
    monkeypatch.setattr(door, "active", FaultDoor([*NOT_DURABLE, stays]))
    with pytest.raises(SnapshotFailedError, match="may not be durable"):
        commit.publish_snapshot(run.run_dir, staged, manifest, begin=lambda: True, keep_last=1)


def test_commit_of_a_dead_writer_is_made_durable_before_it_counts(run, make, monkeypatch):
    info = make.publish(run.run_dir, sequence=2)
    recorder = Recorder()
    monkeypatch.setattr(door, "active", recorder)
    assert commit.find_committed(run.run_dir, info.name) is not None
    assert [call.paths for call in recorder.ops("fsync")] == [(info.path,)]


def test_directory_of_a_dead_writer_blocks_nothing(run, make):
    info = make.publish(run.run_dir, sequence=2)
    os.unlink(os.path.join(info.path, "manifest.json"))  # died before the manifest
    assert commit.find_committed(run.run_dir, info.name) is None
    again = make.publish(run.run_dir, sequence=2, attempt=1)
    assert again.name == info.name
    assert make.snapshot_names(run.run_dir) == [info.name]


def test_snapshot_committed_by_a_dead_writer_is_taken_as_it_is(run, make):
    first = make.publish(run.run_dir, sequence=2)
    inode = os.stat(first.path).st_ino
    again = make.publish(run.run_dir, sequence=2, attempt=1)
    assert again.name == first.name
    assert os.stat(first.path).st_ino == inode
    assert make.snapshot_names(run.run_dir) == [first.name]


def test_manifest_never_lists_a_file_that_is_not_there(run, make):
    staged, manifest = make.stage(run.run_dir)
    os.truncate(os.path.join(staged, "model/policy.safetensors"), 3)
    with pytest.raises(SnapshotFailedError, match="policy"):
        commit.publish_snapshot(run.run_dir, staged, manifest, begin=lambda: True, keep_last=3)


def test_latest_never_moves_back(run, make):
    new = make.publish(run.run_dir, sequence=5)
    make.publish(run.run_dir, sequence=4)
    assert os.path.samefile(os.path.join(run.run_dir, "latest"), new.path)


def test_latest_that_cannot_be_replaced_is_only_a_warning(run, make, caplog):
    os.mkdir(os.path.join(run.run_dir, "latest"))
    assert make.publish(run.run_dir) is not None
    assert "latest" in caplog.text


def _three(run, make, **last):
    line = lines.open_line(run.run_dir, 1, parent=None, start_rows={}).id
    for sequence in (1, 2):
        make.publish(run.run_dir, sequence=sequence, line=line)
    return make.publish(run.run_dir, sequence=3, line=line, **last)


def test_last_n_ancestors_are_kept(run, make):
    newest = _three(run, make, keep_last=2)
    assert make.snapshot_names(run.run_dir) == ["step-00000200.g0001.s0002", newest.name]


def test_snapshot_that_a_reader_holds_is_kept_until_released(run, make):
    line = lines.open_line(run.run_dir, 1, parent=None, start_rows={}).id
    first = make.publish(run.run_dir, sequence=1, line=line)
    held = commit.hold_snapshot(first.path)
    make.publish(run.run_dir, sequence=2, line=line, keep_last=1)
    assert first.name in make.snapshot_names(run.run_dir)
    held.release()
    make.publish(run.run_dir, sequence=3, line=line, keep_last=1)
    assert make.snapshot_names(run.run_dir) == ["step-00000300.g0001.s0003"]
    with pytest.raises(FileNotFoundError):
        commit.hold_snapshot(first.path)


def test_newest_restored_snapshot_is_kept(run, make):
    line = lines.open_line(run.run_dir, 1, parent=None, start_rows={}).id
    for sequence in (1, 2):
        info = make.publish(run.run_dir, sequence=sequence, line=line, keep_last=9)
        if sequence == 1:
            markers.mark_restored(run.run_dir, 1, info.name)
    newest = make.publish(run.run_dir, sequence=3, line=line, keep_last=1)
    assert make.snapshot_names(run.run_dir) == ["step-00000100.g0001.s0001", newest.name]


def test_failed_pruning_does_not_fail_the_commit(run, make, monkeypatch, caplog):
    line = lines.open_line(run.run_dir, 1, parent=None, start_rows={}).id
    make.publish(run.run_dir, sequence=1, line=line)
    staged, manifest = make.stage(run.run_dir, sequence=2, line=line)
    rule = Rule(op="rename", path="*/.trash-*", action="error")
    monkeypatch.setattr(door, "active", FaultDoor([rule]))
    info = commit.publish_snapshot(run.run_dir, staged, manifest, begin=lambda: True, keep_last=1)
    assert info is not None
    assert "pruning failed" in caplog.text


def test_operations_end_with_the_lock(run):
    with commit_lock(run.run_dir, 1) as held:
        pass
    with pytest.raises(RuntimeError):
        held.unlink(os.path.join(run.run_dir, "x"))
