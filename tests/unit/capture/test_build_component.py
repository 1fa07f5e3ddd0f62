"""What can be tracked, under which kind, and what the refusal of everything else says."""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from torch import nn

from pyengine.capture.build import build_component
from pyengine.capture.component import Phase
from pyengine.capture.environment import EnvironmentState
from pyengine.capture.kinds.rng import ProcessRngComponent
from pyengine.errors import UntrackableError


@dataclasses.dataclass
class Mutable:
    x: int = 1


@dataclasses.dataclass(frozen=True)
class Immutable:
    x: int = 1


class HalfAState:
    def get_state(self):
        return {}


class Environment:
    def reset(self): ...

    def step(self, action): ...


NET = nn.Linear(1, 1)
OPTIMIZER = torch.optim.SGD(NET.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("value", "kind", "phase"),
    [
        (NET, "module", Phase.MODULE),
        (torch.zeros(1), "tensor", Phase.MODULE),
        (nn.Parameter(torch.zeros(1)), "tensor", Phase.MODULE),
        (np.zeros(1), "tensor", Phase.MODULE),
        (OPTIMIZER, "optimizer", Phase.OPTIMIZER),
        (torch.optim.lr_scheduler.StepLR(OPTIMIZER, 1), "scheduler", Phase.SCHEDULER),
        (torch.optim.lr_scheduler.ReduceLROnPlateau(OPTIMIZER), "scheduler", Phase.SCHEDULER),
        (torch.amp.GradScaler("cpu"), "scaler", Phase.SCHEDULER),
        ({}, "counters", Phase.STATE),
        (OrderedDict(), "counters", Phase.STATE),
        ([], "counters", Phase.STATE),
        (deque(), "counters", Phase.STATE),
        (set(), "counters", Phase.STATE),
        (Mutable(), "counters", Phase.STATE),
        (EnvironmentState(get=dict, set=dict), "environment", Phase.STATE),
        (np.random.default_rng(), "rng", Phase.RNG),
        (np.random.PCG64(), "rng", Phase.RNG),
        (np.random.RandomState(), "rng", Phase.RNG),
        (random.Random(), "rng", Phase.RNG),
        (torch.Generator(), "rng", Phase.RNG),
    ],
    ids=lambda value: type(value).__name__,
)
def test_object_has_its_kind_and_phase(value, kind, phase):
    component = build_component("x", value)
    assert (component.name, component.kind, component.phase) == ("x", kind, phase)


def test_generators_of_the_process_come_last():
    assert ProcessRngComponent().phase is max(Phase)
    assert list(Phase) == sorted(Phase)
    assert Phase.SCHEDULER < Phase.RING < Phase.STATE < Phase.RNG


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (3, "counters = {'x': ...}"),
        (0.5, "counters = {'x': ...}"),
        ("text", "counters = {'x': ...}"),
        (None, "counters = {'x': ...}"),
        (True, "counters = {'x': ...}"),
        ((1, 2), "engine.track(x=list(x))"),
        (lambda: 0, "keep what it computes from in a dict"),
        (np.broadcast_to(np.zeros(1), (3,)), "read-only"),
        (Immutable(), "frozen"),
        (Environment(), "pyengine.EnvironmentState(get="),
        (random.SystemRandom(), "random.Random(seed)"),
        (nn.Linear, "an instance"),
        (HalfAState(), "get_state() and set_state(state)"),
        (object(), "get_state() and set_state(state)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusal_shows_the_right_form(value, form):
    with pytest.raises(UntrackableError, match="'x'") as caught:
        build_component("x", value)
    assert form in str(caught.value)
    assert caught.value.component == "x"
    assert isinstance(caught.value, TypeError)
