"""How tensors get into a staging slot: one copier per kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Copier(Protocol):
    """Copies tensors into staging memory. `attach` and `release` bracket the life of one slot."""

    def attach(self, memory: Any) -> None:
        """Prepare a slot's memory (a writable buffer) for fast copies; never fails for good."""

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Start copying each source into its target (same shape and dtype, contiguous, CPU)."""

    def finish(self) -> None:
        """Wait until everything started is in the targets."""

    def release(self, memory: Any) -> None:
        """Undo `attach`; call before the memory is unmapped."""
