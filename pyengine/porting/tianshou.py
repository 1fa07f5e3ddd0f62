"""Import from the HDF5 file that Tianshou's `save_hdf5` writes.

A sub-buffer is a lane. Nothing pickled in the file is read: sub-buffers are found by what the file
says of them in arrays. What a buffer does beyond keeping transitions has no place in a ring, and is
refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from pyengine.errors import ConfigError, SchemaError, SourceFormatError, UnportableError
from pyengine.events import Progress
from pyengine.format.schema import Field, Schema
from pyengine.fs import door
from pyengine.porting.arrival import Destination, Imported
from pyengine.porting.pieces import rows_at_a_time
from pyengine.porting.source import (
    EPISODE_END,
    Contents,
    SourcePiece,
    open_source,
    reading,
)
from pyengine.replay.ring import ReplayBuffer

Array = NDArray[Any]

_NAMES = {
    "obs": "obs",
    "act": "action",
    "rew": "reward",
    "obs_next": "next_obs",
    "terminated": "terminated",
    "truncated": "truncated",
}
"""What fields are called, as by `Schema.from_env`, by the library's keys; `done` follows."""

_BROKEN = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError)
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LANES_MAX = 1 << 20


def import_tianshou(
    source: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    *,
    without_priorities: bool = False,
    into: ReplayBuffer | None = None,
    ring: str = "replay",
    capacity: int | None = None,
    step: int = 0,
    progress: Progress | None = None,
) -> Imported:
    """Bring the rows of a buffer's HDF5 file into the new run directory `run`, or `into` a ring.

    Fields: obs, action, reward, next_obs, terminated, truncated, nested as they are there, in their
    own dtypes; `info`, `policy` and what else a batch holds are left out, and noted. ReplayBuffer
    and VectorReplayBuffer, wrapped round or not. Refused, by UnportableError: buffers that stack
    frames when they sample, or keep no obs_next; caching buffers; prioritised ones,
    whose weights are a pickle, but for `without_priorities=True`, which takes the rows alone.
    Arguments and errors otherwise as for `import_npz`; ConfigError where h5py is not installed.
    """
    destination = Destination(run, into, ring, capacity, step, progress)
    destination.check()
    with open_hdf5(os.fspath(source), without_priorities=without_priorities) as rows:
        return destination.receive(rows)


@contextlib.contextmanager
def open_hdf5(path: str, *, without_priorities: bool) -> Iterator[TianshouRows]:
    """Give the rows of a file. SourceFormatError, UnportableError, ConfigError, OSError."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            f"reading {path} needs h5py ({error}): pip install 'pyengine-rl[tianshou]'"
        ) from error
    fd = open_source(path, "an HDF5 file")
    try:
        head = bytearray(len(_SIGNATURE))
        door.active.pread_into(fd, [head], 0)
        if head != _SIGNATURE:
            raise SourceFormatError(f"{path} is no HDF5 file", path=path)
        with contextlib.ExitStack() as stack:
            with reading(path, "HDF5", *_BROKEN):
                file = stack.enter_context(h5py.File(f"/proc/self/fd/{fd}", "r"))
                rows = TianshouRows(path, file, without_priorities)
            yield rows
    finally:
        door.active.close(fd)


class TianshouRows:
    """A file of Tianshou's as a source of rows. What is in memory is the piece that is read."""

    def __init__(self, path: str, file: Any, without_priorities: bool) -> None:
        self._path = path
        notes = []
        meta = _own(path, file, "_meta")
        if meta is None or ("buffers" in file and "_lengths" not in file):
            raise SourceFormatError(
                f"{path} was not written by a Tianshou buffer's save_hdf5", path=path
            )
        self._refuse_more(file)
        if "weight" in file:
            if not without_priorities:
                raise self._refusal(
                    "prioritised weights, which are a pickle in it",
                    "without_priorities=True (--without-priorities) takes the rows alone",
                )
            notes.append("priorities are left out")
        if "_original_meta" in file:  # written back before the library saves
            notes.append("goals are those that were pursued: relabelling is left out")
        self._lanes = _find_lanes(path, file)
        self._arrays = dict(self._find_arrays(meta))
        others = sorted(
            key for key in meta if key not in _NAMES and key != "done" and len(meta[key])
        )
        if others:
            notes.append(f"left out: {', '.join(others)}")
        self.contents = Contents(
            format="tianshou",
            path=path,
            schema=self._schema(),
            lane_rows=tuple(len(order) for order, _, _ in self._lanes),
            capacity=max(size for _, _, size in self._lanes) * len(self._lanes),
            notes=tuple(notes),
        )

    def _refuse_more(self, file: Any) -> None:
        stacked = int(file.attrs.get("stack_num", 1))
        if stacked != 1:
            raise self._refusal(
                f"stack_num={stacked}: the buffer stacks frames when it samples",
                "a ring keeps stacks as Schema.from_env(stack=) says; fill it from the environment",
            )
        if "main_buffer" in file:
            raise self._refusal("a cache in front of a buffer", "save the main buffer alone")

    def _refusal(self, there: str, here: str) -> UnportableError:
        return UnportableError(
            f"{self._path} has {there}; {here}", path=self._path, expected=here, got=there
        )

    def _find_arrays(self, meta: Any) -> Iterator[tuple[str, Any]]:
        if "obs_next" not in meta:
            raise self._refusal(
                "no obs_next (ignore_obs_next=True)",
                "a row of a ring has it: fill one from the environment, with "
                "Schema.from_env(stack=1), which keeps each observation once",
            )
        size = sum(size for _, _, size in self._lanes)
        for key, name in _NAMES.items():
            group = _own(self._path, meta, key)
            if group is None:
                raise SourceFormatError(f"{self._path}: it has no {key!r}", path=self._path)
            for inner, values in _leaves(self._path, group, name):
                if values.shape[:1] != (size,):
                    raise SourceFormatError(
                        f"{self._path}: {inner!r} has shape {values.shape}, the buffer {size} rows",
                        path=self._path,
                    )
                yield inner, values

    def _schema(self) -> Schema:
        fields = {}
        for name, values in self._arrays.items():
            try:
                fields[name] = Field(values.shape[1:], values.dtype)
            except SchemaError as error:
                raise UnportableError(
                    f"{self._path}: {name!r} is {values.dtype}{list(values.shape[1:])}: {error}",
                    path=self._path,
                    expected="numbers of a fixed shape",
                    got=str(values.dtype),
                ) from error
        return Schema(fields, episode_end=EPISODE_END)

    def pieces(self) -> Iterator[SourcePiece]:
        """Yield all rows, lane by lane. SourceFormatError where the file cannot be read."""
        at_once = rows_at_a_time(self.contents.schema.values())
        for lane, (order, offset, size) in enumerate(self._lanes):
            at = order.start
            while at < order.stop:
                # Up to where the buffer wraps round: a range of the file.
                many = min(at_once, order.stop - at, size - at % size)
                place = offset + at % size
                with reading(self._path, "HDF5", *_BROKEN):
                    rows = {n: v[place : place + many] for n, v in self._arrays.items()}
                yield SourcePiece(lane, rows)
                at += many


