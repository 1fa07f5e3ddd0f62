"""Durable writes: whole or absent, hashed in the same pass, direct where memory allows."""

from __future__ import annotations

import errno
import mmap
import os

import pytest
import xxhash

from pyengine.errors import NoSpaceError
from pyengine.fs import door, durable
from pyengine.fs.faults import FaultDoor, Recorder, Rule

PAGE = 4096


@pytest.fixture
def armed(monkeypatch):
    def arm(*rules):
        monkeypatch.setattr(door, "active", FaultDoor(rules))

    return arm


@pytest.fixture
def recorder(monkeypatch):
    recording = Recorder()
    monkeypatch.setattr(door, "active", recording)
    return recording


def _aligned(data):
    memory = mmap.mmap(-1, max(len(data), PAGE))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


def _noise(size_bytes):
    return os.urandom(1024) * (size_bytes // 1024) + os.urandom(size_bytes % 1024)


PIECES = {
    "empty": [],
    "empty piece": [b""],
    "one byte": [b"x"],
    "one page": [_aligned(_noise(PAGE))],
    "page and tail": [_aligned(_noise(PAGE + 17))],
    "header then aligned": [_noise(PAGE), _aligned(_noise(40 * PAGE))],
    "odd header then aligned": [_noise(100), _aligned(_noise(40 * PAGE + 3))],
    "unaligned memory": [memoryview(bytearray(_noise(20 * PAGE + 5)))[1:]],
    "large mixed": [
        _aligned(_noise(9 << 20)),
        memoryview(bytearray(_noise(9 << 20)))[3:],
        b"end",
    ],
    "many small": [_noise(700)] * 300,
    "typed view": [memoryview(bytearray(_noise(8 * 100))).cast("d")],
}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_file_holds_the_pieces_and_their_hash(tmp_path, name, direct):
    pieces = PIECES[name]
    written = durable.write_file(str(tmp_path), "file", pieces, direct=direct)
    expected = b"".join(bytes(piece) for piece in pieces)
    assert (tmp_path / "file").read_bytes() == expected
    assert written.size_bytes == len(expected)
    assert written.xxh3_64 == xxhash.xxh3_64_intdigest(expected)


def test_directory_may_be_a_descriptor(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        durable.write_file(fd, "file", [b"abc"])
    finally:
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        durable.write_file(str(tmp_path), "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"old"


def test_file_system_without_direct_writes_is_written_buffered(tmp_path, armed):
    armed(Rule(op="pwrite", action="error", errno="EINVAL", nth=1, times=2))
    data = _aligned(_noise(70 * PAGE + 9))
    written = durable.write_file(str(tmp_path), "file", [data], direct=True)
    assert (tmp_path / "file").read_bytes() == bytes(data)
    assert written.xxh3_64 == xxhash.xxh3_64_intdigest(data)


def test_direct_refused_at_open_is_written_buffered(tmp_path, armed):
    armed(Rule(op="open", action="error", errno="EINVAL", path="*/file", nth=1))
    data = _aligned(_noise(2 * PAGE))
    durable.write_file(str(tmp_path), "file", [data], direct=True)
    assert (tmp_path / "file").read_bytes() == bytes(data)


def test_failed_fsync_is_not_repeated_and_leaves_no_file(tmp_path, armed):
    armed(Rule(op="fsync", action="error", errno="EIO", nth=1))
    with pytest.raises(OSError, match="Input/output") as caught:
        durable.write_file(str(tmp_path), "file", [b"abc"])
    assert caught.value.errno == errno.EIO
    assert os.listdir(tmp_path) == []
    durable.write_file(str(tmp_path), "again", [b"abc"])


def test_full_file_system_names_needed_and_free_bytes(tmp_path, armed):
    armed(Rule(op="pwrite", action="error", errno="ENOSPC"))
    with pytest.raises(NoSpaceError) as caught:
        durable.write_file(str(tmp_path), "file", [b"abc", b"defg"])
    assert caught.value.needed_bytes == 7
    assert caught.value.free_bytes > 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("op", ["mkdir", "link", "rename", "symlink", "fsync"])
def test_a_name_that_does_not_fit_is_told_as_a_full_file_system(tmp_path, armed, op):
    (tmp_path / "file").write_bytes(b"old")
    here = str(tmp_path)
    calls = {
        "mkdir": lambda: durable.make_directory(f"{here}/new"),
        "link": lambda: durable.link_or_copy(
            f"{here}/file", f"{here}/other", temporary=f"{here}/t"
        ),
        "rename": lambda: durable.rename(f"{here}/file", f"{here}/other"),
        "symlink": lambda: durable.replace_symlink(here, "latest", "file", temporary="t"),
        "fsync": lambda: durable.fsync_directory(here),
    }
    armed(Rule(op=op, action="error", errno="ENOSPC"))
    with pytest.raises(NoSpaceError, match=str(tmp_path)):
        calls[op]()
    assert os.listdir(tmp_path) == ["file"]


def test_replace_is_written_synced_renamed_and_synced_in_that_order(tmp_path, recorder):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / ".tmp-file").write_bytes(b"stale")
    durable.replace_file(str(tmp_path), "file", b"new", temporary=".tmp-file")
    ops = [call.op for call in recorder.ops("pwrite", "fsync", "rename")]
    assert ops == ["pwrite", "fsync", "rename", "fsync"]
    assert recorder.ops("fsync")[-1].paths == (str(tmp_path),)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_a_name_must_not_be_without_is_made_and_durable_before_it(tmp_path, recorder):
    (tmp_path / "beside").mkdir()
    here, temporary, beside = str(tmp_path), str(tmp_path / ".tmp-file"), str(tmp_path / "beside")
    with durable.replacing_file(here, "file", b"new", temporary=".tmp-file") as directories:
        assert (tmp_path / ".tmp-file").read_bytes() == b"new"
        assert recorder.ops("fsync", "rename") == []
        directories += [beside, beside]
    synced = [(call.op, call.paths[0]) for call in recorder.ops("fsync", "rename")]
    assert synced == [
        ("fsync", temporary), ("fsync", beside), ("rename", temporary), ("fsync", here)
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["beside", "file"]


@pytest.mark.parametrize("op", ["block", "fsync", "rename"])
def test_a_failure_on_the_way_leaves_neither_name_nor_temporary(tmp_path, armed, op):
    def replace():
        with durable.replacing_file(str(tmp_path), "file", b"new", temporary=".tmp-file"):
            if op == "block":
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    armed(Rule(op=op if op != "block" else "clone", action="error", errno="EIO"))
    with pytest.raises(OSError, match="Input/output"):
        replace()
    assert os.listdir(tmp_path) == []


def test_a_file_for_processes_is_placed_in_one_step_and_waits_for_no_disk(tmp_path, recorder):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / ".tmp-file").write_bytes(b"stale")
    durable.place_file(str(tmp_path), "file", b"new", temporary=".tmp-file")
    assert [call.op for call in recorder.ops("pwrite", "fsync", "rename")] == ["pwrite", "rename"]
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_failed_replace_keeps_the_old_file(tmp_path, armed):
    (tmp_path / "file").write_bytes(b"old")
    armed(Rule(op="rename", action="error", errno="EIO"))
    with pytest.raises(OSError, match="Input/output"):
        durable.replace_file(str(tmp_path), "file", b"new", temporary=".tmp-file")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_symlink_is_replaced_in_one_step(tmp_path, recorder):
    for target in ("a", "b"):
        durable.replace_symlink(str(tmp_path), "latest", target, temporary=".tmp-latest")
        assert os.readlink(tmp_path / "latest") == target
    assert [call.op for call in recorder.ops("unlink")] == []


def test_link_shares_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    how = durable.link_or_copy(
        str(tmp_path / "a"), str(tmp_path / "b"), temporary=str(tmp_path / "t")
    )
    assert how == "link"
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("reason", ["EXDEV", "EPERM", "EMLINK"])
def test_refused_link_becomes_a_durable_copy(tmp_path, armed, reason):
    (tmp_path / "a").write_bytes(b"abc")
    armed(Rule(op="link", action="error", errno=reason))
    how = durable.link_or_copy(
        str(tmp_path / "a"), str(tmp_path / "b"), temporary=str(tmp_path / "t")
    )
    assert how in ("reflink", "copy")
    assert (tmp_path / "b").read_bytes() == b"abc"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_copy_never_replaces_an_existing_name(tmp_path, armed):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"other")
    armed(Rule(op="link", action="error", errno="EPERM"))
    with pytest.raises(FileExistsError):
        durable.link_or_copy(
            str(tmp_path / "a"), str(tmp_path / "b"), temporary=str(tmp_path / "t")
        )
    assert (tmp_path / "b").read_bytes() == b"other"


def test_failed_copy_leaves_nothing(tmp_path, armed):
    (tmp_path / "a").write_bytes(b"abc")
    armed(
        Rule(op="link", action="error", errno="EPERM"),
        Rule(op="fsync", action="error", errno="EIO"),
    )
    with pytest.raises(OSError, match="Input/output"):
        durable.link_or_copy(
            str(tmp_path / "a"), str(tmp_path / "b"), temporary=str(tmp_path / "t")
        )
    assert os.listdir(tmp_path) == ["a"]


def test_removed_tree_does_not_take_what_links_point_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"abc")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(b"x")
    (tree / "link").symlink_to(tmp_path / "kept")
    durable.remove_tree(str(tree))
    durable.remove_tree(str(tree))
    assert not tree.exists()
    assert (tmp_path / "kept" / "file").read_bytes() == b"abc"


def test_made_directories_are_durable_in_their_parents(tmp_path, recorder):
    durable.make_directory(str(tmp_path / "a" / "b"))
    durable.make_directory(str(tmp_path / "a" / "b"))
    assert [call.paths[0] for call in recorder.ops("mkdir", "fsync")] == [
        str(tmp_path / "a"),
        str(tmp_path),
        str(tmp_path / "a" / "b"),
        str(tmp_path / "a"),
    ]
