"""Tensors that are one run of bytes in this process's memory, and where those lie.

What is known of a tensor here holds for this moment only: an assignment to `.data` may give one and
the same object other memory, another order of axes or another device. So it is asked anew for each
snapshot, for all tensors of a file at once: 20,000 of them take 8 ms, one by one 18 (2026-11-30).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch

_LEAVES = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}
"""A subclass of one's own may say anything about itself. torch has Buffer from 2.5 on."""

_is_cpu = attrgetter("is_cpu")
_Tensor: Any = torch.Tensor


def is_plain(value: Any) -> bool:
    """Return whether the bytes of `value`, in the order of its elements, are one run of memory."""
    return bool(
        type(value) in _LEAVES
        and value.is_cpu
        and value.is_contiguous()
        and not value.is_neg()
        and not value.is_conj()
    )


def are_plain(values: Sequence[Any]) -> bool:
    """Return whether `is_plain` holds for all of them."""
    return (
        set(map(type, values)) <= _LEAVES
        and all(map(_is_cpu, values))
        and all(map(_Tensor.is_contiguous, values))
        and not any(map(_Tensor.is_neg, values))
        and not any(map(_Tensor.is_conj, values))
    )


def addresses(values: Sequence[Any]) -> array[int]:
    """Return where the bytes of tensors on the CPU begin; 0 for empty ones."""
    return array("Q", map(_Tensor.data_ptr, values))
