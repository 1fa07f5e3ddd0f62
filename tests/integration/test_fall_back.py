"""Snapshots with proven damage go to quarantine and are passed over; nothing else moves any."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash
from damaged_runs import STEPS, digests, entries, flip, newest, original, three
from processes import committed
from program import tracking

import pyengine
from pyengine import errors
from pyengine.catalog import markers, quarantine
from pyengine.cli.main import main
from pyengine.fs import door

__all__ = ["digests", "original", "three"]


def reseal(manifest: Path, **changes: Any) -> None:
    """Change fields of a manifest as a program would: its checksum holds."""
    document = {**json.loads(manifest.read_bytes()), **changes}
    del document["xxh3_64"]
    body = json.dumps(document, indent=1).removesuffix("\n}").encode() + b",\n"
    seal = xxhash.xxh3_64_hexdigest(body).encode()
    manifest.write_bytes(body + b'"xxh3_64": "%s"}' % seal)


def test_two_deaths_in_a_restore_are_told_with_the_older_snapshot_that_is_taken(
    three: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = newest(three)
    for _ in range(2):
        child = os.fork()
        if child == 0:
            with markers.applying(str(three), 1, bad.name):
                os._exit(0)
        os.waitpid(child, 0)
    with tracking(three) as (engine, _training):
        report = engine.restore()
    assert report.global_step == STEPS[1]
    assert any(bad.name in note and "died in its restore 2 times" in note for note in report.notes)
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert bad.name in told[0]


@pytest.mark.parametrize("eager", [False, True])
def test_a_damaged_newest_snapshot_is_moved_away_and_the_one_before_it_restored(
    three: Path, digests: dict[int, Any], eager: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bad = newest(three)
    file = bad / "model" / "policy.safetensors"
    flip(file, 4200)
    with tracking(three) as (engine, training):
        report = engine.restore(eager=eager)
        assert report.global_step == STEPS[1]
        assert training.digest() == digests[STEPS[1]]
        assert any(bad.name in note and "policy.safetensors" in note for note in report.notes)
        assert [record.levelname for record in caplog.records].count("ERROR") == 2
        engine.tick(report.next_step)
        engine.snapshot(report.next_step).wait(60)
    assert not bad.exists()
    assert entries(three, "quarantine") == [bad.name, f"{bad.name}.json"]
    record = json.loads((three / "quarantine" / f"{bad.name}.json").read_text())
    assert (record["file"], record["kind"]) == ("model/policy.safetensors", "corruption")
    assert record["expected"] != record["got"]
    assert record["offset"] == 0
    assert record["found_at"].endswith("Z")
    with tracking(three) as (engine, _training):
        assert engine.restore().global_step == STEPS[1] + 1


def test_without_fall_back_damage_is_an_error_and_nothing_moves(three: Path) -> None:
    bad = newest(three)
    flip(bad / "rng" / "explorer.msgpack", 30)
    with tracking(three) as (engine, training):
        before = training.digest()
        with pytest.raises(errors.DamageError) as caught:
            engine.restore(fall_back=False)
        assert caught.value.path == str(bad / "rng" / "explorer.msgpack")
        assert training.digest() == before
    assert len(committed(three)) == 3
    assert entries(three, "quarantine") == []


def test_snapshots_that_hold_the_same_damaged_file_are_passed_over_and_stay(
    three: Path, digests: dict[int, Any]
) -> None:
    """A segment that two snapshots share by a hard link: one of them is tried, none restored."""
    oldest, middle, bad = (three / "snapshots" / name for name in committed(three))
    ring = Path("buffer") / "replay"
    shared = next(
        path
        for path in sorted((bad / ring).glob("segment-*-0-8-8-*.seg"))
        if (middle / ring / path.name).samefile(path)
    )
    assert not (oldest / ring / shared.name).exists()
    flip(shared, 4096 + 40)
    with tracking(three) as (engine, training):
        report = engine.restore(eager=True)
        assert report.snapshot is not None
        assert report.snapshot.name == oldest.name
        assert training.digest() == digests[STEPS[0]]
        assert any(f"{middle.name} was passed over" in note for note in report.notes)
    assert middle.exists()
    assert entries(three, "quarantine") == [bad.name, f"{bad.name}.json"]
    with tracking(three) as (engine, _training):
        # Lazily, the damaged rows would not be read: what quarantine knows decides.
        assert engine.restore().global_step == STEPS[0]


def test_an_equal_file_of_its_own_is_no_reason_to_pass_a_snapshot_over(
    three: Path, digests: dict[int, Any]
) -> None:
    """State that never changes has one checksum in all snapshots, and bytes of its own in each."""
    middle, bad = (three / "snapshots" / name for name in committed(three)[1:])
    same = "buffer/replay/mutable.safetensors"
    shutil.copy(middle / same, bad / same)
    files = json.loads((bad / "manifest.json").read_bytes())["files"]
    others = json.loads((middle / "manifest.json").read_bytes())["files"]
    (record,) = (item for item in others if item["path"] == same)
    reseal(
        bad / "manifest.json", files=[record if item["path"] == same else item for item in files]
    )
    flip(bad / same, 5)
    with tracking(three) as (engine, training):
        assert engine.restore().global_step == STEPS[1]
        assert training.digest() == digests[STEPS[1]]


def test_none_left_is_an_error_that_lists_them_and_never_a_fresh_start(three: Path) -> None:
    snapshots = [three / "snapshots" / name for name in committed(three)]
    for path in snapshots:
        flip(path / "meta.json", 5)
    for _ in range(2):  # the second start finds them in quarantine
        with tracking(three) as (engine, training):
            before = training.digest()
            with pytest.raises(errors.NothingRestorableError, match="fresh=True") as caught:
                engine.restore()
            assert training.digest() == before
            assert {Path(path).name for path, _ in caught.value.refused} == {
                path.name for path in snapshots
            }
            assert all("meta.json" in reason for _, reason in caught.value.refused)
            with pytest.raises(errors.UnrestoredRunError):
                engine.tick(0)
    assert len(entries(three, "quarantine")) == 6
    with tracking(three, fresh=True) as (engine, _training):
        assert not engine.restore()
        engine.snapshot(0).wait(60)
    with tracking(three) as (engine, _training):
        assert engine.restore().global_step == 0


def test_names_in_quarantine_are_never_reused(three: Path) -> None:
    bad = newest(three)
    keep = three.with_name("copy")
    shutil.copytree(bad, keep)
    for _ in range(2):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(keep, bad)
        flip(bad / "meta.json", 5)
        with tracking(three) as (engine, _training):
            assert engine.restore().global_step == STEPS[1]
    first, second = bad.name, f"{bad.name}-2"
    assert entries(three, "quarantine") == [first, second, f"{second}.json", f"{first}.json"]
    for name in (first, second):
        record = json.loads((three / "quarantine" / f"{name}.json").read_text())
        assert record["snapshot"] == bad.name


class _FailingReads(door.Door):
    """Reads of one file fail with EIO."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def pread_into(self, fd: int, buffers: Any, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == self._path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        return super().pread_into(fd, buffers, offset)


