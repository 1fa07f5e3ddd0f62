"""What is seen in a run directory: manifests only, never names, numbers or times."""

from __future__ import annotations

import os
import shutil

import pytest

from pyengine.catalog import markers, scan
from pyengine.catalog.run import choose_snapshot, open_run
from pyengine.errors import DamageError, FormatVersionError, RunDirectoryError
from pyengine.format import names
from pyengine.fs import door
from pyengine.fs.faults import Recorder


def _flip(path, offset=20):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_snapshots_are_ordered_by_generation_and_sequence(run, make):
    for sequence, step in ((1, 900), (2, 100), (3, 500)):
        make.publish(run.run_dir, sequence=sequence, step=step, keep_last=9)
    seen = open_run(run.run_dir)
    assert [info.global_step for info in seen.snapshots] == [900, 100, 500]
    assert seen.latest.global_step == 500
    assert seen.run_id == run.run_id
    assert seen.problems == ()


def test_looking_writes_and_locks_nothing(run, make, monkeypatch):
    make.publish(run.run_dir)
    recorder = Recorder()
    monkeypatch.setattr(door, "active", recorder)
    open_run(run.run_dir)
    assert {call.op for call in recorder.calls} <= {"open", "read", "close"}


def test_directory_without_manifest_is_no_snapshot_and_no_problem(run, make):
    make.publish(run.run_dir)
    os.mkdir(os.path.join(run.run_dir, "snapshots", names.snapshot_name(9, 9, 9)))
    make.stage(run.run_dir, sequence=8)
    seen = open_run(run.run_dir)
    assert len(seen.snapshots) == 1
    assert seen.problems == ()


def test_latest_link_is_not_trusted(run, make):
    make.publish(run.run_dir, sequence=1)
    new = make.publish(run.run_dir, sequence=2)
    os.unlink(os.path.join(run.run_dir, "latest"))
    os.symlink("snapshots/step-00000100.g0001.s0001", os.path.join(run.run_dir, "latest"))
    assert scan.newest_restorable(run.run_dir).name == new.name


def test_damaged_newest_manifest_is_an_error_and_not_skipped(run, make):
    old = make.publish(run.run_dir, sequence=1)
    new = make.publish(run.run_dir, sequence=2)
    _flip(os.path.join(new.path, "manifest.json"))
    with pytest.raises(DamageError) as caught:
        scan.newest_restorable(run.run_dir)
    assert caught.value.path == os.path.join(new.path, "manifest.json")
    seen = open_run(run.run_dir)
    assert [info.name for info in seen.snapshots] == [old.name]
    assert [(problem.kind, problem.path) for problem in seen.problems] == [
        ("corruption", os.path.join(new.path, "manifest.json"))
    ]


def test_damaged_older_manifest_does_not_stop_the_newest(run, make):
    old = make.publish(run.run_dir, sequence=1)
    new = make.publish(run.run_dir, sequence=2)
    _flip(os.path.join(old.path, "manifest.json"))
    assert scan.newest_restorable(run.run_dir).name == new.name


def test_snapshot_under_another_name_is_a_problem(run, make):
    info = make.publish(run.run_dir)
    os.rename(info.path, os.path.join(run.run_dir, "snapshots", names.snapshot_name(5, 1, 99)))
    seen = open_run(run.run_dir)
    assert seen.snapshots == ()
    assert "keeps its name" in seen.problems[0].text


