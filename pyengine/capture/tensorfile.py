"""Safetensors files whose payload starts on a page.

The header is padded with spaces, as the format allows, so that it fills whole pages: in a staging
slot the file is then one page-aligned run of bytes, ready for a direct write, and every tensor is
aligned to its elements (the format allows no holes, so wide elements come first). What safetensors
has no word for is in the metadata under the keys `pyengine` (a structure) and `pyengine.dtypes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyengine.capture.dtypes import (
    TAG_BYTES,
    Array,
    Logical,
    Storage,
    numpy_dtype,
    numpy_storage,
    torch_dtype,
    torch_storage,
)
from pyengine.capture.lazy_torch import is_tensor
from pyengine.config import PAGE_BYTES
from pyengine.errors import DamageError, TruncatedFileError
from pyengine.format.document import parse_json

if TYPE_CHECKING:
    import torch

Value: TypeAlias = "torch.Tensor | Array"

HEADER_LIMIT_BYTES = 100_000_000
"""Largest header that safetensors itself accepts."""

_DIMENSIONS_MAX = 64
_ELEMENTS_MAX = 1 << 56

STRUCTURE_KEY = "pyengine"
DTYPES_KEY = "pyengine.dtypes"


def storage_of(value: Value) -> Storage:
    """Return how the elements of `value` are stored; ValueError where they cannot be."""
    if is_tensor(value):
        return torch_storage(value.dtype)
    return numpy_storage(value.dtype)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Where each value of one file lies: `offsets[i]` bytes from the start of the file."""

    header: bytes
    offsets: tuple[int, ...]
    size_bytes: int


def lay_out(names: Sequence[str], values: Sequence[Value], structure: str) -> FileLayout:
    """Lay out a file that holds `values` under `names`, and `structure` (JSON) in its metadata."""
    storages = [storage_of(value) for value in values]
    sizes = [
        math.prod(value.shape) * storage.item_bytes
        for value, storage in zip(values, storages, strict=True)
    ]
    order = sorted(range(len(names)), key=lambda i: (-storages[i].align_bytes, -sizes[i], names[i]))
    logical = {names[i]: storages[i].logical for i in order if storages[i].logical is not None}
    metadata = {"format": "pt", STRUCTURE_KEY: structure}
    if logical:
        metadata[DTYPES_KEY] = json.dumps(logical, separators=(",", ":"))
    table: dict[str, Any] = {"__metadata__": metadata}
    offsets = [0] * len(names)
    end = 0
    for i in order:
        storage = storages[i]
        shape = [*values[i].shape, storage.extra] if storage.extra else list(values[i].shape)
        offsets[i], end = end, end + sizes[i]
        table[names[i]] = {
            "dtype": storage.tag,
            "shape": shape,
            "data_offsets": [offsets[i], end],
        }
    header = _header(table)
    return FileLayout(header, tuple(len(header) + o for o in offsets), len(header) + end)


