"""The dtypes a field may have: name, code on disk, item size. The only place that lists them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pyengine.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    `name` is the name in schemas and manifests, `code` the number in segment files, `item_bytes`
    the width, `numpy` the NumPy dtype that carries the bits (bfloat16 travels as uint16), `least`
    and `most` the finite values that it holds.
    """

    name: str
    code: int
    item_bytes: int
    numpy: str
    least: int | float
    most: int | float


_FLOAT64_MAX = math.ldexp(1 - 2.0**-53, 1024)
_FLOAT32_MAX = math.ldexp(1 - 2.0**-24, 128)
_BFLOAT16_MAX = math.ldexp(1 - 2.0**-8, 128)

_ALL = (
    Dtype("bool", 1, 1, "bool", 0, 1),
    Dtype("int8", 2, 1, "int8", -(2**7), 2**7 - 1),
    Dtype("uint8", 3, 1, "uint8", 0, 2**8 - 1),
    Dtype("int16", 4, 2, "int16", -(2**15), 2**15 - 1),
    Dtype("uint16", 5, 2, "uint16", 0, 2**16 - 1),
    Dtype("int32", 6, 4, "int32", -(2**31), 2**31 - 1),
    Dtype("uint32", 7, 4, "uint32", 0, 2**32 - 1),
    Dtype("int64", 8, 8, "int64", -(2**63), 2**63 - 1),
    Dtype("uint64", 9, 8, "uint64", 0, 2**64 - 1),
    Dtype("float16", 10, 2, "float16", -65504.0, 65504.0),
    Dtype("float32", 11, 4, "float32", -_FLOAT32_MAX, _FLOAT32_MAX),
    Dtype("float64", 12, 8, "float64", -_FLOAT64_MAX, _FLOAT64_MAX),
    Dtype("bfloat16", 13, 2, "uint16", -_BFLOAT16_MAX, _BFLOAT16_MAX),
)

BY_NAME = {dtype.name: dtype for dtype in _ALL}
BY_CODE = {dtype.code: dtype for dtype in _ALL}


# NumPy's other words for the same types, as it reads them on 64-bit Linux.
_CODES = {
    "?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32",
    "I": "uint32", "l": "int64", "L": "uint64", "q": "int64", "Q": "uint64", "p": "int64",
    "P": "uint64", "n": "int64", "N": "uint64", "e": "float16", "f": "float32", "d": "float64",
    "b1": "bool", "i1": "int8", "u1": "uint8", "i2": "int16", "u2": "uint16", "i4": "int32",
    "u4": "uint32", "i8": "int64", "u8": "uint64", "f2": "float16", "f4": "float32",
    "f8": "float64",
}  # fmt: skip
_WORDS = {
    "float": "float64", "int": "int64", "uint": "uint64", "half": "float16", "single": "float32",
    "double": "float64", "byte": "int8", "ubyte": "uint8", "short": "int16", "ushort": "uint16",
    "intc": "int32", "uintc": "uint32", "intp": "int64", "uintp": "uint64", "long": "int64",
    "ulong": "uint64", "longlong": "int64", "ulonglong": "uint64",
}  # fmt: skip
_NATIVE_ORDERS = "<=|"


def dtype_name(value: object) -> str:
    """Return the name of `value`: a string, a NumPy dtype or scalar type, or a torch dtype.

    Strings are names and what NumPy takes for a type of the table in little-endian order: "f4",
    "<f4", "float". Raises KeyError for anything else.
    """
    if isinstance(value, str):
        code = value[1:] if value[:1] in _NATIVE_ORDERS else value
        text = _CODES.get(code, value)
    elif isinstance(value, type):
        text = value.__name__
    else:
        text = str(value)
    text = text.removeprefix("torch.").rstrip("_")
    return BY_NAME[_WORDS.get(text, text)].name


def as_default(dtype: Dtype, value: Any) -> int | float:
    """Return one element's value as a plain number that the dtype holds; SchemaError otherwise.

    Integers and flags for integers and flags; any finite number in range for floats.
    """
    plain: Any = value.item() if getattr(value, "shape", None) == () else value
    takes = int | float if isinstance(dtype.least, float) else int
    if not isinstance(plain, takes) or not dtype.least <= plain <= dtype.most:
        expected = f"one {dtype.name} from {dtype.least} to {dtype.most}"
        raise SchemaError(
            f"default: expected {expected}, got {value!r:.100}",
            field="default",
            expected=expected,
            got=value,
        )
    return float(plain) if isinstance(dtype.least, float) else plain
