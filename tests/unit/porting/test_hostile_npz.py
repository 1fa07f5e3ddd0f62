"""Files that are no rows, or lie: a typed error each, no code run, and nothing left."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from porting_rings import fill, make_ring, save

import pyengine
from pyengine import porting
from pyengine.errors import PortingError, SourceFormatError, UnportableError


def _export(tmp_path: Path) -> Path:
    ring = make_ring()
    fill(ring, 20)
    save(ring, tmp_path / "run")
    porting.export_npz(tmp_path / "run", tmp_path / "whole.npz")
    return tmp_path / "whole.npz"


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), **options)
    return buffer.getvalue()


def _header(shape: tuple[int, ...], descr: str, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    record = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, record)
    return buffer.getvalue() + data


def _refused(path: Path, kind: type[PortingError], words: str) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(kind, match=words):
        porting.import_npz(path, path.parent / "new")
    assert sorted(path.parent.iterdir()) == before


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data = _export(tmp_path).read_bytes()
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        path = tmp_path / "cut.npz"
        path.write_bytes(data[:length])
        _refused(path, SourceFormatError, "cannot be read as npz")


def test_a_changed_byte_of_a_row_is_found(tmp_path: Path) -> None:
    data = bytearray(_export(tmp_path).read_bytes())
    with zipfile.ZipFile(tmp_path / "whole.npz") as archive:
        at = archive.getinfo("reward.npy").header_offset
    data[at + 200] ^= 1
    (tmp_path / "changed.npz").write_bytes(data)
    _refused(tmp_path / "changed.npz", SourceFormatError, "Bad CRC-32")


def test_objects_are_refused_and_not_read(tmp_path: Path) -> None:
    bomb = np.empty(3, object)
    bomb[:] = [_Bomb(tmp_path / "struck")] * 3
    np.savez(tmp_path / "bomb.npz", obs=np.zeros(3), info=bomb)
    _refused(tmp_path / "bomb.npz", SourceFormatError, "'info' holds Python objects.*pickle")
    about = _npy(np.array([_Bomb(tmp_path / "struck")], object), allow_pickle=True)
    _write(tmp_path / "about.npz", {"obs.npy": _npy(np.zeros(3)), "@pyengine.npy": about})
    _refused(tmp_path / "about.npz", SourceFormatError, "cannot be read as npz")
    assert not (tmp_path / "struck").exists()


@pytest.mark.parametrize(
    ("arrays", "kind", "words"),
    [
        ({"obs": np.zeros((3, 2)), "act": np.zeros(4)}, UnportableError, "different numbers"),
        ({"obs": np.float32(1)}, UnportableError, r"'obs' has shape \(\)"),
        ({"obs": np.asfortranarray(np.zeros((3, 2)))}, UnportableError, "Fortran order"),
        ({"obs": np.zeros(3, "c16")}, UnportableError, "'obs' is complex128"),
        ({"obs": np.zeros(3, ">f4")}, UnportableError, "little-endian"),
        ({"obs": np.array(["a", "b"])}, UnportableError, "'obs' is <U1"),
        ({"obs": np.zeros(0)}, UnportableError, "holds no rows"),
        ({}, UnportableError, "holds the arrays none"),
        ({"obs": np.zeros(3), "@lane": np.zeros((3, 1), int)}, UnportableError, "'@lane' is"),
        ({"obs": np.zeros(3), "@end": np.zeros(3)}, UnportableError, "'@end' is float64"),
        ({"obs": np.zeros(3), "@lane": np.array([0, -1, 0])}, SourceFormatError, "lanes"),
        ({"obs": np.zeros(2), "@lane": np.array([0, 1_000_000])}, UnportableError, "no row"),
        ({"obs": np.zeros(3), "@lane": np.array([0, 1 << 40, 0])}, SourceFormatError, "lanes"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(
    tmp_path: Path, arrays: dict[str, Any], kind: type[PortingError], words: str
) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)
    _refused(tmp_path / "rows.npz", kind, words)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (_header((1 << 60,), "<f8"), "takes"),
        (_header((-1, 4), "<f8"), "-1"),
        (_header((3,), "<f8", b"\0" * 25), "takes 152 bytes, it has 153"),
        (b"\x93NUMPY\x07\x00", "npy version"),
        (b"nothing", "cannot be read as npz"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, member: bytes, words: str) -> None:
    _refused(_write(tmp_path / "rows.npz", {"obs.npy": member}), SourceFormatError, words)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.update(version=2),
        lambda about: about.pop("schema"),
        lambda about: about.update(num_lanes=0),
        lambda about: about.update(num_lanes=1 << 40),
        lambda about: about.update(capacity="many"),
        lambda about: about["schema"]["fields"].pop(),
        lambda about: about["schema"]["fields"][0].update(shape=[4, 4]),
        lambda about: about["schema"]["fields"][0].update(dtype="object"),
        lambda about: about.update(priorities={"alpha": []}),
    ],
)
def test_a_schema_that_lies_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    members = _members(_export(tmp_path))
    about = json.loads(str(np.load(io.BytesIO(members["@pyengine.npy"]))))
    change(about)
    members["@pyengine.npy"] = _npy(np.array(json.dumps(about)))
    _refused(_write(tmp_path / "lies.npz", members), SourceFormatError, "lies.npz")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory.npz").mkdir()
    _refused(tmp_path / "directory.npz", SourceFormatError, "is a directory")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(_Bomb(tmp_path / "struck")))
    _refused(tmp_path / "pickle.npz", SourceFormatError, "cannot be read as npz")
    _refused(_write(tmp_path / "text.npz", {"a.txt": b"a"}), SourceFormatError, "'a.txt'")
    os.mkfifo(tmp_path / "fifo.npz")
    _refused(tmp_path / "fifo.npz", SourceFormatError, "no regular file")
    assert not (tmp_path / "struck").exists()
    with pytest.raises(FileNotFoundError):
        porting.import_npz(tmp_path / "none.npz", tmp_path / "new")


def test_rows_that_a_ring_was_given_before_stay(tmp_path: Path) -> None:
    ring = pyengine.ReplayBuffer({"obs": "float64"}, 10)
    ring.add(obs=1.0)
    np.savez(tmp_path / "rows.npz", obs=np.zeros(3))
    data = bytearray((tmp_path / "rows.npz").read_bytes())
    data[200] ^= 1
    (tmp_path / "rows.npz").write_bytes(data)
    with pytest.raises(SourceFormatError):
        porting.import_npz(tmp_path / "rows.npz", into=ring)
    assert ring[ring.refs()]["obs"][0] == 1.0