def test_linked_directory_is_no_snapshot(run, make, tmp_path):
    info = make.publish(run.run_dir)
    shutil.move(info.path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", info.path)
    assert open_run(run.run_dir).snapshots == ()


def test_linked_manifest_is_damage(run, make, tmp_path):
    info = make.publish(run.run_dir)
    manifest = os.path.join(info.path, "manifest.json")
    shutil.move(manifest, tmp_path / "m")
    os.symlink(tmp_path / "m", manifest)
    with pytest.raises(DamageError, match="not a regular file"):
        scan.newest_restorable(run.run_dir)


def test_copy_of_a_snapshot_can_be_opened_anywhere(run, make, tmp_path):
    info = make.publish(run.run_dir)
    shutil.copytree(info.path, tmp_path / "copy")
    seen = open_run(tmp_path / "copy")
    assert [item.name for item in seen.snapshots] == [info.name]
    assert choose_snapshot(tmp_path / "copy").path == str(tmp_path / "copy")
    assert choose_snapshot(os.path.join(run.run_dir, "latest")).name == info.name


def test_copy_of_a_snapshot_in_an_empty_run_can_be_opened(run, make, tmp_path):
    info = make.publish(run.run_dir)
    shutil.copytree(info.path, tmp_path / "new" / "snapshots" / info.name)
    seen = open_run(tmp_path / "new")
    assert seen.run_id == "run"
    assert choose_snapshot(tmp_path / "new").name == info.name


def test_other_directories_are_not_runs(tmp_path, run):
    with pytest.raises(RunDirectoryError):
        open_run(tmp_path)
    with pytest.raises(RunDirectoryError):
        open_run(tmp_path / "none")
    with pytest.raises(RunDirectoryError, match="no snapshot"):
        choose_snapshot(run.run_dir)
    assert scan.newest_restorable(run.run_dir) is None


def test_manifest_of_a_newer_version_is_typed(run, make):
    info = make.publish(run.run_dir)
    import xxhash

    path = os.path.join(info.path, "manifest.json")
    with open(path, "rb") as file:
        body = file.read().replace(b'"schema_version": 3', b'"schema_version": 4')
    body = body[: body.rindex(b"\n") + 1]
    with open(path, "wb") as file:
        file.write(body + b'"xxh3_64": "%s"}' % xxhash.xxh3_64_hexdigest(body).encode())
    with pytest.raises(FormatVersionError):
        scan.newest_restorable(run.run_dir)
    assert open_run(run.run_dir).problems[0].kind == "version"


def test_snapshot_whose_restore_died_twice_comes_last_and_is_told(run, make, caplog):
    old = make.publish(run.run_dir, sequence=1)
    new = make.publish(run.run_dir, sequence=2)
    for deaths, expected in ((1, new), (2, old)):
        child = os.fork()
        if child == 0:
            with markers.applying(run.run_dir, 1, new.name):
                os._exit(0)
        os.waitpid(child, 0)
        assert markers.restore_deaths(run.run_dir) == {new.name: deaths}
        caplog.clear()
        assert scan.newest_restorable(run.run_dir).name == expected.name
        told = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert len(told) == (deaths == 2)
        assert all(new.name in text and "2 times" in text for text in told)


def test_exception_while_applying_removes_the_marker(run, make):
    info = make.publish(run.run_dir)

    def interrupted():
        with markers.applying(run.run_dir, 1, info.name):
            assert markers.restore_deaths(run.run_dir) == {info.name: 1}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert markers.restore_deaths(run.run_dir) == {}
    assert markers.restored_snapshots(run.run_dir) == set()


@pytest.mark.parametrize("left", ["empty", "torn", "zeros"])
def test_what_a_power_cut_leaves_of_a_marker_counts_no_death(run, make, left):
    info = make.publish(run.run_dir)
    path = os.path.join(run.run_dir, "recovery", f"restoring.{info.name}")
    with markers.applying(run.run_dir, 1, info.name):
        with open(path, "rb") as file:
            whole = file.read()
        data = {"empty": b"", "torn": whole[:-20], "zeros": bytes(len(whole))}[left]
        with open(path, "wb") as file:
            file.write(data)
        assert markers.restore_deaths(run.run_dir) == {}
        assert markers.marked_snapshots(run.run_dir) == {info.name}
        with markers.applying(run.run_dir, 1, info.name):
            assert markers.restore_deaths(run.run_dir) == {info.name: 1}


def test_markers_wait_for_no_disk(run, make, monkeypatch):
    info = make.publish(run.run_dir)
    recorder = Recorder()
    monkeypatch.setattr(door, "active", recorder)
    with markers.applying(run.run_dir, 1, info.name):
        markers.mark_restored(run.run_dir, 1, info.name)
    assert len(recorder.ops("rename")) == 2
    assert recorder.ops("fsync", "fdatasync") == []


def test_restored_snapshots_are_remembered(run, make):
    info = make.publish(run.run_dir)
    markers.mark_restored(run.run_dir, 1, info.name)
    assert markers.restored_snapshots(run.run_dir) == {info.name}
    assert os.listdir(os.path.join(run.run_dir, "recovery")) == [f"restored.{info.name}.marker"]
