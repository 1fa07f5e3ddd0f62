"""Rows as callers give them, checked and brought into the form that the native append takes.

Everything is checked before anything is appended, so that an error leaves the ring unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import (
    FieldDtypeError,
    FieldShapeError,
    MissingFieldError,
    RowError,
    UnknownFieldError,
)
from pyengine.format.schema import Field, Schema
from pyengine.replay.plan import numpy_dtype

Array = NDArray[Any]


_ARGUMENTS = ("mask", "lane")
"""Of add and extend: fields of these names come in dicts alone."""


def merge(rows: Any, fields: dict[str, Any], what: str = "rows") -> dict[str, Any]:
    """Return one dict of what was given as a dict and by keyword; RowError where they overlap."""
    if rows is None:
        return fields
    if type(rows) is dict and not fields:  # nearly always
        return rows
    if not isinstance(rows, Mapping):
        raise RowError(
            f"{what}: expected a dict of values by field, got {type(rows).__name__}",
            field=what,
            expected="a dict of values by field",
            got=type(rows).__name__,
        )
    for name in fields:
        if name in rows:
            raise _twice(name)
    return {**rows, **fields}


def flatten(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts with flat keys joined by "/"; RowError for a field given twice."""
    flat: dict[str, Any] = {}
    for name, value in _pairs(rows, ""):
        if name in flat:
            raise _twice(name)
        flat[name] = value
    return flat


def _pairs(rows: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in rows.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _twice(name: str) -> RowError:
    return RowError(
        f"field {name!r}: a value was given twice",
        field=name,
        expected="one value",
        got="two values",
    )


def check_names(schema: Schema, rows: Mapping[str, Any]) -> None:
    """Raise unless `rows` has every field of the schema (defaults apart) and no other."""
    for name in rows:
        if name not in schema:
            raise UnknownFieldError(
                f"the schema has no field {name!r}; it has {', '.join(schema)}",
                field=name,
                expected=tuple(schema),
                got=name,
            )
    for name, field in schema.items():
        if name not in rows and (not field.mutable or field.default is None):
            way = (
                f": as a keyword {name!r} is an argument of the call; give the rows as a dict"
                if name in _ARGUMENTS
                else ""
            )
            raise MissingFieldError(
                f"field {name!r} was not given{way}", field=name, expected=name, got=tuple(rows)
            )


def as_rows(name: str, field: Field, value: Any, lead: tuple[int, ...]) -> Array:
    """Return `value` as a C-contiguous array of shape (*lead, *field.shape) and the field's dtype.

    A leading axis of size 1 may be missing. Raises FieldShapeError or FieldDtypeError.
    """
    array = as_array(name, field, value)
    expected = (*lead, *field.shape)
    if array.shape != expected:
        squeezed = (*(size for size in lead if size != 1), *field.shape)
        if array.shape != squeezed and _without_units(array.shape, lead, field) != squeezed:
            raise FieldShapeError(
                f"field {name!r}: expected shape {expected}, got {array.shape}",
                field=name,
                expected=expected,
                got=array.shape,
            )
        array = array.reshape(expected)
    return np.ascontiguousarray(array)


def as_array(name: str, field: Field, value: Any) -> Array:
    """Return `value` as an array of the field's dtype; FieldDtypeError where that loses its kind.

    Floats of any width become the field's (NumPy's same-kind rule); integers must be in range.
    """
    array, carries_bits = _to_numpy(name, field, value)
    target = numpy_dtype(field)
    if carries_bits or array.dtype == target:
        return array
    if field.dtype == "bfloat16":
        raise _dtype_error(name, field, array)
    if array.dtype.kind in "iub" and target.kind in "iub":
        converted = array.astype(target)
        if not np.array_equal(converted, array):
            raise _dtype_error(name, field, array)
        return converted
    if array.dtype.kind in "iubf" and np.can_cast(array.dtype, target, "same_kind"):
        return array.astype(target)
    raise _dtype_error(name, field, array)


def as_mask(mask: Any, lead: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a mask as a contiguous bool array of shape `lead`."""
    array = to_array("mask", mask)
    if array.dtype != np.bool_:
        raise FieldDtypeError(
            f"mask: expected bool, got {array.dtype}",
            field="mask",
            expected="bool",
            got=str(array.dtype),
        )
    if array.shape != lead and array.shape != tuple(size for size in lead if size != 1):
        raise FieldShapeError(
            f"mask: expected shape {lead}, got {array.shape}",
            field="mask",
            expected=lead,
            got=array.shape,
        )
    return np.ascontiguousarray(array.reshape(lead))


def as_refs(what: str, values: Any) -> NDArray[np.int64]:
    """Return flat int64 values; FieldDtypeError for floats and flags, which would be rounded."""
    if type(values) is np.ndarray and values.dtype == np.int64 and values.ndim == 1:  # mostly
        return values if values.flags.carray else values.copy()  # as the native core takes it
    array = to_array(what, values)
    if array.size and array.dtype.kind not in "iu":
        raise FieldDtypeError(
            f"{what}: expected integers, got {array.dtype}",
            field=what,
            expected="int64",
            got=str(array.dtype),
        )
    refs = np.ascontiguousarray(array, np.int64).reshape(-1)
    return refs if refs.flags.writeable else refs.copy()  # the native core takes no other


def to_array(name: str, value: Any) -> Array:
    """Return an array, tensor, number or lists as an array; FieldShapeError for ragged lists."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise FieldShapeError(
            f"{name}: its parts do not make an array ({error})",
            field=name,
            expected="parts of one shape",
            got="ragged",
        ) from None


def _to_numpy(name: str, field: Field, value: Any) -> tuple[Array, bool]:
    """Return (array, whether it already carries a bfloat16 field's bits)."""
    if hasattr(value, "detach"):  # a torch tensor: torch itself need not be imported for this
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            if field.dtype != "bfloat16":  # its bits would be taken for integers
                return tensor.to(torch.float32).numpy(), False
            return tensor.contiguous().view(torch.uint16).numpy(), True
        return tensor.numpy(), False
    array = to_array(name, value)
    return array, field.dtype == "bfloat16" and array.dtype == np.uint16


def _without_units(
    shape: tuple[int, ...], lead: tuple[int, ...], field: Field
) -> tuple[int, ...] | None:
    """Return `shape` without its leading 1s where `lead` has them; None where axes do not match."""
    extra = len(shape) - len(field.shape)
    if extra < 0 or shape[extra:] != field.shape or extra > len(lead):
        return None
    return (*(size for size in shape[:extra] if size != 1), *field.shape)


def _dtype_error(name: str, field: Field, array: Array) -> FieldDtypeError:
    return FieldDtypeError(
        f"field {name!r}: {array.dtype} values do not fit {field.dtype}; convert them first, or "
        "declare the field with their dtype",
        field=name,
        expected=field.dtype,
        got=str(array.dtype),
    )
