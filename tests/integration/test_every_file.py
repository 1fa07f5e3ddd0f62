"""Damage in any file of a snapshot is found before a value of it reaches the user, and named."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from damaged_runs import (
    STEPS,
    FullTraining,
    entries,
    files_of,
    flip,
    flip_places,
    full,
    full_original,
    newest,
    tracking_fully,
)
from program import LANES

import pyengine
from pyengine import errors
from pyengine.format.segment import parse_header

__all__ = ["full", "full_original"]

Attempt = Callable[[], None]

KINDS = {
    "manifest.json", "meta.json", "model/.safetensors", "optimizer/.msgpack",
    "optimizer/.safetensors", "rng/.msgpack", "rng/.safetensors", "state/.msgpack",
    "state/.safetensors", "environment/.msgpack", "environment/.safetensors", "legacy/.pkl",
    "buffer/buffer_header.json", "buffer/mutable.safetensors", "buffer/segment.seg",
    "buffer/part.seg",
}  # fmt: skip
"""Every kind of file that a snapshot can have."""


def kind_of(path: Path, snapshot: Path) -> str:
    """Return the kind of a file as KINDS names it."""
    folder, *rest = path.relative_to(snapshot).parts
    if not rest:
        return folder
    if folder != "buffer":
        return f"{folder}/{path.suffix}"
    if path.suffix == ".seg":
        return "buffer/part.seg" if "-part-" in path.name else "buffer/segment.seg"
    return f"buffer/{path.name}"


def two_of_each(snapshot: Path) -> list[Path]:
    """Return two files of each kind, or the one that there is."""
    found: dict[str, list[Path]] = {}
    for path in files_of(snapshot):
        found.setdefault(kind_of(path, snapshot), []).append(path)
    assert found.keys() == KINDS
    return [path for paths in found.values() for path in (*paths[:1], *paths[1:][-1:])]


def restore_and_read(
    engine: pyengine.SnapshotEngine, training: FullTraining, *, eager: bool
) -> None:
    """Restore, then read every row. An eager restore must have read them all by itself."""
    engine.restore(eager=eager, fall_back=False)
    assert not eager, "an eager restore left damage to be found later"
    for ring in training.rings():
        ring.gather(ring.refs())


def refused(attempt: Attempt, path: Path) -> errors.DamageError:
    """Return the error of damage in `path`; everything else fails the test."""
    with pytest.raises(errors.DamageError) as caught:
        attempt()
    assert caught.value.path == str(path), caught.value
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("eager", [False, True])
def test_a_flipped_bit_in_any_file_is_found_and_named(full: Path, eager: bool) -> None:
    with tracking_fully(full) as (engine, training):
        for path in two_of_each(newest(full)):
            for offset in flip_places(path):
                flip(path, offset)
                error = refused(lambda: restore_and_read(engine, training, eager=eager), path)
                if path.suffix == ".seg":
                    assert error.offset is not None
                    assert error.offset <= max(offset, path.stat().st_size - 8)
                flip(path, offset)
        assert engine.restore(eager=eager).global_step == STEPS[2], "every bit was put back"
    assert entries(full, "quarantine") == []


@pytest.mark.parametrize("eager", [False, True])
def test_a_file_that_is_one_byte_short_is_truncated(full: Path, eager: bool) -> None:
    with tracking_fully(full) as (engine, training):
        for path in two_of_each(newest(full)):
            data = path.read_bytes()
            with open(path, "r+b") as file:
                file.truncate(len(data) - 1)
            error = refused(lambda: restore_and_read(engine, training, eager=eager), path)
            if path.name != "manifest.json":  # which nothing else tells the size of
                assert isinstance(error, errors.TruncatedFileError)
                assert (error.expected, error.got) == (len(data), len(data) - 1)
                assert error.offset == len(data) - 1
            with open(path, "r+b") as file:
                file.write(data)


def put_link(path: Path, aside: Path) -> None:
    path.symlink_to(aside)


def put_loop(path: Path, aside: Path) -> None:
    path.symlink_to(path.name)


def put_fifo(path: Path, aside: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path, aside: Path) -> None:
    here = os.open(path.parent, os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"/proc/self/fd/{here}/socket")
    os.close(here)
    path.with_name("socket").rename(path)


def put_giant(path: Path, aside: Path) -> None:
    """With the bytes of the file, and 4 TiB of nothing after them."""
    path.write_bytes(aside.read_bytes())
    os.truncate(path, 1 << 42)


@pytest.mark.parametrize("put", [put_link, put_loop, put_fifo, put_socket, put_giant])
def test_what_is_not_the_file_in_place_of_any_is_found_and_named(
    full: Path, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    aside = tmp_path / "aside"
    with tracking_fully(full) as (engine, training):
        for path in two_of_each(newest(full)):
            path.rename(aside)
            put(path, aside)
            refused(lambda: restore_and_read(engine, training, eager=False), path)
            path.unlink()
            aside.rename(path)


def start_pages(path: Path, data: bytes) -> range:
    """Return the pages of the field that says where episodes start, which no batch holds: lazily
    it is verified by whoever reads it."""
    if path.suffix != ".seg":
        return range(0)
    (field,) = (one for one in parse_header(data, "x").fields if one.name == "@start")
    return range(field.offset, field.offset + field.region_bytes)


@pytest.mark.parametrize("eager", [False, True])
def test_a_zeroed_page_is_found(full: Path, eager: bool) -> None:
    with tracking_fully(full) as (engine, training):
        for path in two_of_each(newest(full)):
            data = path.read_bytes()
            for page in range(0, len(data), 4096):
                if not data[page : page + 4096].strip(b"\0"):
                    continue  # zeros already
                if not eager and page in start_pages(path, data):
                    continue
                with open(path, "r+b") as file:
                    file.seek(page)
                    file.write(bytes(len(data[page : page + 4096])))
                refused(lambda: restore_and_read(engine, training, eager=eager), path)
                with open(path, "r+b") as file:
                    file.write(data)


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def pairs(snapshot: Path, older: Path) -> dict[str, tuple[Path, Path]]:
    """Return pairs of files that differ, by what they are: of each two kinds in one snapshot that
    have equally long ones, in two rings, and of each kind in two snapshots."""
    found: dict[str, tuple[Path, Path]] = {}
    files = files_of(snapshot)
    for one, other in itertools.combinations(files, 2):
        if one.stat().st_size == other.stat().st_size and one.read_bytes() != other.read_bytes():
            ring_one, ring_other = ring_of(one, snapshot), ring_of(other, snapshot)
            rings = " in two rings" if ring_one != ring_other else ""
            kinds = f"{kind_of(one, snapshot)} and {kind_of(other, snapshot)}"
            found.setdefault(f"{kinds}{rings}", (one, other))
    for one in files:
        other = older / one.relative_to(snapshot)
        if other.exists() and one.read_bytes() != other.read_bytes():
            found.setdefault(f"{kind_of(one, snapshot)} in two snapshots", (one, other))
    return found


def ring_of(path: Path, snapshot: Path) -> str:
    """Return the ring that a file belongs to, or nothing."""
    folder, *rest = path.relative_to(snapshot).parts
    return rest[0] if folder == "buffer" else ""


SWAPPED = {
    "model/.safetensors", "optimizer/.msgpack", "optimizer/.safetensors", "rng/.msgpack",
    "state/.msgpack", "state/.safetensors", "environment/.msgpack", "environment/.safetensors",
    "legacy/.pkl", "buffer/segment.seg",
}  # fmt: skip
"""Kinds of which a full snapshot holds two that are equally long."""


@pytest.mark.parametrize("eager", [False, True])
def test_files_that_were_swapped_are_found_and_named(full: Path, eager: bool) -> None:
    older, snapshot = sorted((full / "snapshots").iterdir())[-2:]
    found = pairs(snapshot, older)
    assert {f"{kind} and {kind}" for kind in SWAPPED} <= found.keys()
    in_two = {name.removesuffix(" in two snapshots") for name in found}
    assert KINDS - {"buffer/segment.seg", "buffer/part.seg"} <= in_two
    assert "buffer/segment.seg and buffer/segment.seg in two rings" in found
    assert "buffer/part.seg and buffer/part.seg in two rings" in found
    with tracking_fully(full) as (engine, training):
        for name, (one, other) in found.items():
            if "manifest.json" in name:
                continue  # see below: both snapshots are damaged
            swap(one, other)
            with pytest.raises(errors.DamageError) as caught:
                restore_and_read(engine, training, eager=eager)
            assert caught.value.path in (str(one), str(other)), name
            swap(one, other)
        assert engine.restore(eager=eager).global_step == STEPS[2], "all were put back"


def pooled(run_dir: Path, ring: str, line: int) -> list[Path]:
    """Return the full segments of one line in a ring's pool."""
    found = sorted((run_dir / "segments" / ring).glob(f"{line:016x}-*.seg"))
    return [path for path in found if "-part-" not in path.name]


