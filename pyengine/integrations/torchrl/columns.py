"""StorageColumn: one field of a RingStorage as the tensor that TorchRL expects.

What TorchRL reads whole (`storage[:]`) it reads of one or two fields: a slice sampler looks at the
ends of trajectories only. So such a read gives columns, which copy rows out of the ring when they
are looked at, and no sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from pyengine.integrations.torchrl.storage import RingStorage

_WRITING = frozenset(
    f"__i{name}__"
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
        "rshift",
    )
)  # fmt: skip
_OF_SHAPE = frozenset({"size", "dim", "numel", "nelement", "ndimension", "stride", "is_contiguous"})
_OF_SHAPE_GETTERS = frozenset({"shape", "dtype", "ndim", "layout", "requires_grad", "is_leaf"})


class StorageColumn(torch.Tensor):
    """A tensor of shape (steps, *lanes, *shape) over rows in a ring; always what they are now.

    Any operation of torch takes a copy of the rows; indexing copies no more rows than it has to.
    Writing in place changes the rows of a mutable key and raises ImmutableFieldError for others.
    Valid as long as the storage.
    """

    storage_of: RingStorage
    field: str

    @staticmethod
    def over(storage: RingStorage, field: str, shape: Sequence[int]) -> StorageColumn:
        """Return the column of one field; `shape` as the storage is filled now."""
        leaf = storage.rows.layout.leaves[field]
        # Without memory: what gets past __torch_function__ fails instead of reading anything else.
        empty = torch.empty((*shape, *leaf.shape), dtype=leaf.dtype, device="meta")
        column: StorageColumn = torch.Tensor._make_subclass(StorageColumn, empty)
        column.storage_of, column.field = storage, field
        return column

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        first = args[0] if args else None
        if isinstance(first, cls):
            if name == "__get__":
                owner = getattr(getattr(func, "__self__", None), "__name__", "")
                if owner == "device":
                    return first.storage_of.index_device
                if owner in _OF_SHAPE_GETTERS:
                    return _of_shape(func, args, kwargs)
            if name in _OF_SHAPE or name == "__len__":
                return _of_shape(func, args, kwargs)
            if name == "__getitem__":
                return first.storage_of.read(first.field, args[1])
            if name == "__setitem__":
                first.storage_of.write(first.field, args[1], args[2])
                return None
        if _is_writing(name) or isinstance(kwargs.get("out"), cls):
            return _write(cls, func, args, kwargs)
        return func(*tree_map(_rows, tuple(args)), **tree_map(_rows, dict(kwargs)))

    # torch declares a parameter whose name is Any, which nobody can pass.
    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"StorageColumn({self.field!r}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rows(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return _rows(self)


def _of_shape(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _rows(value: Any) -> Any:
    if not isinstance(value, StorageColumn):
        return value
    rows = value.storage_of.read(value.field, slice(None))
    return rows[: value.shape[0]]


def _is_writing(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _WRITING or name == "__set__"


def _write(
    cls: type[StorageColumn],
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Do what writes into columns on copies of their rows, then write these back."""
    copies: list[tuple[StorageColumn, torch.Tensor]] = []

    def copy(value: Any) -> Any:
        if isinstance(value, cls):
            value.storage_of.rows.check_mutable(value.field)
            copies.append((value, _rows(value)))
            return copies[-1][1]
        return value

    # The first argument is written to, or `out`.
    written: int | str = "out" if "out" in kwargs else 0
    positional = [tree_map(copy if i == written else _rows, arg) for i, arg in enumerate(args)]
    named = {k: tree_map(copy if k == written else _rows, arg) for k, arg in kwargs.items()}
    result = func(*positional, **named)
    for column, rows in copies:
        column.storage_of.write(column.field, slice(None), rows)
    return kwargs.get("out", args[0]) if copies else result
