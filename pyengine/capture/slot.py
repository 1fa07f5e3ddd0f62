"""The memory of one staging slot, filled by a plan.

Values that are one run of bytes in memory go through one native copy (`_native.copying`), a table
of addresses: no call of torch for each. A second thread helps where there is much: on some machines
one is not at the memory's rate. What lies otherwise (strided, on a device, NumPy) goes the
way of its library. What may wait (`pyengine.capture.late`) is noted and left for later.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyengine._native.copying import CopyJob
from pyengine.capture.copiers import Copier
from pyengine.capture.digests import digest, digest_at
from pyengine.capture.lazy_torch import is_tensor, is_torch_loaded
from pyengine.capture.staging import PlacedFile, StagingPlan
from pyengine.capture.tensorfile import FileLayout, Value
from pyengine.errors import ChangedWhileStagedError, ClosedError

if TYPE_CHECKING:
    import torch

    from pyengine.capture.late import LateCopy


_SHARED_BYTES = 32 * 1024 * 1024
"""From here on a thread's start, some 0.1 ms, is little of what it may save."""


@dataclass(slots=True, eq=False)
class _Places:
    """Where one file's values lie in the slot, by address; views only of those that need one."""

    layout: FileLayout
    offset: int
    targets: array[int]
    sizes: array[int]
    views: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Work:
    """What is to be copied at once: plain bytes, tensors by a copier, arrays by NumPy.

    `late` are (file, index, source, target) of what may wait.
    """

    targets: array[int] = field(default_factory=lambda: array("Q"))
    sources: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    tensors: list[tuple[Any, Any]] = field(default_factory=list)
    arrays: list[tuple[Any, Any]] = field(default_factory=list)
    late: list[tuple[PlacedFile, int, int, int]] = field(default_factory=list)

    def add(self, target: int, source: int, size_bytes: int) -> None:
        self.targets.append(target)
        self.sources.append(source)
        self.sizes.append(size_bytes)


