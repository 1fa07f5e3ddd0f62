"""TensorDicts as plain values and back: nested dicts of tensors, with batch sizes and devices."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase


def to_plain(data: TensorDictBase) -> dict[str, Any]:
    """Return what `from_plain` takes; the tensors are the live ones."""
    items: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        if isinstance(value, TensorDictBase):
            items[key] = {"tensordict": to_plain(value)}
        else:
            is_plain = isinstance(value, NonTensorData)
            items[key] = {"plain": value.data} if is_plain else {"tensor": value}
    return {
        "batch_size": list(data.batch_size),
        "device": None if data.device is None else str(data.device),
        "items": items,
    }


def from_plain(state: dict[str, Any]) -> TensorDict:
    """Return a TensorDict of what `to_plain` gave; its tensors are those of the state."""
    device = None if state["device"] is None else torch.device(state["device"])
    made = TensorDict({}, batch_size=state["batch_size"], device=device)
    for key, item in state["items"].items():
        if "tensordict" in item:
            made.set(key, from_plain(item["tensordict"]))
        elif "tensor" in item:
            made.set(key, item["tensor"])
        else:
            made.set(key, NonTensorData(item["plain"], batch_size=state["batch_size"]))
    return made
