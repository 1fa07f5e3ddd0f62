"""Where gathered rows go: arrays over memory used again, the caller's arrays, or his tensors.

An array of a default batch owns its memory through a small native object: when the last array,
tensor or view of it is gone, the memory waits in the ring's pool for the next batch. Fields of
64 KiB and more have memory of their own, the others of a batch share one piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._native.outputs import OutputPool
from pyengine.errors import FieldDtypeError, FieldShapeError, UnknownFieldError
from pyengine.format.schema import Field, Schema
from pyengine.replay.batch import Batch
from pyengine.replay.plan import numpy_dtype
from pyengine.replay.rows import flatten, merge

Array = NDArray[Any]


class Outputs:
    """Prepares the outputs of gathers for one schema, and dresses them as batches.

    Flat dicts of outputs hold arrays or CPU tensors. `tensor_forms` is what the native core needs
    to fill tensors as they are: their type, then dtype and shape of each field; None until a tensor
    was seen.
    """

    def __init__(self, schema: Schema) -> None:
        # In the core's order.
        given = {name: field for name, field in schema.items() if not field.mutable}
        self._fields: dict[str, Field] = {**given, **schema.mutable_fields}
        # Reserved fields are in no batch.
        shown = {name: field for name, field in schema.items() if not name.startswith("@")}
        self._names = shown.keys()
        fields = shown.values()
        self.pool = OutputPool(
            np.ndarray,
            tuple(shown),
            tuple(field.shape for field in fields),
            tuple(numpy_dtype(field) for field in fields),
            tuple(field.row_bytes for field in fields),
        )
        self.tensor_forms: tuple[Any, ...] | None = None

    def flat(self, rows: int, out: Any) -> dict[str, Any]:
        """Return outputs by flat name: new ones (any content), or what `out` holds, unchecked."""
        if out is None:
            return self.pool.arrays(rows)
        if isinstance(out, Batch):
            return out.values_by_field
        if type(out) is dict and out.keys() <= self._names:  # nearly always
            return out
        return flatten(merge(out, {}, "out"))

    def check(self, flat: dict[str, Any], *lead: int) -> list[Array | None]:
        """Return the arrays of outputs in the core's order, None for fields left out; RowError.

        `lead` are the axes before those of a row: rows, or windows and their rows.
        """
        for name in flat:
            if name not in self._names:
                raise UnknownFieldError(
                    f"out: the schema has no field {name!r}",
                    field=name,
                    expected=tuple(self._names),
                    got=name,
                )
        return [
            self._writable(name, field, flat[name], lead) if name in flat else None
            for name, field in self._fields.items()
        ]

    def field(self, name: str, rows: int) -> tuple[Array, list[Array | None]]:
        """Return a fresh array for one field, and the outputs in the core's order."""
        field = self._fields[name]
        array = np.empty((rows, *field.shape), numpy_dtype(field))
        return array, [array if other == name else None for other in self._fields]

    def batch(self, flat: dict[str, Any], refs: NDArray[np.int64], out: Any, device: Any) -> Batch:
        """Return the batch: the caller's own objects where given, tensors where a device is.

        With both, the rows are in `out` as well; on the CPU the tensors share its memory.
        """
        if isinstance(out, Batch):
            out.indices = refs
        if device is not None:
            return Batch(self._to_tensors(flat, device), refs)
        if isinstance(out, Batch):
            return out
        return Batch(flat if out is None else dict(flat), refs)

    def _writable(self, name: str, field: Field, value: Any, lead: tuple[int, ...]) -> Array:
        array = value
        if hasattr(value, "detach") and value.device.type == "cpu":
            tensor = value.detach()
            if field.dtype == "bfloat16" and str(tensor.dtype) == "torch.bfloat16":
                import torch

                tensor = tensor.view(torch.uint16)
            array = tensor.numpy()
            self._know_tensors()
        expected = (*lead, *field.shape)
        if (
            not isinstance(array, np.ndarray)
            or array.shape != expected
            or not array.flags.c_contiguous
        ):
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

    def _know_tensors(self) -> None:
        """From the first tensor on the native core may fill them: torch is loaded now."""
        if self.tensor_forms is None:
            import torch

            forms = [(getattr(torch, field.dtype), field.shape) for field in self._fields.values()]
            self.tensor_forms = (torch.Tensor, *forms)

    def _to_tensors(self, flat: dict[str, Any], device: Any) -> dict[str, Any]:
        import torch

        tensors = {}
        for name, value in flat.items():
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value.detach()
            if tensor.dtype is torch.uint16 and self._fields[name].dtype == "bfloat16":
                tensor = tensor.view(torch.bfloat16)
            tensors[name] = tensor
        if device.type == "cpu":
            return tensors
        return {name: tensor.to(device) for name, tensor in tensors.items()}


def to_device(array: Array, device: Any) -> Any:
    """Return an array as it is, or as a tensor of its dtype where a device is given."""
    if device is None:
        return array
    import torch

    return torch.from_numpy(array).to(device)
