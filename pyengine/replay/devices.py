"""Where the tensors of a batch are to lie: checked before a row is drawn."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from pyengine.errors import ConfigError


def check_device(device: Any) -> Any:
    """Return what `device=` names as a torch device; None stays None: NumPy arrays.

    Takes what torch takes ("cpu", "cuda:1", a torch.device, an index). Raises ConfigError for what
    is no device, is not there, or holds no values ("meta"), and where torch is not installed.
    """
    if device is None:
        return None
    try:
        return _found(device)
    except TypeError:  # what cannot be hashed is no device either
        _refuse(device, "it names none")


@functools.lru_cache(maxsize=64)
def _found(device: Any) -> Any:
    try:
        import torch
    except ImportError:
        _refuse(device, "torch, whose tensors were asked for, is not installed")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        _refuse(device, "it names none")
    if found.type == "meta":
        _refuse(device, "its tensors hold no values")
    try:
        torch.empty(0, device=found)
    except Exception as error:  # each backend has its own
        _refuse(device, str(error).partition("\n")[0][:200])
    return found


def _refuse(device: Any, why: str) -> NoReturn:
    wanted = "a torch device that is there, as 'cpu' or 'cuda:0', or None for NumPy arrays"
    raise ConfigError(
        f"device: expected {wanted}, got {device!r:.100}: {why}",
        field="device",
        expected=wanted,
        got=device,
    ) from None