class StagingSlot:
    """The memory of one staging slot, with the places in it kept from one snapshot to the next.

    Owns its views and the copier's registration, not the memory: `close()` before the memory is
    unmapped. `memory` is a writable buffer that starts on a page. With `is_watched` each value is
    hashed before and after its copy, and the copy too. Not thread-safe.
    """

    def __init__(self, memory: Any, copier: Copier, *, is_watched: bool = False) -> None:
        self._memory = memoryview(memory).cast("B")
        self._address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)
        self._bytes: torch.Tensor | None = None
        self._is_closed = False
        self._is_watched = is_watched
        self._copier = copier
        self._places: dict[str, _Places] = {}
        copier.attach(self._memory)

    @property
    def size_bytes(self) -> int:
        """Return the size of the slot."""
        return len(self._memory)

    def fill(
        self, plan: StagingPlan, may_wait: Mapping[int, torch.Tensor] | None = None
    ) -> LateCopy | None:
        """Copy everything of a plan but the tensors of `may_wait`, by identity.

        On return nothing in the slot depends on live objects but what is in the LateCopy that is
        returned; None where there is nothing to wait for. Raises ChangedWhileStagedError where
        values are watched and one changed meanwhile.
        """
        if self._is_closed:
            raise ClosedError("this staging slot is closed")
        if plan.required_bytes > len(self._memory):
            raise ValueError(f"{plan.required_bytes} bytes do not fit {len(self._memory)}")
        paths = {file.path for file in plan.tensor_files}
        self._places = {path: places for path, places in self._places.items() if path in paths}
        work = _Work()
        for file in plan.tensor_files:
            header = file.layout.header
            self._memory[file.offset : file.offset + len(header)] = header
            self._sort(file, work, may_wait or {})
        if work.late:
            _take_back_aliases(work)
        seen = self._digests(plan) if self._is_watched else {}
        late = self._note_late(work)
        self._copy(plan, work)
        if self._is_watched:
            self._compare(plan, seen, {(file.path, index) for file, index, *_ in work.late})
        return late

    def _copy(self, plan: StagingPlan, work: _Work) -> None:
        try:
            if work.tensors:
                self._copier.copy([pair[0] for pair in work.tensors], [p[1] for p in work.tensors])
            if work.sizes:
                _copy_now(CopyJob(work.targets, work.sources, work.sizes))
            for target, value in work.arrays:
                np.copyto(target, value, casting="no")
            for offset, data in plan.blobs:
                self._memory[offset : offset + len(data)] = data
        finally:
            # Also after an error: the slot may serve again at once.
            self._copier.finish()

    def _sort(self, file: PlacedFile, work: _Work, may_wait: Mapping[int, torch.Tensor]) -> None:
        """Find out how each value of a file is to be copied."""
        places = self._places_of(file)
        if is_torch_loaded():
            from pyengine.capture.plain import addresses, are_plain, is_plain

            if are_plain(file.values):
                sources, sizes = addresses(file.values), array("Q", places.sizes)
                for index, key in enumerate(map(id, file.values)) if may_wait else ():
                    if key in may_wait:
                        work.late.append((file, index, sources[index], places.targets[index]))
                        sources[index] = sizes[index] = 0
                work.targets += places.targets
                work.sources += sources
                work.sizes += sizes
                return
        for index, value in enumerate(file.values):
            target, size = places.targets[index], places.sizes[index]
            if not size:
                continue
            if not is_tensor(value):
                work.arrays.append((self._view(file, places, index), value))
            elif id(value) in may_wait:
                work.late.append((file, index, value.data_ptr(), target))
            elif is_plain(value):
                work.add(target, value.data_ptr(), size)
            else:
                work.tensors.append((self._view(file, places, index), value))

    def _note_late(self, work: _Work) -> LateCopy | None:
        if not work.late:
            return None
        from pyengine.capture.late import LateCopy, note

        tensors = []
        for file, index, _, target in work.late:
            value: Any = file.values[index]
            name, watched = file.names[index], self._is_watched
            tensors.append(note(file.component, name, value, target, is_watched=watched))
        job = CopyJob(
            array("Q", [late.target for late in tensors]),
            array("Q", [late.source for late in tensors]),
            array("Q", [late.size_bytes for late in tensors]),
        )
        return LateCopy(tensors, job)

    def _digests(self, plan: StagingPlan) -> dict[str, list[int]]:
        return {file.path: [digest(value) for value in file.values] for file in plan.tensor_files}

    def _compare(
        self, plan: StagingPlan, seen: Mapping[str, list[int]], late: set[tuple[str, int]]
    ) -> None:
        """Raise where a value, or its copy, is not what it was before the copy."""
        for file in plan.tensor_files:
            places = self._places[file.path]
            for index, before in enumerate(seen[file.path]):
                if (file.path, index) in late or not places.sizes[index]:
                    continue
                copied = digest_at(places.targets[index], places.sizes[index])
                if copied != before or digest(file.values[index]) != before:
                    raise ChangedWhileStagedError(
                        f"{file.component!r}: {file.names[index]} changed while it was copied: the "
                        "learner must be at rest during a tick (another thread, or another "
                        "process, writes to it)",
                        component=file.component,
                        tensor=file.names[index],
                    )

    def close(self) -> None:
        """Let go of all views and registrations; afterwards the memory may be unmapped."""
        if self._is_closed:
            return
        self._is_closed = True
        self._copier.release(self._memory)
        self._places.clear()
        self._bytes = None
        self._memory.release()

    def __enter__(self) -> StagingSlot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _places_of(self, file: PlacedFile) -> _Places:
        places = self._places.get(file.path)
        if places is None or places.layout is not file.layout or places.offset != file.offset:
            start = self._address + file.offset
            targets = array("Q", [start + offset for offset in file.layout.offsets])
            sizes = array("Q", map(_size_of, file.values))
            places = _Places(file.layout, file.offset, targets, sizes)
            self._places[file.path] = places
        return places

    def _view(self, file: PlacedFile, places: _Places, index: int) -> Any:
        """Return the place of a value in its shape."""
        view = places.views.get(index)
        if view is None:
            start = file.offset + file.layout.offsets[index]
            with _outside_inference_mode():
                view = places.views[index] = self._target(start, file.values[index])
        return view

    def _target(self, start: int, value: Value) -> Any:
        if is_tensor(value):
            size = value.numel() * value.element_size()
            if self._bytes is None:
                self._bytes = _as_tensor(self._memory)
            return self._bytes[start : start + size].view(value.dtype).view(value.shape)
        dtype: Any = value.dtype
        target: Any = np.ndarray(value.shape, dtype, self._memory, start)
        return target


def _copy_now(job: CopyJob) -> None:
    """Copy everything, with the help of a thread where that pays; nobody copies any more after."""
    try:
        if job.size_bytes >= _SHARED_BYTES and (os.cpu_count() or 1) > 1:
            with contextlib.suppress(RuntimeError):  # it helps, and is not needed
                threading.Thread(target=job.work, name="pyengine-copy", daemon=True).start()
        job.work()
    finally:
        job.stop()
        job.wait()


def _take_back_aliases(work: _Work) -> None:
    """Copy at once what shares its memory with something that is copied at once.

    A late tensor is the whole of its storage, so that whatever shares it begins inside.
    """
    now = set(work.sources)
    now.update(value.data_ptr() for _, value in work.tensors if value.device.type == "cpu")
    starts = sorted(now)
    waiting = []
    for file, index, source, target in work.late:
        size = _size_of(file.values[index])
        at = bisect_right(starts, source + size - 1)
        if at and starts[at - 1] >= source:
            work.add(target, source, size)
        else:
            waiting.append((file, index, source, target))
    work.late = waiting


def _size_of(value: Value) -> int:
    return value.numel() * value.element_size() if is_tensor(value) else value.nbytes


def _outside_inference_mode() -> contextlib.AbstractContextManager[Any]:
    """Views made in inference mode could not be written outside of it."""
    if not is_torch_loaded():
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode(False)


def _as_tensor(memory: memoryview) -> torch.Tensor:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8)
