"""Reading a snapshot's own files: whole, once, and verified before anybody looks into them."""

from __future__ import annotations

import os
from collections.abc import Iterable

import xxhash

from pyengine.catalog.info import SnapshotInfo
from pyengine.errors import DamageError
from pyengine.format.manifest import FileRecord
from pyengine.fs import door
from pyengine.fs.beneath import check_size, drop_cache, open_beneath

_CHUNK_BYTES = 8 * 1024 * 1024


def read_files(info: SnapshotInfo, paths: Iterable[str]) -> dict[str, bytearray]:
    """Return the bytes of files of a snapshot, by path below it; their checksums hold.

    Read twice, the second time past the page cache, before a file is called damaged. Raises
    DamageError or TruncatedFileError that names the file, and OSError as it is.
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
        return _read_once(info.path, record, shown, past_cache=True)


def _read_once(
    directory: str, record: FileRecord, shown: str, *, past_cache: bool = False
) -> bytearray:
    try:
        fd = open_beneath(directory, record.path)
    except FileNotFoundError as error:
        raise DamageError(f"{shown} is missing", path=shown) from error
    digest = xxhash.xxh3_64()
    done = 0
    try:
        if past_cache:
            drop_cache(fd)
        # Before memory is taken: a size from a manifest may be anything.
        check_size(shown, os.fstat(fd).st_size, record.size_bytes)
        data = bytearray(record.size_bytes)
        with memoryview(data) as view:
            while done < len(view):
                with view[done : done + _CHUNK_BYTES] as chunk:
                    count = door.active.pread_into(fd, [chunk], done)
                    digest.update(chunk[:count])
                if count == 0:
                    check_size(shown, done, record.size_bytes)
                done += count
    finally:
        door.active.close(fd)
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
