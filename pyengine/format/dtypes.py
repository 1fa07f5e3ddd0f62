"""The dtypes a field may have: name, code on disk, item size. The only place that lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    `name` is the name in schemas and manifests, `code` the number in segment files, `item_bytes`
    the width, `numpy` the NumPy dtype that carries the bits (bfloat16 travels as uint16).
    """

    name: str
    code: int
    item_bytes: int
    numpy: str


_ALL = (
    Dtype("bool", 1, 1, "bool"),
    Dtype("int8", 2, 1, "int8"),
    Dtype("uint8", 3, 1, "uint8"),
    Dtype("int16", 4, 2, "int16"),
    Dtype("uint16", 5, 2, "uint16"),
    Dtype("int32", 6, 4, "int32"),
    Dtype("uint32", 7, 4, "uint32"),
    Dtype("int64", 8, 8, "int64"),
    Dtype("uint64", 9, 8, "uint64"),
    Dtype("float16", 10, 2, "float16"),
    Dtype("float32", 11, 4, "float32"),
    Dtype("float64", 12, 8, "float64"),
    Dtype("bfloat16", 13, 2, "uint16"),
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
