"""Hashes of what runs end with, bit for bit."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def hashed(value: Any, plain: Callable[[Any], Any] = lambda value: value) -> str:
    """Return a hash of arrays, tensors, generators, numbers and containers of them.

    `plain` turns a library's object, wherever it lies, into such values. What is none of them is
    an AssertionError: an object's repr would be equal for unequal ones, or the other way round.
    """
    found = hashlib.sha256()
    _feed(found, value, plain)
    return found.hexdigest()


def _feed(found: Any, value: Any, plain: Callable[[Any], Any]) -> None:
    value = plain(value)
    if isinstance(value, np.random.Generator):
        value = value.bit_generator.state
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        found.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            found.update(repr(key).encode())
            _feed(found, value[key], plain)
    elif isinstance(value, (list, tuple, deque, np.ndarray)):
        found.update(f"{len(value)}".encode())
        for item in value:
            _feed(found, item, plain)
    else:
        assert value is None or isinstance(value, (bool, int, float, str, np.generic)), type(value)
        found.update(f"{type(value).__name__} {value!r}".encode())
