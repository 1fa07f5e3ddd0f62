"""A new file is there whole or not at all, and takes nobody's place unasked."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pyengine.fs import door
from pyengine.fs.locks import OfdLock
from pyengine.fs.output import new_file

TEMPORARY = ".tmp-file"


def _write(path: Path, data: bytes, *, replaces: bool = False) -> None:
    with new_file(str(path), temporary=TEMPORARY, replaces=replaces) as file:
        file.write(b"?" * len(data))
        assert file.tell() == len(data)
        file.seek(0)
        file.write(data)
        assert not path.exists() or replaces


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    _write(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    _write(tmp_path / "file", b"newer", replaces=True)
    assert (tmp_path / "file").read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["file"]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_file(str(tmp_path / "file"), temporary=TEMPORARY, replaces=False) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "late" / "file"
    path.parent.mkdir()

    def too_late() -> None:
        with new_file(str(path), temporary=TEMPORARY, replaces=False) as file:
            file.write(b"other")
            path.write_bytes(b"mine")  # by another process, meanwhile

    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        _write(tmp_path / "file", b"other")
    with pytest.raises(FileExistsError):
        too_late()
    assert path.read_bytes() == (tmp_path / "file").read_bytes() == b"mine"
    assert os.listdir(tmp_path / "late") == ["file"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_where_links_are_refused_names_are_given_by_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(number, "no links here", target)

    monkeypatch.setattr(door.active, "link", link)
    _write(tmp_path / "file", b"whole")
    with pytest.raises(FileExistsError):
        _write(tmp_path / "file", b"other")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_what_a_killed_call_left_is_used_up(tmp_path: Path) -> None:
    (tmp_path / TEMPORARY).write_bytes(b"longer than what follows")
    _write(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["file"]


def test_two_calls_at_once_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / TEMPORARY).touch()
    lock = OfdLock.try_acquire(str(tmp_path / TEMPORARY))
    assert lock is not None
    with lock, pytest.raises(BlockingIOError):
        _write(tmp_path / "file", b"whole")
    assert os.listdir(tmp_path) == [TEMPORARY]


def test_a_link_in_the_temporarys_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / TEMPORARY).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        _write(tmp_path / "file", b"whole")
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_changes_are_durable_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fsync", "link", "unlink"):
        original = getattr(door.active, name)

        def record(*arguments: object, _name: str = name, _original: object = original) -> object:
            calls.append(_name)
            return _original(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(door.active, name, record)
    _write(tmp_path / "file", b"whole")
    assert calls == ["fsync", "link", "unlink", "fsync"]
