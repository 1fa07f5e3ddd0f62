"""Reading a snapshot's own files: whole, once, and verified before anybody looks into them."""

from __future__ import annotations

import os
from collections.abc import Iterable

import xxhash

from pyengine.catalog.info import SnapshotInfo
from pyengine.errors import DamageError, TruncatedFileError
from pyengine.format.manifest import FileRecord
from pyengine.fs import door
from pyengine.fs.beneath import open_beneath

_CHUNK_BYTES = 8 * 1024 * 1024


def read_files(info: SnapshotInfo, paths: Iterable[str]) -> dict[str, bytearray]:
    """Return the bytes of files of a snapshot, by path below it; their checksums hold.

    Read twice before a file is called damaged. Raises DamageError or TruncatedFileError that names
    the file, and OSError as it is.
    """
    return {path: _read(info, path) for path in paths}


def _read(info: SnapshotInfo, path: str) -> bytearray:
    record = info.file(path)
    shown = os.path.join(info.path, path)
    if record is None:
        raise DamageError(f"{shown}: the manifest does not list this file", path=shown)
    try:
        return _read_once(info.path, record, shown)
    except DamageError:
        return _read_once(info.path, record, shown)


def _read_once(directory: str, record: FileRecord, shown: str) -> bytearray:
    try:
        fd = open_beneath(directory, record.path)
    except FileNotFoundError as error:
        raise DamageError(f"{shown} is missing", path=shown) from error
    data = bytearray(record.size_bytes)
    digest = xxhash.xxh3_64()
    try:
        size_bytes = os.fstat(fd).st_size
        done = 0
        with memoryview(data) as view:
            while done < min(size_bytes, record.size_bytes):
                with view[done : done + _CHUNK_BYTES] as chunk:
                    count = door.active.pread_into(fd, [chunk], done)
                    digest.update(chunk[:count])
                if count == 0:
                    break
                done += count
    finally:
        door.active.close(fd)
    if size_bytes != record.size_bytes or done != record.size_bytes:
        kind = TruncatedFileError if min(size_bytes, done) < record.size_bytes else DamageError
        raise kind(
            f"{shown}: {size_bytes} bytes, the manifest says {record.size_bytes}",
            path=shown,
            offset=min(size_bytes, record.size_bytes),
            expected=record.size_bytes,
            got=size_bytes,
        )
    if digest.hexdigest() != record.xxh3_64:
        raise DamageError(
            f"{shown}: its bytes have the checksum {digest.hexdigest()}, the manifest says "
            f"{record.xxh3_64}",
            path=shown,
            offset=0,
            expected=record.xxh3_64,
            got=digest.hexdigest(),
        )
    return data
