"""Values written into live tensors and arrays, whatever their strides.

A live tensor may be a strided view, or one whose elements share memory (expanded, sliding windows);
the latter cannot be assigned, so its memory is written element by element.
"""

from __future__ import annotations

import torch

from pyengine.capture.leaves import TensorLeaf


def write_tensor(live: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy `saved` (same shape and dtype) into `live`, bit for bit."""
    with torch.inference_mode() if live.is_inference() else torch.no_grad():
        if has_overlap(live):
            span, index = _span(live)
            span[index.reshape(-1)] = saved.to(live.device).reshape(-1)
        else:
            live.detach().copy_(saved)


def is_consistent(live: torch.Tensor, saved: torch.Tensor) -> bool:
    """Return whether elements that share memory in `live` hold the same value in `saved`."""
    if not has_overlap(live):
        return True
    span, index = _span(live)
    trial = torch.zeros(span.shape, dtype=saved.dtype, device="cpu")
    flat = index.reshape(-1).cpu()
    trial[flat] = saved.reshape(-1)
    return same_bits(trial[flat].reshape(saved.shape), saved)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and bytes (nan equals itself)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = (x.detach().cpu().resolve_conj().resolve_neg().contiguous() for x in (one, other))
    if not one.numel():
        return True
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def has_overlap(live: torch.Tensor) -> bool:
    """Return whether elements of `live` may share memory."""
    reach = 1
    for stride, size in sorted(zip(live.stride(), live.shape, strict=True)):
        if size <= 1:
            continue
        if stride < reach:
            return live.numel() > 0
        reach = stride * (size - 1) + reach
    return False


def told_of_move(leaf: TensorLeaf) -> str | None:
    """Return what to say where a new tensor cannot lie on the device that it was saved on."""
    here = placement(leaf.device)
    there = torch.device(leaf.device)
    is_like = here.type == there.type and (there.index or 0) == (here.index or 0)
    return None if is_like else f"saved on {there}, which is not here: it goes to {here}"


def new_tensor(leaf: TensorLeaf) -> torch.Tensor:
    """Make a tensor for a leaf: on its device where that exists here, with its order of axes."""
    made = allocate(leaf, placement(leaf.device))
    made.copy_(leaf.value)
    if leaf.parameter:
        return torch.nn.Parameter(made, requires_grad=leaf.requires_grad)
    return made.requires_grad_(leaf.requires_grad)


def allocate(leaf: TensorLeaf, device: torch.device) -> torch.Tensor:
    """Allocate memory like the leaf's on `device`."""
    value = leaf.value
    if leaf.stride is None or len(leaf.stride) != value.ndim:
        return torch.empty(value.shape, dtype=value.dtype, device=device)
    return torch.empty_strided(value.shape, leaf.stride, dtype=value.dtype, device=device)


def placement(device: str) -> torch.device:
    """Return the device a tensor saved on `device` goes to here: the CPU where it has no like."""
    wanted = torch.device(device)
    if wanted.type == "cuda" and torch.cuda.is_available():
        index = wanted.index or 0
        return torch.device("cuda", index if index < torch.cuda.device_count() else 0)
    return torch.device("cpu")


def _span(live: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the memory under `live` as one axis, and each element's place in it."""
    index = torch.zeros((), dtype=torch.int64, device=live.device)
    for axis, (size, stride) in enumerate(zip(live.shape, live.stride(), strict=True)):
        shape = [1] * live.ndim
        shape[axis] = size
        index = index + (torch.arange(size, device=live.device) * stride).reshape(shape)
    span = live.detach().as_strided((int(index.max()) + 1,), (1,), live.storage_offset())
    return span, index.expand(live.shape)
