"""The models that are saved: one of about 1 MB beside a replay, one of 403 MB with Adam, and others
of any size.
"""

from __future__ import annotations

from math import ceil, sqrt

import torch

SMALL_WIDTH = 480
LARGE_WIDTH = 2048
LARGE_LAYERS = 8
PARAMETER_BYTES = 3 * 4
"""A parameter and Adam's two moments."""
LAYER_BYTES = PARAMETER_BYTES * (LARGE_WIDTH * LARGE_WIDTH + LARGE_WIDTH)
"""Of a layer of the large model."""


def small_model() -> torch.nn.Module:
    """Return a network with 1 MB of parameters."""
    return torch.nn.Sequential(
        torch.nn.Linear(17, SMALL_WIDTH),
        torch.nn.Linear(SMALL_WIDTH, SMALL_WIDTH),
        torch.nn.Linear(SMALL_WIDTH, 6),
    )


def large_model(
    layers: int = LARGE_LAYERS, width: int = LARGE_WIDTH
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a network with Adam after one step: 50 MB a layer of the usual width."""
    parts = (torch.nn.Linear(width, width) for _ in range(layers))
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def model_of(state_bytes: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return such a network whose parameters and moments take `state_bytes`, within a per cent."""
    layers = ceil(state_bytes / (PARAMETER_BYTES * LARGE_WIDTH**2))
    return large_model(layers, round(sqrt(state_bytes / (PARAMETER_BYTES * layers))))


def state_tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Return every tensor of model and optimizer by a name, sharing their memory."""
    tensors = {f"model.{name}": value.detach() for name, value in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def change(model: torch.nn.Module) -> None:
    """Change every parameter a little, as a step of training does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-6)