@pytest.mark.parametrize("between", ["lanes", "rings"])
def test_segments_that_were_swapped_in_the_pool_never_give_rows_of_other_places(
    full: Path, between: str
) -> None:
    """Rows that only the pool has are taken by what the files say, and others stay behind."""
    with tracking_fully(full) as (engine, training):
        for step in range(engine.restore().next_step, 40):
            training.step(step)
        digest = training.digest()
        line = training.ring.control.line
    one = pooled(full, "replay", line)[-1]
    other = pooled(full, "other" if between == "rings" else "replay", line)[
        -1 if between == "rings" else 0
    ]
    assert one.read_bytes() != other.read_bytes()
    swap(one, other)
    with tracking_fully(full) as (engine, training):
        report = engine.restore(replay="latest")
        for ring in training.rings():
            rows = ring[ring.refs()]
            assert (rows["number"] == ring.refs() // LANES).all()
            assert (rows["check"] == rows["number"] * 3 + 1).all()
        assert training.digest()["rows"] != digest["rows"] or between == "rings"
        training.step(report.next_step)
        engine.snapshot(report.next_step).wait(60)
        digest = training.digest()
    with tracking_fully(full) as (engine, training):
        engine.restore(fall_back=False)
        assert training.digest() == digest


def test_a_segment_that_was_swapped_under_a_live_run_is_found_by_the_next_restore(
    full: Path,
) -> None:
    with tracking_fully(full) as (engine, training):
        for step in range(engine.restore().next_step, 26):
            training.step(step)
        one, other = pooled(full, "replay", training.ring.control.line)[:2]
        swap(one, other)
        engine.snapshot(25).wait(60)
        digest = training.digest()
    with tracking_fully(full) as (engine, training):
        with pytest.raises(errors.DamageError) as caught:
            engine.restore(eager=True, fall_back=False)
        assert Path(caught.value.path).name.removeprefix("segment-") in (one.name, other.name)
        assert engine.restore(eager=True).global_step == STEPS[2]
        assert training.digest() != digest


def test_manifests_that_were_swapped_are_found(full: Path) -> None:
    snapshots = sorted((full / "snapshots").iterdir())
    first, second = (path / "manifest.json" for path in snapshots[1:])
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    with tracking_fully(full) as (engine, _training):
        assert engine.restore().global_step == STEPS[0]
    assert len(entries(full, "quarantine")) == 4


def test_a_missing_file_is_damage_wherever_it_lies(full: Path) -> None:
    with tracking_fully(full) as (engine, training):
        for path in two_of_each(newest(full)):
            if path.name == "manifest.json":
                continue  # without it this is no snapshot
            data = path.read_bytes()
            path.unlink()
            refused(lambda: restore_and_read(engine, training, eager=False), path)
            path.write_bytes(data)


def test_a_segment_of_another_format_version_is_told_from_damage(full: Path) -> None:
    """C11: corruption, truncation and version are three types."""
    snapshot = newest(full)
    path = next(iter(sorted(snapshot.glob("buffer/replay/*-0-0-8-*.seg"))))
    flip(path, 8)
    with tracking_fully(full) as (engine, training):
        error = refused(lambda: restore_and_read(engine, training, eager=False), path)
        assert (error.offset, error.expected, error.got) == (8, 1, 0)
    # Written so: every checksum holds.
    image = bytearray(path.read_bytes())
    table_offset = struct.unpack_from("<Q", image, 64)[0]
    (header_bytes,) = struct.unpack_from("<I", image, 12)
    digest = xxhash.xxh3_64(bytes(image[:header_bytes]) + bytes(image[table_offset:-8])).intdigest()
    image[-8:] = struct.pack("<Q", digest)
    with open(path, "r+b") as file:
        file.write(image)
    manifest = snapshot / "manifest.json"
    document = json.loads(manifest.read_bytes())
    del document["xxh3_64"]
    for item in document["files"]:
        if item["path"] == path.relative_to(snapshot).as_posix():
            item["xxh3_64"] = f"{digest:016x}"
    body = json.dumps(document, indent=1).removesuffix("\n}").encode() + b",\n"
    manifest.write_bytes(body + b'"xxh3_64": "%s"}' % xxhash.xxh3_64_hexdigest(body).encode())
    with tracking_fully(full) as (engine, _training):
        with pytest.raises(errors.FormatVersionError) as caught:
            engine.restore()
        assert caught.value.path == str(path)
    assert entries(full, "quarantine") == []
