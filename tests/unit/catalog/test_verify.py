"""Verify: every kind of damage is named with path, kind and offset."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
import xxhash

from pyengine.catalog.verify import verify_segment, verify_snapshot
from pyengine.errors import DamageError
from pyengine.format import segment
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Rule
from pyengine.fs.locks import is_locked

SEGMENT = "buffer/replay/segment-b.seg"
MODEL = "model/policy.safetensors"


@pytest.fixture
def snapshot(run, make):
    return make.publish(run.run_dir).path


def _flip(snapshot, file, offset):
    with open(os.path.join(snapshot, file), "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte[0] ^ 1]))


def _only(snapshot, **options):
    (problem,) = verify_snapshot(snapshot, **options)
    return os.path.relpath(problem.path, snapshot), problem.kind, problem.offset


def _layout(snapshot):
    with open(os.path.join(snapshot, SEGMENT), "rb") as file:
        return segment.parse_header(file.read(), SEGMENT)


def test_whole_snapshot_has_no_problems(snapshot):
    assert verify_snapshot(snapshot) == []
    assert verify_snapshot(snapshot, eager=False) == []


def test_copy_of_a_snapshot_is_whole(snapshot, tmp_path):
    shutil.copytree(snapshot, tmp_path / "copy")
    assert verify_snapshot(str(tmp_path / "copy")) == []


def test_flipped_byte_in_a_plain_file(snapshot):
    _flip(snapshot, MODEL, 30)
    assert _only(snapshot) == (MODEL, "corruption", 0)


def test_every_region_of_a_segment_is_covered(snapshot):
    layout = _layout(snapshot)
    offsets = [0, 9, 130, layout.header_bytes - 1, layout.block_table_offset]
    offsets += [layout.file_bytes - 9, layout.file_bytes - 1]
    for _, offset, length in segment.iter_blocks(layout):
        offsets += [offset, offset + length - 1]
    for offset in offsets:
        _flip(snapshot, SEGMENT, offset)
        file, _, _ = _only(snapshot)
        assert file == SEGMENT
        _flip(snapshot, SEGMENT, offset)
    assert verify_snapshot(snapshot) == []


def test_flipped_row_names_the_offset_of_its_block(snapshot):
    region = _layout(snapshot).fields[1]
    _flip(snapshot, SEGMENT, region.offset + 5)
    assert _only(snapshot) == (SEGMENT, "corruption", region.offset)
    assert verify_snapshot(snapshot, eager=False) == []


def test_lazy_verify_finds_damaged_headers_and_tables(snapshot):
    for offset in (12, _layout(snapshot).block_table_offset):
        _flip(snapshot, SEGMENT, offset)
        assert _only(snapshot, eager=False)[:2] == (SEGMENT, "corruption")
        _flip(snapshot, SEGMENT, offset)


@pytest.mark.parametrize("file", [MODEL, SEGMENT, "buffer/replay/buffer_header.json"])
def test_shortened_and_lengthened_files(snapshot, file):
    path = os.path.join(snapshot, file)
    size = os.path.getsize(path)
    os.truncate(path, size - 1)
    assert ("truncated", size - 1) in {
        (problem.kind, problem.offset) for problem in verify_snapshot(snapshot)
    }
    os.truncate(path, size + 1)
    assert "corruption" in {problem.kind for problem in verify_snapshot(snapshot)}


@pytest.mark.parametrize("file", [MODEL, SEGMENT])
def test_missing_file(snapshot, file):
    os.unlink(os.path.join(snapshot, file))
    assert _only(snapshot) == (file, "missing", None)


def test_zeroed_header(snapshot):
    with open(os.path.join(snapshot, SEGMENT), "r+b") as file:
        file.write(bytes(4096))
    assert _only(snapshot)[:2] == (SEGMENT, "corruption")


def test_segment_of_another_version(snapshot):
    with open(os.path.join(snapshot, SEGMENT), "r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 2))
        file.seek(130)  # its header differs in more than the version
        file.write(b"\xff")
    assert _only(snapshot)[:2] == (SEGMENT, "version")


def test_changed_version_of_a_segment_is_corruption(snapshot):
    """The checksum holds with our version in that place, so ours is what was written."""
    with open(os.path.join(snapshot, SEGMENT), "r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 2))
    assert _only(snapshot)[:3] == (SEGMENT, "corruption", 8)


def test_link_in_place_of_a_file(snapshot, tmp_path):
    shutil.move(os.path.join(snapshot, MODEL), tmp_path / "away")
    os.symlink(tmp_path / "away", os.path.join(snapshot, MODEL))
    assert _only(snapshot)[:2] == (MODEL, "corruption")


def test_missing_manifest_and_missing_directory(snapshot, tmp_path):
    assert _only(str(tmp_path / "none"))[1] == "missing"
    os.unlink(os.path.join(snapshot, "manifest.json"))
    assert _only(snapshot) == ("manifest.json", "missing", None)


def test_read_error_proves_nothing(snapshot, monkeypatch):
    rule = Rule(op="pread_into", path="*/policy.safetensors", action="error", times=0)
    monkeypatch.setattr(door, "active", FaultDoor([rule]))
    assert _only(snapshot)[:2] == (MODEL, "unreadable")


def test_mismatch_that_is_gone_at_the_second_look_is_no_damage(snapshot, monkeypatch):
    class Flaky(door.Door):
        looks = 0

        def pread_into(self, fd, buffers, offset):
            count = super().pread_into(fd, buffers, offset)
            if os.readlink(f"/proc/self/fd/{fd}").endswith(MODEL):
                self.looks += 1
                if self.looks == 1:
                    buffers[0][0] ^= 1
            return count

    flaky = Flaky()
    monkeypatch.setattr(door, "active", flaky)
    assert verify_snapshot(snapshot) == []
    assert flaky.looks == 2


def test_progress_ends_at_the_whole_size(snapshot, run):
    seen = []
    _flip(snapshot, MODEL, 3)
    verify_snapshot(snapshot, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_snapshot_is_held_while_it_is_verified(snapshot):
    manifest = os.path.join(snapshot, "manifest.json")
    held = []
    verify_snapshot(snapshot, progress=lambda *_: held.append(is_locked(manifest)))
    assert all(held)
    assert held
    assert not is_locked(manifest)


def test_extents_that_the_files_do_not_hold_are_damage(run, make):
    """All checksums are right, and yet the header points at rows that are not there."""
    staged, manifest = make.stage(run.run_dir)
    path = "buffer/replay/segment-a.seg"
    image = make.segment_image([segment.Run(0, 100, 4)])
    with open(os.path.join(staged, path), "wb") as file:
        file.write(image)
    import dataclasses

    (checksum,) = struct.unpack_from("<Q", image, len(image) - 8)
    files = tuple(
        dataclasses.replace(record, xxh3_64=f"{checksum:016x}") if record.path == path else record
        for record in manifest.files
    )
    from pyengine.catalog import commit

    info = commit.publish_snapshot(
        run.run_dir,
        staged,
        dataclasses.replace(manifest, files=files),
        begin=lambda: True,
        keep_last=3,
    )
    assert _only(info.path)[:2] == ("buffer/replay/buffer_header.json", "corruption")


def test_checksums_are_those_of_the_format(snapshot):
    with open(os.path.join(snapshot, MODEL), "rb") as file:
        expected = xxhash.xxh3_64_hexdigest(file.read())
    with open(os.path.join(snapshot, "manifest.json"), "rb") as file:
        assert expected.encode() in file.read()


@pytest.mark.parametrize("head", [0, 4096])
def test_a_sparse_giant_in_place_of_a_segment_is_refused_by_its_header(tmp_path, head):
    """Its table would be all of it: 4 TiB of zeros, if it were believed."""
    golden = Path(__file__).parents[2] / "golden" / "v1" / "part.seg"
    with open(tmp_path / "x.seg", "wb") as file:
        file.write(golden.read_bytes()[:head])
        file.truncate(1 << 42)
    tracemalloc.start()
    try:
        with pytest.raises(DamageError):
            verify_segment(str(tmp_path), "x.seg")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
