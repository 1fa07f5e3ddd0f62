"""The members of an npz file: arrays, read as streams, and what `export_npz` says of a ring.

Nothing in them is unpickled: arrays of objects are refused.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import SchemaError, SourceFormatError, UnportableError
from pyengine.format.schema import Schema
from pyengine.porting.npz_out import ABOUT, VERSION

Array = NDArray[Any]

_ABOUT_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Member:
    """One array: of `count` rows of `shape`."""

    name: str
    entry: str
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_member(path: str, archive: zipfile.ZipFile, name: str, entry: str) -> Member:
    """Return the array in an entry, whose header is read and checked. SourceFormatError: it is
    damaged or needs pickle; UnportableError: it has no rows in C order."""
    info = archive.getinfo(entry)
    with archive.open(entry) as stream:
        shape, is_fortran, dtype = read_header(stream)
        header_bytes = stream.tell()
    if dtype.hasobject:
        raise SourceFormatError(
            f"{path}: array {name!r} holds Python objects, which only pickle reads, and "
            "pickle runs code of whoever wrote it: save it as numbers",
            path=path,
        )
    if any(size < 0 for size in shape):
        raise SourceFormatError(f"{path}: array {name!r} of {shape}", path=path)
    if not shape or (is_fortran and len(shape) > 1):
        raise UnportableError(
            f"{path}: array {name!r} has shape {shape}"
            f"{' in Fortran order' if is_fortran else ''}, a field has rows first, in C order",
            path=path,
            expected="(rows, ...) in C order",
            got=shape,
        )
    size = header_bytes + prod(shape) * dtype.itemsize
    if info.file_size != size:
        raise SourceFormatError(
            f"{path}: array {name!r} of shape {shape} takes {size} bytes, it has {info.file_size}",
            path=path,
        )
    return Member(name, entry, shape[0], shape[1:], dtype)


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array: shape, whether in Fortran order, dtype. ValueError."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"npy version {version}")
    shape, is_fortran, dtype = header
    return tuple(shape), bool(is_fortran), dtype


def read_rows(stream: IO[bytes], member: Member, count: int) -> Array:
    """Read the next `count` rows of an array. EOFError: it ends before."""
    data = bytearray(count * prod(member.shape) * member.dtype.itemsize)
    view, done = memoryview(data), 0
    while done < len(view):
        got = stream.read(min(len(view) - done, 1 << 20))
        if not got:
            raise EOFError(f"array {member.name!r} ends too early")
        view[done : done + len(got)] = got
        done += len(got)
    values = np.frombuffer(data, member.dtype)
    return values.reshape(count, *member.shape)


def read_about(path: str, archive: zipfile.ZipFile, entry: str | None) -> dict[str, Any] | None:
    """Return what `export_npz` said of the ring; None where another program wrote the file."""
    if entry is None:
        return None
    if archive.getinfo(entry).file_size > _ABOUT_MAX_BYTES:
        raise SourceFormatError(f"{path}: {ABOUT!r} is too large", path=path)
    with archive.open(entry) as stream:
        text = np.lib.format.read_array(stream)  # no pickle, unless asked for
    try:
        about = json.loads(str(text))
        version = about["version"]
        if version != VERSION:
            raise SourceFormatError(
                f"{path}: {ABOUT!r} has version {version}, this pyengine reads {VERSION}", path=path
            )
        Schema.from_record(about["schema"])
        priorities = about["priorities"]
        if priorities is not None:
            priorities = {name: float(priorities[name]) for name in ("alpha", "epsilon")}
        lanes, capacity = int(about["num_lanes"]), int(about["capacity"])
        if not 1 <= lanes <= 1 << 20 or capacity < lanes:
            raise ValueError(f"{lanes} lanes, capacity {capacity}")
        return {**about, "priorities": priorities}
    except (KeyError, TypeError, ValueError, RecursionError, SchemaError) as error:
        raise SourceFormatError(
            f"{path}: {ABOUT!r} makes no sense: {error!r}", path=path
        ) from error
