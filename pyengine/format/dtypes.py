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


def dtype_name(value: object) -> str:
    """Return the name of `value`: a string, a NumPy dtype or scalar type, or a torch dtype.

    Raises KeyError for anything that is not in the table.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, type):
        text = value.__name__
    else:
        text = str(value)
    text = text.removeprefix("torch.").rstrip("_")
    text = {"float": "float64", "int": "int64"}.get(text, text)
    return BY_NAME[text].name


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
