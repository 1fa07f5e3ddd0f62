"""torch only where somebody uses it: loading it takes a second and 150 MB of private memory.

A value can be one of torch's only once torch is loaded, so that looking at a value never loads it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import torch


def is_torch_loaded() -> bool:
    """Return whether this process uses torch."""
    return "torch" in sys.modules


def is_cuda_used() -> bool:
    """Return whether this process uses a GPU; never loads torch or starts CUDA."""
    if not is_torch_loaded():
        return False
    import torch

    # torch annotates nothing there.
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.is_available() and bool(is_used)


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether `value` is a tensor."""
    return is_of_torch(value, "Tensor")


def is_of_torch(value: object, *names: str) -> bool:
    """Return whether `value` is an instance of one of these classes of the module torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, tuple(getattr(torch, name) for name in names))