def _header(table: Mapping[str, Any]) -> bytes:
    text = json.dumps(table, separators=(",", ":")).encode()
    length = -(-(len(text) + 8) // PAGE_BYTES) * PAGE_BYTES - 8
    return length.to_bytes(8, "little") + text.ljust(length)


@dataclass(frozen=True, slots=True)
class _Record:
    tag: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """A safetensors file in memory, checked before anything in it is used.

    Values share memory with `buffer` where it is writable, and are copies where it is not; they
    stay valid after this object is gone. Raises DamageError that names `path`.
    """

    def __init__(self, buffer: Any, path: str) -> None:
        self.path = path
        self._buffer = memoryview(buffer).cast("B")
        table, self._payload = self._read_header()
        metadata = table.pop("__metadata__", {})
        try:
            self.structure: str | None = metadata.get(STRUCTURE_KEY)
            self._logical: dict[str, Logical] = dict(parse_json(metadata.get(DTYPES_KEY, "{}")))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self._damage(f"its metadata is malformed: {error}") from None
        self._records = {name: self._record(name, entry) for name, entry in table.items()}
        self._check_cover()

    def __contains__(self, name: object) -> bool:
        return name in self._records

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all values, in file order."""
        return tuple(self._records)

    def tensor(self, name: str) -> torch.Tensor:
        """Return the value as a CPU tensor."""
        import torch

        record, logical = self._find(name)
        try:
            dtype = torch_dtype(record.tag, logical)
        except (ValueError, TypeError) as error:
            raise self._damage(f"{name!r}: {error}") from None
        shape = self._logical_shape(name, record, logical, dtype.itemsize)
        data = self._buffer[self._payload + record.start : self._payload + record.end]
        if not len(data):
            return torch.empty(shape, dtype=dtype, device="cpu")
        if data.readonly:
            raw = torch.empty(len(data), dtype=torch.uint8, device="cpu")
            raw.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
            return raw.view(dtype).view(shape)
        return torch.frombuffer(data, dtype=dtype).view(shape)

    def array(self, name: str) -> Array:
        """Return the value as an array."""
        record, logical = self._find(name)
        try:
            dtype = numpy_dtype(record.tag, logical)
        except (ValueError, TypeError, IndexError) as error:
            raise self._damage(f"{name!r}: {error}") from None
        shape = self._logical_shape(name, record, logical, dtype.itemsize)
        data = self._buffer[self._payload + record.start : self._payload + record.end]
        if not len(data):
            return np.zeros(shape, dtype=dtype)
        array: Array = np.frombuffer(data, dtype=dtype).reshape(shape)
        return array.copy() if data.readonly else array

    def _find(self, name: str) -> tuple[_Record, Logical]:
        record = self._records.get(name)
        if record is None:
            raise self._damage(f"it has no value named {name!r}")
        return record, self._logical.get(name)

    def _logical_shape(
        self, name: str, record: _Record, logical: Logical, item_bytes: int
    ) -> tuple[int, ...]:
        shape = record.shape if logical is None else record.shape[:-1]
        if math.prod(shape) * item_bytes != record.end - record.start:
            raise self._damage(f"{name!r}: shape {list(shape)} does not fit its bytes")
        return shape

    def _read_header(self) -> tuple[dict[str, Any], int]:
        size = len(self._buffer)
        if size < 8:
            raise TruncatedFileError(
                f"{self.path}: {size} bytes are no safetensors file",
                path=self.path,
                offset=0,
                expected=8,
                got=size,
            )
        length = int.from_bytes(self._buffer[:8], "little")
        if length > min(HEADER_LIMIT_BYTES, size - 8):
            raise self._damage(f"its header claims {length} bytes of {size - 8}")
        try:
            table = parse_json(bytes(self._buffer[8 : 8 + length]))
        except (ValueError, RecursionError) as error:
            raise self._damage(f"its header is not JSON: {error}") from None
        if not isinstance(table, dict):
            raise self._damage("its header is not a map")
        return table, 8 + length

    def _record(self, name: str, entry: Any) -> _Record:
        try:
            tag, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = [*shape, start, end]
        except (TypeError, KeyError, ValueError):
            raise self._damage(f"the header's entry {name!r} is malformed") from None
        if any(type(number) is not int or number < 0 for number in numbers):
            raise self._damage(f"the header's entry {name!r} holds no sizes")
        # Empty values too: a dimension of 0 beside absurd ones takes no bytes and overflows later.
        if len(shape) > _DIMENSIONS_MAX or math.prod(size or 1 for size in shape) > _ELEMENTS_MAX:
            raise self._damage(f"{name!r} has an absurd shape")
        if (
            type(tag) is not str
            or tag not in TAG_BYTES
            or math.prod(shape) * TAG_BYTES[tag] != end - start
        ):
            raise self._damage(f"{name!r}: {shape} of {tag} are not {end - start} bytes")
        return _Record(tag, tuple(shape), start, end)

    def _check_cover(self) -> None:
        """Refuse holes, overlaps and a file that is longer or shorter than its table."""
        end = 0
        for record in sorted(self._records.values(), key=lambda record: (record.start, record.end)):
            if record.start != end:
                raise self._damage(f"its values leave a hole or overlap at byte {end}")
            end = record.end
        if self._payload + end != len(self._buffer):
            raise TruncatedFileError(
                f"{self.path}: {len(self._buffer)} bytes, its table says {self._payload + end}",
                path=self.path,
                expected=self._payload + end,
                got=len(self._buffer),
            )

    def _damage(self, what: str) -> DamageError:
        return DamageError(f"{self.path}: {what}", path=self.path, offset=0)
