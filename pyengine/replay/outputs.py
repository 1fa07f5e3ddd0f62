"""Where gathered rows go: fresh arrays, the caller's arrays, or the caller's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import FieldDtypeError, FieldShapeError, UnknownFieldError
from pyengine.format.schema import Field, Schema
from pyengine.replay.batch import Batch
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.rows import flatten, merge

Array = NDArray[Any]


class Outputs:
    """Prepares the outputs of gathers for one schema, and dresses them as batches."""

    def __init__(self, schema: Schema) -> None:
        self._fields: dict[str, Field] = {**schema.append_fields, **schema.mutable_fields}
        self._forms = {name: (f.shape, numpy_dtype(f)) for name, f in self._fields.items()}

    def prepare(
        self, rows: int, names: tuple[str, ...], out: Any
    ) -> tuple[dict[str, Array], list[Array | None]]:
        """Return (arrays by field, the same in the core's order with None for fields left out)."""
        if out is None:
            values = {}
            for name in names:
                shape, dtype = self._forms[name]
                values[name] = np.empty((rows, *shape), dtype)
        else:
            values = self._given(rows, names, out)
        return values, [values.get(name) for name in self._fields]

    def _given(self, rows: int, names: tuple[str, ...], out: Any) -> dict[str, Array]:
        given = _by_field(out)
        unknown = [name for name in given if name not in names]
        if unknown:
            raise UnknownFieldError(
                f"out: the schema has no field {unknown[0]!r}",
                field=unknown[0],
                expected=names,
                got=unknown[0],
            )
        return {
            name: _writable(name, self._fields[name], value, rows) for name, value in given.items()
        }

    def batch(
        self, values: Mapping[str, Array], refs: NDArray[np.int64], out: Any, device: Any
    ) -> Batch:
        """Return the batch: the caller's own objects where given, tensors where a device is.

        With both, the rows are in `out` as well; on the CPU the tensors share its memory.
        """
        if isinstance(out, Batch):
            out.indices = refs
        if device is not None:
            fields = self._fields
            tensors = {n: _to_tensor(fields[n], value, device) for n, value in values.items()}
            return Batch(tensors, refs)
        if isinstance(out, Batch):
            return out
        return Batch(dict(values) if out is None else _by_field(out), refs)


def exact_batch(refs: NDArray[np.int64], out: Any) -> Batch:
    """Return the batch of a flat dict of arrays, or of a Batch, that was filled as it is."""
    if isinstance(out, Batch):
        out.indices = refs
        return out
    return Batch(dict(out), refs)


def _by_field(out: Any) -> dict[str, Any]:
    if isinstance(out, Batch):
        return out.values_by_field
    return flatten(merge(out, {}, "out"))


def _writable(name: str, field: Field, value: Any, rows: int) -> Array:
    array = value
    if hasattr(value, "detach") and value.device.type == "cpu":
        tensor = value.detach()
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            tensor = tensor.view(torch.uint16)
        array = tensor.numpy()
    expected = (rows, *field.shape)
    if not isinstance(array, np.ndarray) or array.shape != expected or not array.flags.c_contiguous:
        raise FieldShapeError(
            f"out[{name!r}]: expected a contiguous array of shape {expected}, "
            f"got {getattr(array, 'shape', type(array).__name__)}",
            field=name,
            expected=expected,
            got=getattr(array, "shape", None),
        )
    if array.dtype != numpy_dtype(field) or not array.flags.writeable:
        raise FieldDtypeError(
            f"out[{name!r}]: expected writable {numpy_dtype(field)}, got {array.dtype}",
            field=name,
            expected=str(numpy_dtype(field)),
            got=str(array.dtype),
        )
    return array


def _to_tensor(field: Field, array: Array, device: Any) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    if field.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(device)
