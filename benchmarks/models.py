"""The models that are saved: one of about 1 MB beside a replay, and one of 403 MB with Adam."""

from __future__ import annotations

import torch

SMALL_WIDTH = 480
LARGE_WIDTH = 2048
LARGE_LAYERS = 8


def small_model() -> torch.nn.Module:
    """Return a network with 1 MB of parameters."""
    return torch.nn.Sequential(
        torch.nn.Linear(17, SMALL_WIDTH),
        torch.nn.Linear(SMALL_WIDTH, SMALL_WIDTH),
        torch.nn.Linear(SMALL_WIDTH, 6),
    )


def large_model(layers: int = LARGE_LAYERS) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a network with Adam after one step: 50 MB a layer."""
    parts = (torch.nn.Linear(LARGE_WIDTH, LARGE_WIDTH) for _ in range(layers))
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


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
