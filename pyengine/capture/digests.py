"""Hashes of values and of what was copied of them, for the search for changes while staging."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pyengine._native.hashing import xxh3_64
from pyengine.capture.lazy_torch import is_tensor
from pyengine.capture.tensorfile import Value


def digest(value: Value) -> int:
    """Return XXH3-64 of the value's bytes, in the order of its elements, on any device.

    Nothing is exported to NumPy by it: torch keeps in mind for ever that a tensor was.
    """
    if is_tensor(value):
        whole = value.detach().to("cpu").contiguous().resolve_conj().resolve_neg()
        return digest_at(whole.data_ptr(), whole.numel() * whole.element_size())
    flat: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return xxh3_64(flat)


def digest_at(address: int, size_bytes: int) -> int:
    """Return XXH3-64 of memory that the caller keeps mapped."""
    if not size_bytes:
        return xxh3_64(b"")
    memory: Any = (ctypes.c_uint8 * size_bytes).from_address(address)
    return xxh3_64(memory)
