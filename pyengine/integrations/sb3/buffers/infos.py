"""InfoColumns: the info dicts of rows, as columns of numbers beside the ring.

HerReplayBuffer(copy_info_dict=True) keeps what each step said in its info, for rewards that are
computed anew. Which keys there are is known only when they come, and some come once an episode, so
each key has a column of the rows that have it. A dict that is asked for is made from its numbers:
equal to the one that was added, values of the same types, ordered dicts in it as plain ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import FieldDtypeError, FieldShapeError
from pyengine.integrations.sb3.buffers.columns import places
from pyengine.integrations.sb3.buffers.growing import Growing
from pyengine.integrations.sb3.buffers.rows import BufferRows

MAX_COLUMNS = 256
"""More means that keys or shapes change from step to step, which columns are not for."""

_DTYPES: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64}

_Path = tuple[str, ...]
_Key = tuple[_Path, str, str, tuple[int, ...]]
"""Where a value lies, what it is (a key of _DTYPES, "scalar", "array", "dict"), dtype and shape."""


class _Column:
    """Values of one key with the refs of their rows, in the order of the refs."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.refs = Growing((), np.int64)
        self.values = Growing(key[3], np.dtype(key[2]))

    def find(self, refs: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """Yield (index into `refs`, value) of the rows that have one."""
        held = self.refs.items
        if not len(held):
            return
        places = np.searchsorted(held, refs).clip(max=len(held) - 1)
        kind, values = self.key[1], self.values.items
        for index in np.flatnonzero(held[places] == refs):
            value = values[places[index]]
            if kind == "dict":
                yield int(index), {}
            elif kind in _DTYPES:
                yield int(index), value.item()
            else:
                yield int(index), np.array(value) if kind == "array" else value


class InfoColumns:
    """Info dicts of a buffer by (step, env), like the object array that stands for them in stock.

    Steps without a row have an empty dict. What is asked for is made anew: changing it changes
    nothing here.
    """

    def __init__(self, rows: BufferRows) -> None:
        self._rows = rows
        self._columns: dict[_Key, _Column] = {}
        self.shape = (rows.steps, rows.lanes)
        self.dtype = np.dtype(object)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        steps, lanes = places(self.shape, index)
        found = self._read(steps.reshape(-1), lanes.reshape(-1))
        return found.reshape(steps.shape) if steps.ndim else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("info dicts cannot be seen as an array without a copy")
        whole: NDArray[Any] = self[:]
        return whole

    def flatten(self, infos: Sequence[Mapping[str, Any]]) -> list[list[tuple[_Key, Any]]]:
        """Return the numbers of one step's infos, for `append`.

        Raises FieldDtypeError for what is no number and no array of numbers, FieldShapeError for
        shapes or keys that never are the same; nothing has changed then.
        """
        found = [list(_leaves(info, ())) for info in infos]
        new = {key for leaves in found for key, _ in leaves} - self._columns.keys()
        if len(self._columns) + len(new) > MAX_COLUMNS:
            raise FieldShapeError(
                f"infos: more than {MAX_COLUMNS} different keys and shapes, the last {min(new)}; "
                "rows keep infos of fixed keys and shapes: use copy_info_dict=False, or let a "
                "wrapper leave out what compute_reward() does not read",
                field="infos",
                expected=f"at most {MAX_COLUMNS} keys and shapes",
                got=len(self._columns) + len(new),
            )
        return found

    def append(self, infos: list[list[tuple[_Key, Any]]]) -> None:
        """Note the infos of the rows that were added last, which `flatten` returned."""
        first = (self._rows.total - 1) * self._rows.lanes
        for lane, leaves in enumerate(infos):
            for key, value in leaves:
                column = self._columns.setdefault(key, _Column(key))
                column.refs.append(first + lane)
                column.values.append(value)

    def clear(self) -> None:
        """Forget all infos: the buffer was emptied."""
        self._columns.clear()

    def get_state(self) -> dict[str, Any]:
        """Return the columns of rows that are in the window."""
        self._forget_old()
        return {
            "columns": [
                {
                    "path": list(path), "kind": kind, "dtype": dtype, "shape": list(shape),
                    "runs": _runs(column.refs.items), "values": column.values.items,
                }
                for (path, kind, dtype, shape), column in self._columns.items()
            ]
        }  # fmt: skip

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise what `set_state` would raise; change nothing."""
        _columns_of(state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back, after the rows; ValueError where it is malformed."""
        self._columns = _columns_of(state)
        if self._rows.total == self._rows.origin:
            self.clear()
        self._forget_old()

    def _forget_old(self) -> None:
        oldest = self._rows.oldest * self._rows.lanes
        for key, column in list(self._columns.items()):
            gone = int(np.searchsorted(column.refs.items, oldest))
            column.refs.drop_front(gone)
            column.values.drop_front(gone)
            if not len(column.refs):
                del self._columns[key]

    def _read(self, steps: NDArray[np.int64], lanes: NDArray[np.int64]) -> NDArray[Any]:
        found = np.empty(len(steps), object)
        for i in range(len(found)):
            found[i] = {}
        written = np.flatnonzero(self._rows.is_written(steps))
        refs = self._rows.refs(steps[written], lanes[written])
        for (path, *_), column in self._columns.items():
            for index, value in column.find(refs):
                _put(found[written[index]], path, value)
        return found


def _columns_of(state: dict[str, Any]) -> dict[_Key, _Column]:
    found = {}
    for saved in state["columns"]:
        key = (tuple(saved["path"]), saved["kind"], saved["dtype"], tuple(saved["shape"]))
        column = found[key] = _Column(key)
        column.refs.replace(_spread(saved["runs"]))
        column.values.replace(saved["values"])
        if len(column.refs) != len(column.values):
            raise ValueError(f"{len(column.values)} values for {len(column.refs)} rows")
    return found


def _leaves(value: Mapping[str, Any], path: _Path) -> Iterator[tuple[_Key, Any]]:
    for name, item in value.items():
        inner = (*path, name)
        if type(name) is not str:
            raise _refusal(inner, name)
        if type(item) in (dict, OrderedDict):
            if item:
                yield from _leaves(item, inner)
            else:
                yield (inner, "dict", "|b1", ()), False
        else:
            yield _leaf(inner, item)


def _leaf(path: _Path, item: Any) -> tuple[_Key, Any]:
    kind = type(item).__name__
    if type(item) in (bool, float) or (type(item) is int and -(2**63) <= item < 2**63):
        return (path, kind, np.dtype(_DTYPES[kind]).str, ()), item
    is_array = type(item) is np.ndarray
    if (is_array or isinstance(item, np.generic)) and item.dtype.kind in "biufc":
        return (path, "array" if is_array else "scalar", item.dtype.str, item.shape), item
    raise _refusal(path, item)


def _refusal(path: _Path, item: Any) -> FieldDtypeError:
    name = "/".join(map(str, path))
    return FieldDtypeError(
        f"info {name!r}: a {type(item).__name__} cannot be kept with a row, numbers and arrays of "
        "numbers can: use copy_info_dict=False, or let a wrapper leave out what compute_reward() "
        "does not read",
        field=f"infos/{name}",
        expected="a number, an array of numbers, or a dict of these with text keys",
        got=type(item).__name__,
    )


def _put(into: dict[str, Any], path: _Path, value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _runs(refs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (first, count) of each run of refs that follow one another."""
    if not len(refs):
        return np.empty((0, 2), np.int64)
    firsts = np.flatnonzero(np.diff(refs, prepend=refs[0] - 2) != 1)
    return np.stack([refs[firsts], np.diff(firsts, append=len(refs))], axis=1)


def _spread(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the refs of such runs."""
    firsts, counts = runs.T
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    refs: NDArray[np.int64] = np.repeat(firsts, counts) + within
    return refs
