"""Damage in any file of a snapshot is found before a value of it reaches the user, and named."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from damaged_runs import STEPS, digests, entries, files_of, flip, flip_places, newest, original
from damaged_runs import three as three
from program import Training, tracking

import pyengine
from pyengine import errors
from pyengine.format.segment import parse_header

__all__ = ["digests", "original"]

Attempt = Callable[[], None]


def restore_and_read(engine: pyengine.SnapshotEngine, training: Training, *, eager: bool) -> None:
    """Restore, then read every row. An eager restore must have read them all by itself."""
    engine.restore(eager=eager, fall_back=False)
    assert not eager, "an eager restore left damage to be found later"
    training.ring.gather(training.ring.refs())


def refused(attempt: Attempt, path: Path) -> errors.DamageError:
    """Return the error of damage in `path`; everything else fails the test."""
    with pytest.raises(errors.DamageError) as caught:
        attempt()
    assert caught.value.path == str(path), caught.value
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("eager", [False, True])
def test_a_flipped_bit_in_any_file_is_found_and_named(three: Path, eager: bool) -> None:
    snapshot = newest(three)
    files = files_of(snapshot)
    assert {path.suffix for path in files} == {".json", ".msgpack", ".safetensors", ".seg"}
    with tracking(three) as (engine, training):
        for path in files:
            for offset in flip_places(path):
                flip(path, offset)
                error = refused(lambda: restore_and_read(engine, training, eager=eager), path)
                if path.suffix == ".seg":
                    assert error.offset is not None
                    assert error.offset <= max(offset, path.stat().st_size - 8)
                flip(path, offset)
        assert engine.restore(eager=eager).global_step == STEPS[2], "every bit was put back"
    assert entries(three, "quarantine") == []


@pytest.mark.parametrize("eager", [False, True])
def test_a_file_that_is_one_byte_short_is_truncated(three: Path, eager: bool) -> None:
    with tracking(three) as (engine, training):
        for path in files_of(newest(three)):
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


def start_pages(path: Path, data: bytes) -> range:
    """Return the pages of the field that says where episodes start, which no batch holds: lazily
    it is verified by whoever reads it."""
    if path.suffix != ".seg":
        return range(0)
    (field,) = (one for one in parse_header(data, "x").fields if one.name == "@start")
    return range(field.offset, field.offset + field.region_bytes)


@pytest.mark.parametrize("eager", [False, True])
def test_a_zeroed_page_is_found(three: Path, eager: bool) -> None:
    with tracking(three) as (engine, training):
        for path in files_of(newest(three)):
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("buffer/replay/*-0-0-8-*.seg", "buffer/replay/*-1-0-8-*.seg"),
        ("buffer/replay/*-0-0-8-*.seg", "buffer/replay/*-part-*.seg"),
        ("rng/explorer.msgpack", "rng/process_rng.msgpack"),
        ("optimizer/optimizer.safetensors", "model/policy.safetensors"),
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_files_that_were_swapped_are_found(three: Path, one: str, other: str, eager: bool) -> None:
    snapshot = newest(three)
    (first,), (second,) = (list(snapshot.glob(pattern)) for pattern in (one, other))
    between = three / "between"
    first.rename(between)
    second.rename(first)
    between.rename(second)
    with tracking(three) as (engine, training):
        with pytest.raises(errors.DamageError) as caught:
            restore_and_read(engine, training, eager=eager)
        assert caught.value.path in (str(first), str(second))


def test_manifests_that_were_swapped_are_found(three: Path) -> None:
    snapshots = sorted((three / "snapshots").iterdir())
    first, second = (path / "manifest.json" for path in snapshots[1:])
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    with tracking(three) as (engine, _training):
        assert engine.restore().global_step == STEPS[0]
    assert len(entries(three, "quarantine")) == 4


def test_a_missing_file_is_damage_wherever_it_lies(three: Path) -> None:
    with tracking(three) as (engine, training):
        for path in files_of(newest(three)):
            if path.name == "manifest.json":
                continue  # without it this is no snapshot
            data = path.read_bytes()
            path.unlink()
            refused(lambda: restore_and_read(engine, training, eager=False), path)
            path.write_bytes(data)


def test_a_segment_of_another_format_version_is_told_from_damage(three: Path) -> None:
    """C11: corruption, truncation and version are three types."""
    snapshot = newest(three)
    path = next(iter(sorted(snapshot.glob("buffer/replay/*-0-0-8-*.seg"))))
    flip(path, 8)
    with tracking(three) as (engine, training):
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
    with tracking(three) as (engine, _training):
        with pytest.raises(errors.FormatVersionError) as caught:
            engine.restore()
        assert caught.value.path == str(path)
    assert entries(three, "quarantine") == []
