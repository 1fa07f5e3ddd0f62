"""From captured components to a filled staging slot: plan, then one copy.

A slot holds, each on a page of its own: safetensors files whose tensors keep their shapes (header
and payload as they will lie on disk), safetensors files of changing size, structures.
`StagingLayout` remembers each file's layout, and `StagingSlot` the destination views that belong to
it, so that from the second snapshot on a copy is: compare shapes, copy tensors, copy structures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from pyengine.capture.component import Captured
from pyengine.capture.copiers import Copier
from pyengine.capture.files import (
    FIXED_KINDS,
    BlobPart,
    TensorPart,
    blob_bytes,
    component_paths,
    envelope,
    is_in_meta_file,
    is_in_metadata,
    meta_bytes,
    structure_path,
    tensor_path,
    to_json,
)
from pyengine.capture.lazy_torch import is_tensor, is_torch_loaded
from pyengine.capture.tensorfile import FileLayout, Value, lay_out
from pyengine.config import PAGE_BYTES
from pyengine.errors import CaptureError, ClosedError
from pyengine.format.descriptor import FilePlan, SlotRange
from pyengine.format.manifest import ComponentRecord
from pyengine.format.names import META

if TYPE_CHECKING:
    import torch

_SORT = attrgetter("shape", "dtype")


@dataclass(frozen=True, slots=True, eq=False)
class PlacedFile:
    """A tensor file at `offset` bytes of a slot; `layout` is the same object while it fits."""

    path: str
    offset: int
    layout: FileLayout
    values: Sequence[Value]


@dataclass(frozen=True, slots=True, eq=False)
class StagingPlan:
    """What goes where in a slot, for one snapshot.

    `files` and `components` are for the descriptor; the first `required_bytes` (whole pages) of
    the slot are used. Holds live tensors: fill a slot at once, then let go of the plan.
    """

    files: tuple[FilePlan, ...]
    components: tuple[ComponentRecord, ...]
    required_bytes: int
    tensor_files: tuple[PlacedFile, ...]
    blobs: tuple[tuple[int, bytes], ...]


@dataclass(slots=True)
class _KnownFile:
    layout: FileLayout
    names: list[str]
    sorts: list[tuple[Any, Any]]
    structure: str


class StagingLayout:
    """Plans slots of one engine, and remembers each file's layout while its tensors keep theirs."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownFile] = {}

    def plan(self, captured: Sequence[Captured], meta: Mapping[str, Any]) -> StagingPlan:
        """Place all files of a snapshot; `meta` (JSON) becomes meta.json beside the state.

        Raises CaptureError for values that cannot be stored. Copies nothing.
        """
        tensors = [_tensor_part(one) for one in captured if one.names or is_in_metadata(one.kind)]
        tensors.sort(key=lambda part: not part.fixed)
        blobs = [_blob_part(one) for one in captured if _has_blob(one.kind)]
        structures = {
            one.name: (one.kind, one.structure) for one in captured if is_in_meta_file(one.kind)
        }
        blobs.append(BlobPart(META, meta_bytes(meta, structures)))
        return self._place(tensors, blobs, captured)

    def _place(
        self, tensors: list[TensorPart], blobs: list[BlobPart], captured: Sequence[Captured]
    ) -> StagingPlan:
        end = 0
        placed: list[PlacedFile] = []
        written: list[tuple[int, bytes]] = []
        files: list[FilePlan] = []
        for part in tensors:
            layout = self._layout(part)
            placed.append(PlacedFile(part.path, end, layout, part.values))
            files.append(FilePlan(part.path, (SlotRange(end, layout.size_bytes),)))
            end = _page_up(end + layout.size_bytes)
        for blob in blobs:
            written.append((end, blob.data))
            files.append(FilePlan(blob.path, (SlotRange(end, len(blob.data)),)))
            end = _page_up(end + len(blob.data))
        sizes = {file.path: file.size_bytes for file in files}
        records = tuple(_record(one, sizes) for one in captured)
        return StagingPlan(tuple(files), records, end, tuple(placed), tuple(written))

    def _layout(self, part: TensorPart) -> FileLayout:
        """Return the layout known for a file if it still fits, else a new one."""
        sorts = list(map(_SORT, part.values))
        known = self._known.get(part.path)
        if (
            known is not None
            and known.sorts == sorts
            and known.names == part.names
            and known.structure == part.structure
        ):
            return known.layout
        names = list(part.names)
        if len(set(names)) != len(names) or "__metadata__" in names:
            raise CaptureError(f"{part.path}: two values of one name", component=part.path)
        try:
            layout = lay_out(names, part.values, part.structure)
        except ValueError as error:
            raise CaptureError(f"{part.path}: {error}", component=part.path) from None
        self._known[part.path] = _KnownFile(layout, names, sorts, part.structure)
        return layout


