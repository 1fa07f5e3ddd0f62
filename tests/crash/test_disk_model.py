"""The model of a disk gives what may be left after a power cut: no less, and nothing else."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from crash.disk import Disk
from crash.disk_states import CORNERS, SAMPLED, SECTOR_BYTES, state_of
from pyengine.fs import door, durable
from pyengine.fs.journal import JournalDoor


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs calls through a journal, and gives the disk fed with them."""
    import msgpack

    def record(run: Any) -> Disk:
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        root = place / "root"
        root.mkdir()
        monkeypatch.setattr(door, "active", JournalDoor(str(place / "journal")))
        run(str(root))
        monkeypatch.undo()
        disk = Disk(str(root))
        with open(place / "journal", "rb") as file:
            for note in msgpack.Unpacker(file, raw=False):
                disk.apply(note)
        return disk

    return record


def states(disk: Disk, count: int = 300) -> set[frozenset[tuple[str, Any]]]:
    """Return what the corners and many samples leave, as sets of (path, bytes or kind)."""
    found = set()
    kinds = (*CORNERS, *(SAMPLED[index % 2] for index in range(count)))
    for index, kind in enumerate(kinds):
        entries = state_of(disk, kind, random.Random(index))
        found.add(
            frozenset((path, what.data if kind == "file" else what) for path, kind, what in entries)
        )
    return found


def test_what_was_fsynced_with_its_directory_is_in_every_state(recorded: Any) -> None:
    def run(root: str) -> None:
        durable.replace_file(root, "file", b"new", temporary="file.tmp")

    assert states(recorded(run)) == {frozenset([("file", b"new")])}


def test_a_rename_that_was_not_fsynced_leaves_the_old_name_or_the_new(recorded: Any) -> None:
    def run(root: str) -> None:
        durable.write_file(root, "a", [b"data"])
        durable.fsync_directory(root)
        durable.rename(f"{root}/a", f"{root}/b")

    assert states(recorded(run)) == {frozenset([("a", b"data")]), frozenset([("b", b"data")])}


def test_names_that_were_not_fsynced_come_in_any_combination(recorded: Any) -> None:
    def run(root: str) -> None:
        for name in "ab":
            durable.write_file(root, name, [b"x"])

    both = {("a", b"x"), ("b", b"x")}
    assert states(recorded(run)) == {
        frozenset(),
        frozenset(both),
        frozenset([("a", b"x")]),
        frozenset([("b", b"x")]),
    }


def test_bytes_that_were_not_fsynced_are_absent_there_zeroed_or_torn_at_sectors(
    recorded: Any,
) -> None:
    data = b"1" * SECTOR_BYTES + b"2" * SECTOR_BYTES

    def run(root: str) -> None:
        fd = door.active.open(f"{root}/file", 0o101)
        door.active.pwrite(fd, data, 0)
        door.active.close(fd)
        durable.fsync_directory(root)

    zeros = bytes(SECTOR_BYTES)
    found = {dict(state)["file"] for state in states(recorded(run))}
    assert found == {
        b"",
        data,
        zeros + zeros,
        data[:SECTOR_BYTES],
        data[:SECTOR_BYTES] + zeros,
        zeros + data[SECTOR_BYTES:],
    }


def test_an_fsync_of_a_file_says_nothing_of_its_name(recorded: Any) -> None:
    def run(root: str) -> None:
        durable.write_file(root, "file", [b"data"])

    assert states(recorded(run)) == {frozenset(), frozenset([("file", b"data")])}


def test_a_link_has_the_bytes_of_its_source_and_a_durability_of_its_own(recorded: Any) -> None:
    def run(root: str) -> None:
        durable.make_directory(f"{root}/pool")
        durable.write_file(f"{root}/pool", "a", [b"data"])
        durable.fsync_directory(f"{root}/pool")
        durable.link_or_copy(f"{root}/pool/a", f"{root}/b", temporary=f"{root}/tmp")

    pooled = {("pool", None), ("pool/a", b"data")}
    assert states(recorded(run)) == {frozenset(pooled), frozenset(pooled | {("b", b"data")})}


def test_a_rename_between_directories_is_durable_for_each_of_them_by_its_own_fsync(
    recorded: Any,
) -> None:
    def move(root: str, synced: str) -> None:
        for name in "ab":
            durable.make_directory(f"{root}/{name}")
        durable.write_file(f"{root}/a", "file", [b"data"])
        durable.fsync_directory(f"{root}/a")
        durable.rename(f"{root}/a/file", f"{root}/b/file")
        for name in synced:
            durable.fsync_directory(f"{root}/{name}")

    directories = {("a", None), ("b", None)}
    old, new = ("a/file", b"data"), ("b/file", b"data")

    def left(*files: tuple[str, bytes]) -> frozenset[tuple[str, Any]]:
        return frozenset(directories | set(files))

    assert states(recorded(lambda root: move(root, ""))) == {
        *(left(old), left(new), left(old, new)),
    }
    assert states(recorded(lambda root: move(root, "b"))) == {left(new), left(old, new)}
    assert states(recorded(lambda root: move(root, "a"))) == {left(), left(new)}
    assert states(recorded(lambda root: move(root, "ba"))) == {left(new)}
