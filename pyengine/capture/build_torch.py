"""From an object of torch to its component."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pyengine.capture.component import Component
from pyengine.capture.kinds.custom_optimizer import CustomOptimizerComponent
from pyengine.capture.kinds.module import ModuleComponent
from pyengine.capture.kinds.optimizer import OptimizerComponent, is_standard
from pyengine.capture.kinds.stateful import ScalerComponent, SchedulerComponent
from pyengine.capture.kinds.trees import TensorComponent


def build_torch_component(name: str, value: Any) -> Component | None:
    """Return the component for `value`, None where it is not one of torch's."""
    if isinstance(value, nn.Module):
        return ModuleComponent(name, value)
    if isinstance(value, Optimizer):
        kind = OptimizerComponent if is_standard(value) else CustomOptimizerComponent
        return kind(name, value)
    if isinstance(value, (LRScheduler, ReduceLROnPlateau)):
        return SchedulerComponent(name, value)
    if isinstance(value, torch.amp.GradScaler):
        return ScalerComponent(name, value)
    return TensorComponent(name, value) if isinstance(value, torch.Tensor) else None