@dataclass(slots=True, eq=False)
class _Views:
    """Where one file's values lie in the slot's memory; None for empty ones."""

    layout: FileLayout
    offset: int
    targets: list[Any]


class StagingSlot:
    """The memory of one staging slot, with destination views kept from one snapshot to the next.

    Owns its views and the copier's registration, not the memory: `close()` before the memory is
    unmapped. `memory` is a writable buffer that starts on a page. Not thread-safe.
    """

    def __init__(self, memory: Any, copier: Copier) -> None:
        self._memory = memoryview(memory).cast("B")
        self._bytes: torch.Tensor | None = None
        self._is_closed = False
        self._copier = copier
        self._views: dict[str, _Views] = {}
        copier.attach(self._memory)

    @property
    def size_bytes(self) -> int:
        """Return the size of the slot."""
        return len(self._memory)

    def fill(self, plan: StagingPlan) -> None:
        """Copy everything of a plan; on return nothing in the slot depends on live objects."""
        if self._is_closed:
            raise ClosedError("this staging slot is closed")
        if plan.required_bytes > len(self._memory):
            raise ValueError(f"{plan.required_bytes} bytes do not fit {len(self._memory)}")
        paths = {file.path for file in plan.tensor_files}
        self._views = {path: views for path, views in self._views.items() if path in paths}
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        arrays: list[tuple[Any, Any]] = []
        for file in plan.tensor_files:
            header = file.layout.header
            self._memory[file.offset : file.offset + len(header)] = header
            for target, value in zip(self._targets(file), file.values, strict=True):
                if target is None:
                    continue
                if is_tensor(value):
                    targets.append(target)
                    sources.append(value)
                else:
                    arrays.append((target, value))
        try:
            if targets:
                self._copier.copy(targets, sources)
            for target, value in arrays:
                np.copyto(target, value, casting="no")
            for offset, data in plan.blobs:
                self._memory[offset : offset + len(data)] = data
        finally:
            # Also after an error: the slot may serve again at once.
            self._copier.finish()

    def close(self) -> None:
        """Let go of all views and registrations; afterwards the memory may be unmapped."""
        if self._is_closed:
            return
        self._is_closed = True
        self._copier.release(self._memory)
        self._views.clear()
        self._bytes = None
        self._memory.release()

    def __enter__(self) -> StagingSlot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _targets(self, file: PlacedFile) -> list[Any]:
        views = self._views.get(file.path)
        if views is None or views.layout is not file.layout or views.offset != file.offset:
            with _outside_inference_mode():
                targets = [
                    self._target(file.offset + offset, value)
                    for offset, value in zip(file.layout.offsets, file.values, strict=True)
                ]
            views = self._views[file.path] = _Views(file.layout, file.offset, targets)
        return views.targets

    def _target(self, start: int, value: Value) -> Any:
        """Return the slot's memory at `start` in the shape of `value`."""
        if is_tensor(value):
            size = value.numel() * value.element_size()
            if not size:
                return None
            if self._bytes is None:
                self._bytes = _as_tensor(self._memory)
            return self._bytes[start : start + size].view(value.dtype).view(value.shape)
        if not value.nbytes:
            return None
        dtype: Any = value.dtype
        target: Any = np.ndarray(value.shape, dtype, self._memory, start)
        return target


def _outside_inference_mode() -> contextlib.AbstractContextManager[Any]:
    """Views made in inference mode could not be written outside of it."""
    if not is_torch_loaded():
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode(False)


def _as_tensor(memory: memoryview) -> torch.Tensor:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8)


def _has_blob(kind: str) -> bool:
    return not is_in_metadata(kind) and not is_in_meta_file(kind)


def _tensor_part(one: Captured) -> TensorPart:
    structure = "{}"
    if is_in_metadata(one.kind):
        structure = to_json(envelope(one.name, one.kind, one.structure))
    path = tensor_path(one.name, one.kind)
    return TensorPart(path, list(one.names), one.values, structure, one.kind in FIXED_KINDS)


def _blob_part(one: Captured) -> BlobPart:
    path = structure_path(one.name, one.kind)
    return BlobPart(path, blob_bytes(one.name, one.kind, one.structure))


def _record(one: Captured, sizes: Mapping[str, int]) -> ComponentRecord:
    paths = component_paths(one.name, one.kind, has_tensors=bool(one.names))
    total = sum(sizes[path] for path in paths if path != META)
    return ComponentRecord(one.name, one.kind, "saved", None, paths, total)


def _page_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
