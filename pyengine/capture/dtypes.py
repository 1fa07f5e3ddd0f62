"""How every torch and NumPy dtype is stored in a safetensors file.

A dtype that safetensors has a tag for is stored under it. Others keep their bytes and say what they
are in the file's metadata (their *logical* dtype): complex numbers become pairs of floats, so that
any reader can use them, and everything else (datetimes, records, strings, big-endian arrays, rare
float formats) becomes raw bytes with one more axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Logical: TypeAlias = Any
"""JSON value that names a dtype without a tag of its own: "torch.complex64", "<M8[ns]", a descr."""

_TORCH_TAGS = {
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.int16": "I16",
    "torch.int32": "I32",
    "torch.int64": "I64",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.uint16": "U16",
    "torch.uint32": "U32",
    "torch.uint64": "U64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}
_NUMPY_TAGS = {
    "b1": "BOOL",
    "u1": "U8",
    "i1": "I8",
    "i2": "I16",
    "i4": "I32",
    "i8": "I64",
    "f2": "F16",
    "f4": "F32",
    "f8": "F64",
    "u2": "U16",
    "u4": "U32",
    "u8": "U64",
}
TAG_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
_TORCH_BY_TAG = {tag: name for name, tag in _TORCH_TAGS.items()}
_NUMPY_BY_TAG = {tag: np.dtype("<" + code) for code, tag in _NUMPY_TAGS.items()}
_COMPLEX_PARTS = {8: "F32", 16: "F64"}


@dataclass(frozen=True, slots=True)
class Storage:
    """How elements of one dtype lie in a file.

    `tag` and the trailing axis `extra` (0 for none) are what safetensors sees; `logical` is what
    the elements are where the tag does not say it; `align_bytes` is the alignment they want.
    """

    tag: str
    extra: int
    logical: Logical
    item_bytes: int
    align_bytes: int


@lru_cache(maxsize=256)
def torch_storage(dtype: torch.dtype) -> Storage:
    """Return how `dtype` is stored; ValueError where its elements are not whole bytes."""
    tag = _TORCH_TAGS.get(str(dtype))
    size = dtype.itemsize
    if tag is not None:
        return Storage(tag, 0, None, size, size)
    if dtype.is_complex and size in _COMPLEX_PARTS:
        return Storage(_COMPLEX_PARTS[size], 2, str(dtype), size, size)
    if dtype.is_floating_point or dtype.is_complex:
        return Storage("U8", size, str(dtype), size, size)
    raise ValueError(f"tensors of dtype {dtype} cannot be saved")


@lru_cache(maxsize=256)
def numpy_storage(dtype: np.dtype[Any]) -> Storage:
    """Return how `dtype` is stored; ValueError for dtypes that hold Python objects."""
    if dtype.hasobject:
        raise ValueError(f"arrays of dtype {dtype} hold Python objects")
    size = dtype.itemsize
    native = dtype.str[0] in "<|"
    tag = _NUMPY_TAGS.get(dtype.kind + str(size)) if native and dtype.names is None else None
    if tag is not None:
        return Storage(tag, 0, None, size, size)
    logical = np.lib.format.dtype_to_descr(dtype)
    if dtype.kind == "c" and native and size in _COMPLEX_PARTS:
        return Storage(_COMPLEX_PARTS[size], 2, logical, size, size)
    align = size if size in (1, 2, 4, 8, 16) else 1
    return Storage("U8", size, logical, size, align)


def torch_dtype(tag: str, logical: Logical) -> torch.dtype:
    """Return the torch dtype of stored elements; ValueError where torch has none."""
    import torch

    name = _TORCH_BY_TAG[tag] if logical is None else logical
    if isinstance(name, str) and name.startswith("torch."):
        dtype = getattr(torch, name.removeprefix("torch."), None)
        if isinstance(dtype, torch.dtype):
            return dtype
    raise ValueError(f"torch has no dtype {name!r}")


def numpy_dtype(tag: str, logical: Logical) -> np.dtype[Any]:
    """Return the NumPy dtype of stored elements; ValueError where NumPy has none."""
    if logical is None:
        dtype = _NUMPY_BY_TAG.get(tag)
        if dtype is None:
            raise ValueError(f"NumPy has no dtype for {tag}")
        return dtype
    if isinstance(logical, str) and logical.startswith("torch."):
        raise ValueError(f"NumPy has no dtype {logical!r}")
    return np.lib.format.descr_to_dtype(_as_descr(logical))


def _as_descr(logical: Logical) -> Any:
    """Turn JSON lists back into the tuples that a record's description is made of."""
    if isinstance(logical, str):
        return logical
    if len(logical) == 2 and isinstance(logical[0], (str, list)) and _is_shape(logical[1]):
        return _as_descr(logical[0]), tuple(logical[1])
    return [_as_field(field) for field in logical]


def _as_field(field: list[Any]) -> tuple[Any, ...]:
    name = tuple(field[0]) if isinstance(field[0], list) else field[0]
    shape = (tuple(field[2]),) if len(field) == 3 else ()
    return (name, _as_descr(field[1]), *shape)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)
