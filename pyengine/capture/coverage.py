"""Whether what the optimizers train is saved at all, and whether it is healthy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyengine.capture.component import Captured, Component, Phase
from pyengine.capture.lazy_torch import is_tensor
from pyengine.errors import UncoveredParameterError

if TYPE_CHECKING:
    import torch


def check_coverage(components: Sequence[Component], captured: Sequence[Captured]) -> None:
    """Raise UncoveredParameterError for optimizers that step what no other component saves.

    `captured` is what the components gave: a parameter is covered if its memory is among it.
    """
    memory = {
        _address(value)
        for one in captured
        if one.kind != "optimizer"
        for value in one.values
        if is_tensor(value)
    }
    for component in components:
        lost = [
            (place, parameter)
            for place, parameter in _stepped(component)
            if _address(parameter) not in memory and parameter.numel()
        ]
        if lost:
            shapes = ", ".join(f"{place} {list(p.shape)}" for place, p in lost[:4])
            raise UncoveredParameterError(
                f"{component.name!r} steps {len(lost)} parameters of no tracked module "
                f"({shapes}{', ...' if len(lost) > 4 else ''}): track the module or tensor they "
                "belong to",
                component=component.name,
            )


def nonfinite_parameters(components: Sequence[Component]) -> tuple[str, ...]:
    """Return the names of trainable parameters that hold nan or infinity."""
    suspects: list[tuple[str, torch.Tensor]] = []
    for component in components:
        for name, value in component.live_tensors():
            if is_tensor(value) and _is_learned(value):
                suspects.append((name, value.detach().isfinite().all()))
    return tuple(name for name, finite in suspects if not bool(finite))


def _is_learned(value: torch.Tensor) -> bool:
    """Leave buffers alone: masks hold infinities on purpose."""
    real = value.is_floating_point() or value.is_complex()
    return real and value.requires_grad and value.numel() > 0


def _stepped(component: Component) -> Iterator[tuple[str, torch.Tensor]]:
    if component.phase is not Phase.OPTIMIZER:
        return
    optimizer: Any = getattr(component, "optimizer", None) or getattr(component, "value", None)
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield f"group {index} parameter {place}", parameter


def _address(value: torch.Tensor) -> tuple[Any, int]:
    return value.device, value.untyped_storage().data_ptr()
