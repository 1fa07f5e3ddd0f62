"""Schedulers, scalers, environments and objects with their own state methods."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from pyengine.capture.environment import EnvironmentState
from pyengine.errors import CaptureError, ConfigError, DamageError, StateMismatchError


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "constant": lambda o: lr_scheduler.ConstantLR(o, total_iters=3),
    "linear": lambda o: lr_scheduler.LinearLR(o),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "warm": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, step_size_up=3),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=20),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


def advance(kind, optimizer, scheduler, steps):
    rates = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*([1.0] if kind == "plateau" else []))
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedule_goes_on_where_it_was(snapshot, kind):
    one = optimizer()
    scheduler = SCHEDULERS[kind](one)
    advance(kind, one, scheduler, 4)
    taken = snapshot(opt=one, schedule=scheduler)
    expected = advance(kind, one, scheduler, 6)
    other = optimizer()
    other_scheduler = SCHEDULERS[kind](other)
    taken.restore({"opt": other, "schedule": other_scheduler})
    assert advance(kind, other, other_scheduler, 6) == expected


def test_another_scheduler_is_refused(snapshot):
    one = optimizer()
    taken = snapshot(schedule=lr_scheduler.StepLR(one, 2))
    with pytest.raises(StateMismatchError, match="another scheduler"):
        taken.check({"schedule": lr_scheduler.ExponentialLR(one, 0.9)})


def test_scheduler_that_holds_code_is_refused_by_name(snapshot):
    scheduler = lr_scheduler.StepLR(optimizer(), 2)
    scheduler.callback = lambda: 0
    with pytest.raises(CaptureError, match=r"'schedule' at /callback: .*lambda"):
        snapshot(schedule=scheduler)


def test_scaler_comes_back(snapshot):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    scaler.update(2.0)
    other = torch.amp.GradScaler("cpu", init_scale=4.0)
    snapshot(scaler=scaler).restore({"scaler": other})
    assert other.get_scale() == 2.0
    assert other.state_dict() == scaler.state_dict()


def test_disabled_scaler_fits_only_a_disabled_one(snapshot):
    off, on = (torch.amp.GradScaler("cpu", enabled=enabled) for enabled in (False, True))
    snapshot(scaler=off).restore({"scaler": torch.amp.GradScaler("cpu", enabled=False)})
    with pytest.raises(StateMismatchError, match="enabled on one side"):
        snapshot(scaler=off).check({"scaler": on})
    with pytest.raises(StateMismatchError, match="enabled on one side"):
        snapshot(scaler=on).check({"scaler": off})


@dataclasses.dataclass
class Moments:
    mean: np.ndarray
    count: float


class Normaliser:
    """What a user's own running statistics look like."""

    def __init__(self):
        self.moments = Moments(np.zeros(3), 1e-4)
        self.history = []
        self.rng = np.random.default_rng(0)

    def get_state(self):
        return {"moments": self.moments, "history": self.history, "rng": self.rng}

    def set_state(self, state):
        self.moments, self.history = state["moments"], state["history"]
        self.rng.bit_generator.state = state["rng"].bit_generator.state


def test_object_with_state_methods_comes_back(snapshot):
    normaliser = Normaliser()
    normaliser.moments.mean += 2
    normaliser.history.append((1, "x"))
    normaliser.rng.random(5)
    taken = snapshot(norm=normaliser)
    normaliser.moments.mean += 5
    normaliser.history.append((2, "y"))
    expected = normaliser.rng.bit_generator.state
    other = Normaliser()
    other.rng.random(3)
    taken.restore({"norm": other})
    assert isinstance(other.moments, Moments)
    assert other.moments.mean.tolist() == [2, 2, 2]
    assert other.history == [(1, "x")]
    assert other.rng.bit_generator.state == expected
    other.moments.mean += 1
    taken.restore({"norm": normaliser})
    assert normaliser.moments.mean.tolist() == [2, 2, 2]


class WithStateDict:
    def __init__(self):
        self.value = torch.zeros(2)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value.copy_(state["value"])


def test_object_with_state_dict_comes_back(snapshot):
    thing = WithStateDict()
    taken = snapshot(thing=thing)
    thing.value += 1
    taken.restore({"thing": thing})
    assert thing.value.tolist() == [0, 0]


