"""From captured components to a plan of a staging slot: what lies where.

A slot holds, each on a page of its own: safetensors files whose tensors keep their shapes (header
and payload as they will lie on disk), safetensors files of changing size, structures.
`StagingLayout` remembers each file's layout, so that from the second snapshot on a plan is: compare
shapes. `pyengine.capture.slot` fills a slot by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pyengine.capture.component import Captured
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
from pyengine.capture.tensorfile import FileLayout, Value, lay_out
from pyengine.config import PAGE_BYTES
from pyengine.errors import CaptureError
from pyengine.format.descriptor import FilePlan, SlotRange
from pyengine.format.manifest import ComponentRecord
from pyengine.format.names import META

_SORT = attrgetter("shape", "dtype")


@dataclass(frozen=True, slots=True, eq=False)
class PlacedFile:
    """A tensor file at `offset` bytes of a slot; `layout` is the same object while it fits.

    `values` are the live ones, `names` those in `component`.
    """

    path: str
    offset: int
    layout: FileLayout
    component: str
    names: Sequence[str]
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
            placed.append(
                PlacedFile(part.path, end, layout, part.component, part.names, part.values)
            )
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


def _has_blob(kind: str) -> bool:
    return not is_in_metadata(kind) and not is_in_meta_file(kind)


def _tensor_part(one: Captured) -> TensorPart:
    structure = "{}"
    if is_in_metadata(one.kind):
        structure = to_json(envelope(one.name, one.kind, one.structure))
    path = tensor_path(one.name, one.kind)
    is_fixed = one.kind in FIXED_KINDS
    return TensorPart(path, one.name, list(one.names), one.values, structure, is_fixed)


def _blob_part(one: Captured) -> BlobPart:
    path = structure_path(one.name, one.kind)
    return BlobPart(path, blob_bytes(one.name, one.kind, one.structure))


def _record(one: Captured, sizes: Mapping[str, int]) -> ComponentRecord:
    paths = component_paths(one.name, one.kind, has_tensors=bool(one.names))
    total = sum(sizes[path] for path in paths if path != META)
    return ComponentRecord(one.name, one.kind, "saved", None, paths, total)


def _page_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