def _find_lanes(path: str, file: Any) -> list[tuple[range, int, int]]:
    """Return for each sub-buffer the order of its rows, where it begins, and how many it takes."""
    total = int(file.attrs["maxsize"])
    last = _numbers(path, file, "last_index")
    if "_offset" in file:
        offsets = _numbers(path, file, "_offset")
        lengths = _numbers(path, file, "_lengths")
    else:
        offsets, lengths = [0], [int(file.attrs["_size"])]
    bounds = [*offsets, total]
    lanes = []
    is_sound = 0 < len(offsets) == len(lengths) == len(last) <= _LANES_MAX and offsets[0] == 0
    for index, (offset, length) in enumerate(zip(offsets, lengths, strict=False)):
        size = bounds[index + 1] - offset
        if not is_sound or size <= 0 or not 0 <= length <= size:
            raise SourceFormatError(f"{path}: its sub-buffers make no sense", path=path)
        newest = last[index] - offset
        if length and not 0 <= newest < size:
            raise SourceFormatError(f"{path}: last_index leaves the buffer", path=path)
        oldest = (newest + 1) % size if length == size else 0
        lanes.append((range(oldest, oldest + length), offset, size))
    return lanes


def _numbers(path: str, file: Any, name: str) -> list[int]:
    values = _own(path, file, name)
    if values is None or values.ndim != 1 or values.dtype.kind != "i" or len(values) > _LANES_MAX:
        raise SourceFormatError(f"{path}: {name!r} is no list of numbers", path=path)
    return [int(value) for value in values[:]]


def _own(path: str, group: Any, name: str) -> Any:
    """Return a member of a group, None where there is none; one that lies elsewhere is refused."""
    import h5py

    link = group.get(name, getlink=True)
    if link is None:
        return None
    found = group[name] if isinstance(link, h5py.HardLink) else None
    is_set = isinstance(found, h5py.Dataset)
    if found is None or (is_set and (found.is_virtual or found.external is not None)):
        raise SourceFormatError(f"{path}: {name!r} lies in another file", path=path)
    return found


def _leaves(path: str, found: Any, name: str) -> Iterator[tuple[str, Any]]:
    import h5py

    if isinstance(found, h5py.Dataset):
        if found.attrs.get("__data_type__", "ndarray") not in ("ndarray", "Tensor"):
            raise UnportableError(
                f"{path}: {name!r} holds Python objects, a field numbers of a fixed shape",
                path=path,
                expected="numbers of a fixed shape",
                got="Python objects",
            )
        yield name, found
        return
    for key in found:
        yield from _leaves(path, _own(path, found, key), f"{name}/{key}")