class _BadFirstRead(door.Door):
    """The first read of one file gives a wrong byte, as a bad page in memory does."""

    def __init__(self, path: Path, times: int = 1) -> None:
        self._path = str(path)
        self._times = times

    def pread_into(self, fd: int, buffers: Any, offset: int) -> int:
        count = super().pread_into(fd, buffers, offset)
        if self._times and count and os.readlink(f"/proc/self/fd/{fd}") == self._path:
            self._times -= 1
            buffers[0][0] ^= 1
        return count


def test_an_io_error_is_raised_and_moves_nothing(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = newest(three) / "model" / "policy.safetensors"
    with tracking(three) as (engine, training):
        before = training.digest()
        with monkeypatch.context() as patch:
            patch.setattr(door, "active", _FailingReads(file))
            with pytest.raises(OSError, match=r"policy\.safetensors") as caught:
                engine.restore()
        assert caught.value.errno == errno.EIO
        assert training.digest() == before
        assert entries(three, "quarantine") == []
        assert engine.restore().global_step == STEPS[2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_raised_and_moves_nothing(three: Path) -> None:
    file = newest(three) / "meta.json"
    file.chmod(0)
    with tracking(three) as (engine, _training):
        with pytest.raises(PermissionError):
            engine.restore()
        assert entries(three, "quarantine") == []


def test_a_permission_error_moves_nothing_whoever_asks(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(door.Door):
        def open(self, path: str, flags: int, mode: int = 0o666, *, dir_fd: Any = None) -> int:
            if path == "policy.safetensors":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return super().open(path, flags, mode, dir_fd=dir_fd)

    with tracking(three) as (engine, _training):
        with monkeypatch.context() as patch:
            patch.setattr(door, "active", Refusing())
            with pytest.raises(PermissionError):
                engine.restore()
        assert entries(three, "quarantine") == []


def test_one_wrong_read_is_no_damage(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = newest(three) / "optimizer" / "optimizer.safetensors"
    with tracking(three) as (engine, _training), monkeypatch.context() as patch:
        patch.setattr(door, "active", _BadFirstRead(file))
        assert engine.restore().global_step == STEPS[2]
    assert entries(three, "quarantine") == []


def test_two_wrong_reads_that_a_verification_cannot_repeat_are_no_damage(
    three: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = newest(three) / "optimizer" / "optimizer.safetensors"
    with tracking(three) as (engine, _training), monkeypatch.context() as patch:
        patch.setattr(door, "active", _BadFirstRead(file, times=2))
        assert engine.restore().global_step == STEPS[2]
    assert entries(three, "quarantine") == []
    assert "a second read found nothing wrong" in caplog.text


def test_a_newer_version_is_raised_and_moves_nothing(three: Path) -> None:
    reseal(newest(three) / "manifest.json", schema_version=99)
    with (
        tracking(three) as (engine, _training),
        pytest.raises(errors.FormatVersionError, match="newer"),
    ):
        engine.restore()
    assert entries(three, "quarantine") == []


def test_a_manifest_that_was_written_wrongly_is_no_damage(three: Path) -> None:
    manifest = newest(three) / "manifest.json"
    reseal(manifest, line="no line")
    with tracking(three) as (engine, _training):
        with pytest.raises(errors.MalformedFileError, match="written so") as caught:
            engine.restore()
        assert caught.value.path == str(manifest)
    assert entries(three, "quarantine") == []


def test_a_component_that_was_written_wrongly_is_no_damage(three: Path) -> None:
    file = newest(three) / "meta.json"
    file.write_bytes(b"[]")
    manifest = newest(three) / "manifest.json"
    files = json.loads(manifest.read_bytes())["files"]
    for item in files:
        if item["path"] == "meta.json":
            item |= {"size_bytes": 2, "xxh3_64": xxhash.xxh3_64_hexdigest(b"[]")}
    reseal(manifest, files=files)
    with tracking(three) as (engine, training):
        before = training.digest()
        with pytest.raises(errors.MalformedFileError) as caught:
            engine.restore()
        assert caught.value.path == str(file)
        assert training.digest() == before
    assert entries(three, "quarantine") == []


def test_rows_that_lie_elsewhere_than_the_header_says_are_no_damage(three: Path) -> None:
    """Checksums hold, extents do not: found when the files are opened, and raised."""
    snapshot = newest(three)
    path = "buffer/replay/buffer_header.json"
    header = json.loads((snapshot / path).read_bytes())
    full = [extent for extent in header["extents"] if "-part-" not in extent[3]]
    full[0][3], full[1][3] = full[1][3], full[0][3]
    data = json.dumps(header).encode()
    (snapshot / path).write_bytes(data)
    files = json.loads((snapshot / "manifest.json").read_bytes())["files"]
    for item in files:
        if item["path"] == path:
            item |= {"size_bytes": len(data), "xxh3_64": xxhash.xxh3_64_hexdigest(data)}
    reseal(snapshot / "manifest.json", files=files)
    with (
        tracking(three) as (engine, _training),
        pytest.raises(errors.MalformedFileError, match="does not hold segment"),
    ):
        engine.restore()
    assert entries(three, "quarantine") == []


def test_a_snapshot_in_quarantine_does_not_count_and_is_not_deleted(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = newest(three)
    flip(bad / "meta.json", 5)
    with tracking(three) as (engine, training):
        first = engine.restore().next_step
        for step in range(first, first + 6):
            training.step(step)
            engine.snapshot(step).wait(60)
    assert [info.name for info in pyengine.open_run(three).snapshots if info.name == bad.name] == []
    assert quarantine.snapshot_names(str(three)) == [bad.name]
    assert (three / "quarantine" / bad.name / "manifest.json").exists()
    assert main(["inspect", str(three), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quarantine"] == [bad.name]
    assert main(["inspect", str(three)]) == 0
    assert f"in quarantine: {bad.name}" in capsys.readouterr().out