def test_state_of_another_method_is_refused(snapshot):
    with pytest.raises(StateMismatchError, match="another method"):
        snapshot(x=WithStateDict()).check({"x": Normaliser()})


def test_state_of_another_class_is_told(snapshot):
    class Renamed(Normaliser):
        pass

    (note,) = snapshot(x=Normaliser()).restore({"x": Renamed()})
    assert "Normaliser" in note
    assert "Renamed" in note


class Emulator:
    """Deterministic, with bytes for a state, as ALE has."""

    def __init__(self):
        self.ram = bytearray(20_000)
        self.random = np.random.default_rng(1)

    def step(self):
        self.ram[int(self.random.integers(20_000))] ^= 0xFF

    def get(self):
        return {"ram": bytes(self.ram), "rng": self.random, "frame": 7}

    def put(self, state):
        self.ram = bytearray(state["ram"])
        self.random = state["rng"]


def test_environment_goes_on_where_it_was(snapshot):
    one = Emulator()
    one.step()
    taken = snapshot(env=EnvironmentState(get=one.get, set=one.put))
    one.step()
    other = Emulator()
    taken.restore({"env": EnvironmentState(get=other.get, set=other.put)})
    other.step()
    assert other.ram == one.ram
    assert set(taken.files) == {
        "environment/env.msgpack",
        "environment/env.safetensors",
        "meta.json",
    }
    assert taken.load("env")["frame"] == 7


def test_environment_is_not_asked_during_a_restore(snapshot):
    taken = snapshot(env=EnvironmentState(get=lambda: [1], set=print))
    got = []

    def never():
        raise AssertionError

    taken.restore({"env": EnvironmentState(get=never, set=got.append)})
    assert got == [[1]]


def test_a_state_that_does_not_fit_an_environment_is_refused_before_anything_changes(snapshot):
    taken = snapshot(env=EnvironmentState(get=lambda: [1], set=print))
    got = []

    def refuse(state):
        raise ValueError(f"{state} does not fit")

    with pytest.raises(ValueError, match=r"\[1\] does not fit"):
        taken.restore({"env": EnvironmentState(get=list, set=got.append, check=refuse)})
    assert got == []


def test_environment_state_takes_functions():
    with pytest.raises(ConfigError):
        EnvironmentState(get=1, set=print)
    with pytest.raises(ConfigError):
        EnvironmentState(get=dict, set=print, check=1)


def test_missing_file_is_damage(snapshot):
    taken = snapshot(norm=Normaliser())
    del taken.files["state/norm.safetensors"]
    with pytest.raises(DamageError, match="needs tensors"):
        taken.check({"norm": Normaliser()})
    del taken.files["state/norm.msgpack"]
    with pytest.raises(DamageError, match="lacks this file"):
        taken.check({"norm": Normaliser()})


def test_file_of_another_component_is_damage(snapshot):
    taken = snapshot(norm=Normaliser())
    taken.files["state/norm.msgpack"] = b"\xc1\xff"
    with pytest.raises(DamageError, match=r"state/norm\.msgpack"):
        taken.check({"norm": Normaliser()})


@pytest.mark.parametrize("state", [[{"gamma": 1.0}], 3, None, {1: 2}, {"gamma": 1.0}])
def test_a_scheduler_refuses_what_is_no_state_of_its_own_before_anything_changes(snapshot, state):
    one = optimizer()
    scheduler = lr_scheduler.ExponentialLR(one, 0.5)
    taken = snapshot(opt=one, schedule=scheduler)
    before = scheduler.state_dict()
    (component, decoded), = [pair for pair in taken.check({"opt": one, "schedule": scheduler})[0]
                             if pair[0].name == "schedule"]  # fmt: skip
    decoded.value["tree"] = state
    with pytest.raises(StateMismatchError):
        component.check(decoded)
    assert scheduler.state_dict() == before


def test_a_scaler_refuses_what_is_no_state(snapshot):
    scaler = torch.amp.GradScaler("cpu")
    taken = snapshot(scaler=scaler)
    ((component, decoded),) = taken.check({"scaler": scaler})[0]
    decoded.value["tree"] = 5
    with pytest.raises(StateMismatchError):
        component.check(decoded)
