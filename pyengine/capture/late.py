"""What of a snapshot may be copied after its tick has returned, and how a change is noticed.

Late are the large tensors that tracked optimizers own: parameters in their groups, and the state of
those parameters. The learner's next forward and backward pass only read them; the optimizer's step,
which changes them, is held by a hook. Late is only what is proven to be safe:

    an optimizer whose `step` calls hooks    others change what they own unseen
    plain bytes, the whole of a storage      a part of one may change through the rest
    memory of torch alone                    never exported to NumPy, not shared with processes
    no other value of the snapshot in it     it would be of another instant

Everything else is copied at once. Changes by anybody else show in the tensors' `_version`; what
does not (see `LateCopy`) is left to `debug_staging`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from pyengine._native.copying import CopyJob
from pyengine.capture.component import Component, Phase
from pyengine.capture.digests import digest, digest_at
from pyengine.capture.plain import is_plain

LATE_BYTES = 64 * 1024
"""Below, to look at a tensor costs as much as to copy it."""


@dataclass(slots=True)
class LateChoice:
    """Tensors that may wait, by identity, and the optimizers that must be held meanwhile."""

    tensors: dict[int, torch.Tensor]
    optimizers: list[Optimizer]
    refused: dict[str, int]
    """Bytes of large tensors of optimizers that may not wait, by reason."""


@dataclass(frozen=True, slots=True, eq=False)
class LateTensor:
    """A tensor whose bytes are still to be copied, as it was at the cut.

    `storage` keeps the memory: the tensor itself may be given another.
    """

    component: str
    name: str
    tensor: torch.Tensor
    storage: torch.UntypedStorage
    version: int
    source: int
    target: int
    size_bytes: int
    digest: int | None

    def has_changed(self) -> bool:
        """Return whether it may have changed since the cut; only after it was copied."""
        if self.tensor._version != self.version:
            return True
        if self.digest is None:
            return False
        copied = digest_at(self.target, self.size_bytes)
        return copied != self.digest or digest_at(self.source, self.size_bytes) != self.digest


class LateCopy:
    """The copy of the late tensors of one snapshot. Any thread; the slot's memory outlives it.

    In-place operations, `load_state_dict` and the like raise the `_version` of what they change.
    Writes through `.data` and `detach().numpy()`, fused steps of an optimizer that is not tracked,
    and code of other extensions do not; memory that is taken away (`storage().resize_()`) is read
    after its end. All of them belong before the tick, or after the next step.
    """

    def __init__(self, tensors: Sequence[LateTensor], job: CopyJob) -> None:
        self._tensors = tensors
        self._job = job

    def work(self) -> None:
        """Copy until nothing is left to begin with; the GIL is released."""
        self._job.work()

    def stop(self) -> None:
        """Copy nothing that was not begun. Does not block."""
        self._job.stop()

    def wait(self) -> bool:
        """After `work` or `stop`: wait for what other threads are in; whether all was copied."""
        return self._job.wait()

    def find_changed(self) -> LateTensor | None:
        """Return a tensor that was changed since the cut, None where none was."""
        return next((late for late in self._tensors if late.has_changed()), None)


def note(
    component: str, name: str, tensor: torch.Tensor, target: int, *, is_watched: bool
) -> LateTensor:
    """Take down what a tensor is at the cut; `is_watched` hashes its bytes."""
    return LateTensor(
        component,
        name,
        tensor,
        tensor.untyped_storage(),
        tensor._version,
        tensor.data_ptr(),
        target,
        tensor.numel() * tensor.element_size(),
        digest(tensor) if is_watched else None,
    )


def choose_late(components: Iterable[Component]) -> LateChoice:
    """Return what tracked optimizers own and may wait; no two of its storages overlap."""
    choice = LateChoice({}, [], {})
    for component in components:
        if component.phase is not Phase.OPTIMIZER:
            continue
        optimizer: Any = getattr(component, "optimizer", None) or getattr(component, "value", None)
        holds = False
        for tensor in _owned(optimizer):
            if tensor.numel() * tensor.element_size() < LATE_BYTES:
                continue
            why = _why_not(optimizer, tensor)
            if why is None:
                choice.tensors[id(tensor)] = tensor
                holds = True
            else:
                size = tensor.numel() * tensor.element_size()
                choice.refused[why] = choice.refused.get(why, 0) + size
        if holds:
            choice.optimizers.append(optimizer)
    return choice


def _owned(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _why_not(optimizer: Optimizer, tensor: torch.Tensor) -> str | None:
    """Return why a tensor has to be copied at once, None where it may wait."""
    if not can_be_held(optimizer):
        return "their optimizer's step calls no hooks"
    if tensor.device.type != "cpu":
        return "they are on a device"
    if not is_plain(tensor) or tensor.is_inference():
        return "their elements are not in order in memory"
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.numel() * tensor.element_size():
        return "they are parts of larger tensors"
    if storage.is_shared():
        return "other processes share their memory"
    if not storage.resizable():
        return "their memory was given to, or is, an array of NumPy"
    return None


def can_be_held(optimizer: Any) -> bool:
    """Return whether every step of an optimizer calls its pre-hooks first."""
    # What Optimizer.__init__ wraps `step` with; a class that never calls it has no hooks.
    return bool(getattr(type(optimizer).step, "hooked", False)) and isinstance(
        getattr(optimizer, "_optimizer_step_pre_hooks", None), dict
    )
