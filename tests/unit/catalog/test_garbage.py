"""Garbage: everything that dead runs left, nothing that a restore needs, no living run's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from faulty_fork import killed_at_each_call

from pyengine.catalog.claim import claim_run
from pyengine.catalog.garbage import collect_garbage
from pyengine.catalog.generation import generation_path
from pyengine.catalog.lines import open_line
from pyengine.catalog.markers import mark_restored
from pyengine.catalog.run import open_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.errors import RunBusyError, RunDirectoryError
from pyengine.format import names
from pyengine.fs.locks import OfdLock


def _write(path, size=10):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(bytes(size))


def _pool(root, line, first=0):
    name = names.PoolName(line, 0, first, 4, first + 1).text
    path = os.path.join(root, "segments", "replay", name)
    _write(path, 1000)
    return path


def _part(root, line):
    path = os.path.join(root, "segments", "replay", names.PartName(line, 77).text)
    _write(path, 500)
    return path


@pytest.fixture
def dead(run, make):
    """A run whose owner is gone: a line with a snapshot, one beside it, litter of every kind."""
    root = run.run_dir
    new = open_line(root, 1, parent=None, start_rows={})
    info = make.publish(root, line=new.id)
    old = open_line(root, 1, parent=None, start_rows={})
    open_line(root, 1, parent=None, start_rows={})  # the newest keeps its files in any case
    make.stage(root, sequence=7)
    _write(os.path.join(root, "lines", names.temporary_name(1, "x")))
    _write(os.path.join(root, "snapshots", names.trash_name(1, "y"), "deep", "file"))
    _write(os.path.join(root, "snapshots", names.snapshot_name(5, 1, 9), "model", "file"))
    _write(os.path.join(root, "quarantine", names.snapshot_name(6, 1, 5), "file"), 300)
    mark_restored(root, 1, info.name)
    mark_restored(root, 1, names.snapshot_name(1, 1, 3))
    litter = {"pool": [_pool(root, old.id), _part(root, old.id)]}
    kept = [_pool(root, new.id), _part(root, new.id)]
    for name in ("snapshots/my notes", "segments/replay/other.bin", "notes.txt", ".hidden"):
        _write(os.path.join(root, name))
        kept.append(os.path.join(root, name))
    run.release()
    return root, info, litter, kept


def _kinds(found):
    kinds = {}
    for item in found.items:
        kinds.setdefault(item.kind, set()).add(item.path)
    return kinds


def _everything(root):
    return sorted(
        os.path.join(base, name)
        for base, directories, files in os.walk(root)
        for name in directories + files
    )


def test_every_kind_is_listed_and_nothing_is_touched(dead):
    root, _, litter, _ = dead
    before = _everything(root)
    found = collect_garbage(root)
    kinds = _kinds(found)
    assert set(kinds) == {"trash", "temporary", "unfinished", "pool", "marker"}
    assert kinds["pool"] == set(litter["pool"])
    assert len(kinds["temporary"]) == 2
    assert not found.is_removed
    assert _everything(root) == before


def test_removal_frees_what_was_announced_and_leaves_the_run_whole(dead):
    root, info, litter, kept = dead
    listed = collect_garbage(root)
    used = sum(os.lstat(path).st_size for path in _everything(root) if not os.path.isdir(path))
    removed = collect_garbage(root, delete=True)
    left = sum(os.lstat(path).st_size for path in _everything(root) if not os.path.isdir(path))
    assert {item.path for item in removed.items} == {item.path for item in listed.items}
    assert used - left == removed.freed_bytes == listed.freed_bytes > 1500
    assert not [path for path in _everything(root) if ".tmp-" in path or ".trash-" in path]
    for path in kept:
        assert os.path.exists(path)
    for path in litter["pool"]:
        assert not os.path.exists(path)
    assert verify_snapshot(info.path) == []
    assert os.listdir(os.path.join(root, "quarantine")) == [names.snapshot_name(6, 1, 5)]
    markers = os.listdir(os.path.join(root, "recovery"))
    assert markers == [names.restored_marker_name(info.name)]
    assert collect_garbage(root).items == ()


def test_quarantine_goes_only_on_request(dead):
    root, *_ = dead
    found = collect_garbage(root, delete=True, with_quarantine=True)
    assert len(_kinds(found)["quarantine"]) == 1
    assert os.listdir(os.path.join(root, "quarantine")) == []


def test_rows_after_the_newest_snapshot_stay_under_its_line_and_under_lines_grown_from_it(
    run, make
):
    root = run.run_dir
    first = open_line(root, 1, parent=None, start_rows={})
    info = make.publish(root, line=first.id)
    grown = open_line(root, 1, parent=info, start_rows={})
    kept = [_pool(root, first.id), _pool(root, grown.id, 4), _part(root, grown.id)]
    run.release()
    assert collect_garbage(root, delete=True).items == ()
    assert all(map(os.path.exists, kept))


def test_without_a_snapshot_the_newest_line_stays(run):
    root = run.run_dir
    line = open_line(root, 1, parent=None, start_rows={})
    kept = _pool(root, line.id)
    run.release()
    assert collect_garbage(root, delete=True).items == ()
    assert os.path.exists(kept)


def test_a_file_that_a_snapshot_holds_is_no_garbage(dead):
    root, info, litter, _ = dead
    held = litter["pool"][0]
    os.unlink(held)
    os.link(os.path.join(info.path, "buffer/replay/segment-a.seg"), held)
    assert _kinds(collect_garbage(root, delete=True))["pool"] == {litter["pool"][1]}
    assert os.path.exists(held)


def test_lines_whose_record_cannot_be_read_keep_their_files(dead):
    root, _, litter, _ = dead
    line = names.parse_pool_name(os.path.basename(litter["pool"][0])).line
    _write(os.path.join(root, "lines", names.line_file_name(line)), 5)
    assert "pool" not in _kinds(collect_garbage(root, delete=True))


def test_lines_whose_record_was_removed_keep_their_files(dead):
    root, _, litter, _ = dead
    line = names.parse_pool_name(os.path.basename(litter["pool"][0])).line
    os.unlink(os.path.join(root, "lines", names.line_file_name(line)))
    found = collect_garbage(root, delete=True)
    assert "pool" not in _kinds(found)
    assert "no record" in found.notes[0]


def test_rows_stay_under_lines_that_grew_through_snapshots_which_are_gone(run, make):
    root = run.run_dir
    info = make.publish(root, line=open_line(root, 1, parent=None, start_rows={}).id)
    grown = open_line(root, 1, parent=info, start_rows={})
    gone = make.publish(root, sequence=2, line=grown.id)
    last = open_line(root, 1, parent=gone, start_rows={})
    open_line(root, 1, parent=None, start_rows={})
    kept = [_pool(root, grown.id), _part(root, last.id)]
    shutil.rmtree(gone.path)
    run.release()
    collect_garbage(root, delete=True)
    assert all(map(os.path.exists, kept))


def test_the_pool_is_left_alone_while_a_manifest_cannot_be_read(dead):
    root, info, litter, _ = dead
    os.truncate(os.path.join(info.path, "manifest.json"), 9)
    found = collect_garbage(root, delete=True)
    assert "pool" not in _kinds(found)
    assert info.path in found.notes[0]
    assert all(map(os.path.exists, litter["pool"]))


def test_a_file_with_a_name_outside_of_the_garbage_frees_nothing(dead, tmp_path):
    root, _, litter, _ = dead
    os.link(litter["pool"][0], tmp_path / "mine")
    items = {item.path: item for item in collect_garbage(root).items}
    assert (items[litter["pool"][0]].size_bytes, items[litter["pool"][0]].freed_bytes) == (1000, 0)
    assert items[litter["pool"][1]].freed_bytes == 500


@pytest.mark.parametrize("byte", [names.OWNER_BYTE, names.WRITER_BYTE])
@pytest.mark.parametrize("delete", [False, True])
def test_a_living_run_is_refused(dead, byte, delete):
    root, *_ = dead
    before = _everything(root)
    with (
        OfdLock.acquire(generation_path(root, 1), byte),
        pytest.raises(RunBusyError, match=f"pid {os.getpid()}" if byte == 0 else "writer"),
    ):
        collect_garbage(root, delete=delete)
    assert _everything(root) == before


def test_an_owner_that_was_taken_over_and_lives_on_is_refused_too(dead):
    root, *_ = dead
    with claim_run(root) as claim:
        assert claim.generation == 2
    with OfdLock.acquire(generation_path(root, 1), names.OWNER_BYTE), pytest.raises(RunBusyError):
        collect_garbage(root, delete=True)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        collect_garbage(str(tmp_path))
    with pytest.raises(RunDirectoryError, match="does not exist"):
        collect_garbage(str(tmp_path / "nowhere"))


def test_a_collector_that_is_killed_before_deleting_leaves_trash_for_the_next(dead):
    root, info, *_ = dead
    code = (
        "import os, signal, sys\n"
        "from pyengine.catalog import garbage\n"
        "garbage.empty_trash = lambda paths: os.kill(os.getpid(), signal.SIGKILL)\n"
        "garbage.collect_garbage(sys.argv[1], delete=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, root], check=False).returncode == -9
    assert set(_kinds(collect_garbage(root, delete=True))) == {"trash"}
    assert verify_snapshot(info.path) == []
    assert open_run(root).latest.name == info.name


def test_what_cannot_be_deleted_is_named(dead, monkeypatch):
    root, *_ = dead
    monkeypatch.setattr("pyengine.catalog.garbage.empty_trash", lambda paths: None)
    stayed = collect_garbage(root, delete=True).stayed
    assert stayed
    assert all(map(names.is_trash, map(os.path.basename, stayed)))


@pytest.mark.slow
def test_killed_at_any_call_it_has_taken_garbage_and_nothing_else(dead):
    root, info, litter, kept = dead
    wanted = {item.path for item in collect_garbage(root).items}
    kills = 0
    for nth in killed_at_each_call(lambda: collect_garbage(root, delete=True)):
        kills = nth
        assert all(map(os.path.exists, kept))
        assert verify_snapshot(info.path) == []
        left = {item.path for item in collect_garbage(root).items if item.kind != "trash"}
        assert left <= wanted
    assert kills > 20
    assert collect_garbage(root).items == ()
    assert not any(map(os.path.exists, litter["pool"]))


def test_a_committed_snapshot_without_its_manifest_and_its_marker_stay(dead):
    root, info, *_ = dead
    os.unlink(os.path.join(info.path, names.MANIFEST))
    found = _kinds(collect_garbage(root, delete=True))
    assert info.path not in found["unfinished"]
    assert os.path.isdir(info.path)
    assert names.restored_marker_name(info.name) in os.listdir(os.path.join(root, "recovery"))


def test_quarantine_stays_where_it_alone_keeps_the_run_from_beginning_anew(dead):
    root, info, *_ = dead
    shutil.rmtree(info.path)
    found = collect_garbage(root, delete=True, with_quarantine=True)
    assert "quarantine" not in _kinds(found)
    assert "begin anew" in found.notes[0]
    assert os.listdir(os.path.join(root, "quarantine"))
