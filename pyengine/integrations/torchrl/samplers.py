"""What samplers and writers of TorchRL's buffers carry from batch to batch.

Each class is known by its exact type: one that is not could draw other batches after a restore
without anybody noticing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchrl.data.replay_buffers import samplers, writers

from pyengine.capture.protocol import state_methods, type_text
from pyengine.errors import ConfigError, StateMismatchError

_WITHOUT_REPLACEMENT = ("_sample_list", "len_storage", "_ran_out", "_remaining_batches")
_BY_PRIORITY = ("_alpha", "_beta", "_eps")

_ATTRIBUTES: dict[type[Any], tuple[str, ...]] = {
    samplers.RandomSampler: (),
    samplers.SliceSampler: (),
    samplers.SamplerWithoutReplacement: _WITHOUT_REPLACEMENT,
    samplers.SliceSamplerWithoutReplacement: _WITHOUT_REPLACEMENT,
    samplers.PrioritizedSampler: _BY_PRIORITY,
    samplers.PrioritizedSliceSampler: _BY_PRIORITY,
}
"""What changes while a sampler of that type is used; its settings come from the script."""

_WRITERS: tuple[type[Any], ...] = (
    writers.RoundRobinWriter,
    writers.TensorDictRoundRobinWriter,
    writers.TensorDictMaxValueWriter,
)


class SamplerState:
    """Gives and takes what a sampler carries; ConfigError for one that is not known.

    Priorities are saved as the trees hold them, one for each element; the inner nodes of the trees
    follow from these, whatever the order in which they are set.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._names = _ATTRIBUTES.get(type(sampler), ())
        self._own = state_methods(sampler) if _has_get_state(sampler) else None
        if type(sampler) not in _ATTRIBUTES and self._own is None:
            known = ", ".join(kind.__name__ for kind in _ATTRIBUTES)
            raise ConfigError(
                f"sampler: {type_text(sampler)} is not known, and what it carries from batch to "
                f"batch would not be saved; known are {known}, and any with get_state() and "
                "set_state(state)",
                field="sampler",
                expected=known,
                got=type_text(sampler),
            )
        if getattr(sampler, "fragmented", False):
            raise ConfigError(
                "sampler: SliceSampler(fragmented=True) keeps an index whose order depends on how "
                "rows came; it cannot be restored, use fragmented=False",
                field="sampler",
                expected="fragmented=False",
                got="fragmented=True",
            )

    def get_state(self) -> dict[str, Any]:
        """Return the state; its arrays are copies."""
        sampler = self._sampler
        if self._own is not None:
            return {"own": self._own.get()}
        state = {name: getattr(sampler, name) for name in self._names}
        if self._names == _BY_PRIORITY:
            highest, place = sampler._max_priority
            state["highest"] = _number(highest)
            state["highest_at"] = None if place is None else np.asarray(place).tolist()
            state["priorities"] = _leaves(sampler)
        return state

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where the state is of another sampler."""
        here = "own" if self._own is not None else sorted(self._names)
        got = "own" if "own" in state else sorted(name for name in state if name in self._names)
        saved = state.get("priorities")
        if here != got or (saved is not None and len(saved) != self._sampler.max_size):
            raise StateMismatchError(
                f"sampler: {type_text(self._sampler)} does not fit the saved one",
                component="replay_buffer",
                expected=here if saved is None else self._sampler.max_size,
                got=got if saved is None else len(saved),
            )

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        sampler = self._sampler
        if self._own is not None:
            self._own.set(state["own"])
            return
        for name in self._names:
            setattr(sampler, name, state[name])
        # Boundaries that were looked up in rows that are no longer there; those that the script
        # gave stay.
        cache = getattr(sampler, "_cache", None)
        if cache is not None:
            for key in [key for key in cache if key != "static-stop-and-length"]:
                del cache[key]
        if self._names == _BY_PRIORITY:
            sampler._init()
            _set_leaves(sampler, state["priorities"])
            highest, place = state["highest"], state["highest_at"]
            sampler._max_priority = (
                None if highest is None else torch.tensor(highest, dtype=sampler.dtype),
                None if place is None else torch.tensor(place),
            )


def check_writer(writer: Any, *, is_mutable: bool) -> None:
    """Raise ConfigError for a writer that does not go with a RingStorage."""
    if type(writer) not in _WRITERS:
        known = ", ".join(kind.__name__ for kind in _WRITERS)
        raise ConfigError(
            f"writer: {type_text(writer)} does not go with a RingStorage; these do: {known}",
            field="writer",
            expected=known,
            got=type_text(writer),
        )
    if type(writer) is writers.TensorDictMaxValueWriter and not is_mutable:
        raise ConfigError(
            "writer: TensorDictMaxValueWriter writes over rows; RingStorage(..., mutable=True) "
            "lets it, all rows are copied at each snapshot then",
            field="writer",
            expected="RingStorage(..., mutable=True)",
            got="a storage whose rows do not change",
        )


def writer_state(writer: Any) -> dict[str, Any]:
    """Return what a writer carries."""
    state = {"cursor": int(writer._cursor), "write_count": int(writer._write_count)}
    if isinstance(writer, writers.TensorDictMaxValueWriter):
        top = [(float(value), int(index)) for value, index in writer._current_top_values]
        return {**state, "top": top}
    stamps = writer._generation if writer.tracks_generations else None
    return {**state, "stamps": None if stamps is None else stamps.clone()}


def set_writer_state(writer: Any, state: dict[str, Any]) -> None:
    """Take it back."""
    writer._cursor = state["cursor"]
    writer._write_count = state["write_count"]
    if "top" in state:
        # A heap as it was: equal values must leave in the same order.
        writer._current_top_values = [(value, index) for value, index in state["top"]]
    elif state["stamps"] is not None:
        writer._generation = state["stamps"].clone()


def _has_get_state(sampler: Any) -> bool:
    return callable(getattr(sampler, "get_state", None)) and callable(
        getattr(sampler, "set_state", None)
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _leaves(sampler: Any) -> torch.Tensor:
    index = torch.arange(sampler.max_size, dtype=torch.long, device=sampler.device)
    return torch.as_tensor(sampler._sum_tree[index]).clone()


def _set_leaves(sampler: Any, values: torch.Tensor) -> None:
    # Elements without a priority are 0 in one tree and infinite in the other: as they are anew.
    index = torch.nonzero(values > 0).reshape(-1)
    if len(index):
        index, chosen = index.to(sampler.device), values[index].to(sampler.device)
        sampler._sum_tree[index] = chosen
        sampler._min_tree[index] = chosen
