"""One field of a row: its shape and dtype, whether it may change, what it shares in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pyengine.errors import SchemaError
from pyengine.format.counts import as_count
from pyengine.format.dtypes import BY_NAME, Dtype, as_default, dtype_name

MAX_DIMENSIONS = 8
MAX_ELEMENTS = (1 << 40) - 1

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, init=False)
class Field:
    """One field of a row; an immutable value.

    `shape` is the shape of one row's value: () for a scalar, an int for one axis, up to 8 axes of
    at least 1, fewer than 2**40 elements. `dtype` is its element type, as a name or as NumPy's or
    torch's: bool, (u)int8 to (u)int64, float16 to float64, bfloat16 (uint16 in NumPy).

    An append field (`mutable=False`) never changes once its row was added. A mutable field may be
    changed through `ReplayBuffer.update`; it is copied whole into every snapshot, so keep it small
    (priorities, flags). `default` (mutable fields only; one finite number, in the dtype's range) is
    stored where `add` is not given a value; without one `add` needs it.

    `next_of` names the append field that this one follows in time: next_obs is `next_of="obs"`.
    Rows then keep what is new in it alone, and both fields are rebuilt from the rows of their
    sequence. `stack` says that the first axis is a stack of so many frames, oldest first, of which
    each step brings one: shape (4, 84, 84), or (12, 84, 84) of colour frames, with `stack=4`; both
    fields of a pair have it.

    Raises SchemaError for a shape or dtype that cannot be stored.
    """

    shape: Shape
    dtype: str
    mutable: bool
    default: float | int | bool | None
    stack: int
    next_of: str | None

    def __init__(
        self,
        shape: int | Sequence[int] = (),
        dtype: object = "float32",
        *,
        mutable: bool = False,
        default: float | int | bool | None = None,
        stack: int = 1,
        next_of: str | None = None,
    ) -> None:
        try:
            name = dtype_name(dtype)
        except KeyError:
            raise SchemaError(
                f"dtype {dtype!r} cannot be stored; choose one of {', '.join(BY_NAME)}",
                field="dtype",
                expected=tuple(BY_NAME),
                got=dtype,
            ) from None
        if default is not None:
            if not mutable:
                raise SchemaError(
                    "only a mutable field takes a default: append fields are always given",
                    field="default",
                    expected=None,
                    got=default,
                )
            default = as_default(BY_NAME[name], default)
        object.__setattr__(self, "shape", _as_shape(shape))
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "mutable", bool(mutable))
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "stack", as_count("stack", stack, least=1, error=SchemaError))
        object.__setattr__(self, "next_of", next_of)
        _check_stack(self)

    @property
    def spec(self) -> Dtype:
        """The entry of the dtype table."""
        return BY_NAME[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's value."""
        return prod(self.shape) * self.spec.item_bytes

    @property
    def frame(self) -> Field:
        """One frame of a stack: what a row keeps of it."""
        if self.stack == 1:
            return Field(self.shape, self.dtype)
        return Field((self.shape[0] // self.stack, *self.shape[1:]), self.dtype)


def _as_shape(shape: Any) -> Shape:
    try:
        sizes = tuple(shape)
    except TypeError:  # one number: a vector
        sizes = (shape,)
    if len(sizes) > MAX_DIMENSIONS:
        raise SchemaError(
            f"a field takes up to {MAX_DIMENSIONS} dimensions, got {sizes}",
            field="shape",
            expected=f"up to {MAX_DIMENSIONS} dimensions",
            got=sizes,
        )
    counts = tuple(as_count("shape", size, least=1, error=SchemaError) for size in sizes)
    if prod(counts) > MAX_ELEMENTS:
        raise SchemaError(
            f"a field takes up to {MAX_ELEMENTS} elements, got {counts}",
            field="shape",
            expected=f"up to {MAX_ELEMENTS} elements",
            got=counts,
        )
    return counts


def _check_stack(field: Field) -> None:
    """Raise SchemaError where a field's shape is no stack of `field.stack` frames."""
    if field.next_of is not None and not isinstance(field.next_of, str):
        raise _stack_error("next_of", "the name of a field", field.next_of)
    if field.stack == 1 and field.next_of is None:
        return
    if field.mutable:
        raise _stack_error("mutable", "an append field, where there is stack or next_of", True)
    if field.stack > 1 and (not field.shape or field.shape[0] % field.stack):
        expected = f"a first axis of {field.stack} equal frames"
        raise _stack_error("stack", expected, field.shape)


def _stack_error(what: str, expected: str, got: Any) -> SchemaError:
    return SchemaError(
        f"{what}: expected {expected}, got {got!r}", field=what, expected=expected, got=got
    )
