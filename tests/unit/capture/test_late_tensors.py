"""What may be copied after the tick, and what has to be copied in it."""

from __future__ import annotations

import mmap

import pytest
import torch
from live_snapshot import files_of
from safetensors.torch import load as safetensors_load
from torch import nn

from pyengine.capture.build import build_component
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.inplace import same_bits
from pyengine.capture.late import can_be_held, choose_late
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout
from pyengine.errors import ChangedWhileStagedError

SIDE = 128
"""A square of float32 of this side is the smallest tensor that may wait."""


def trained(*parameters, kind=torch.optim.Adam, **options):
    optimizer = kind(parameters, lr=0.1, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def square():
    return nn.Parameter(torch.randn(SIDE, SIDE))


def choice_of(**objects):
    return choose_late([build_component(name, value) for name, value in objects.items()])


def test_parameters_and_their_state_may_wait_and_nothing_else():
    net = nn.Sequential(nn.Linear(SIDE, SIDE), nn.BatchNorm1d(20_000))
    target = nn.Linear(SIDE, SIDE)
    optimizer = trained(net[0].weight, net[0].bias)
    choice = choice_of(net=net, target=target, opt=optimizer, x=torch.zeros(SIDE, SIDE))
    state = optimizer.state[net[0].weight]
    expected = [net[0].weight, state["exp_avg"], state["exp_avg_sq"]]
    assert set(choice.tensors) == set(map(id, expected))
    assert choice.optimizers == [optimizer]
    assert choice.refused == {}


def test_without_optimizers_nothing_waits():
    choice = choice_of(net=nn.Linear(SIDE, SIDE))
    assert (choice.tensors, choice.optimizers) == ({}, [])


def exported():
    parameter = square()
    parameter.detach().numpy()
    return parameter


def shared():
    parameter = square()
    parameter.share_memory_()
    return parameter


REFUSED = {
    "array of NumPy": exported,
    "other processes": shared,
    "parts of larger": lambda: nn.Parameter(torch.randn(2 * SIDE, SIDE)[:SIDE]),
    "not in order": lambda: nn.Parameter(torch.randn(SIDE, SIDE).t()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_tensor_that_may_change_unseen_is_copied_at_once(why):
    parameter = REFUSED[why]()
    choice = choice_of(opt=trained(parameter, kind=torch.optim.SGD))
    assert choice.tensors == {}
    ((reason, size),) = choice.refused.items()
    assert why in reason
    assert size == 4 * SIDE * SIDE


class Bare(torch.optim.Optimizer):
    """An optimizer around another one, which never calls its base's constructor."""

    def __init__(self, inner):
        self.inner = inner
        self.state, self.param_groups = inner.state, inner.param_groups

    def step(self, closure=None):
        self.inner.step(closure)


def test_an_optimizer_without_hooks_is_not_waited_with():
    optimizer = Bare(trained(square()))
    assert not can_be_held(optimizer)
    assert can_be_held(optimizer.inner)
    choice = choice_of(opt=optimizer)
    assert choice.tensors == {}
    assert list(choice.refused) == ["their optimizer's step calls no hooks"]


class Staged:
    """One snapshot of objects whose late tensors are copied by `finish`."""

    def __init__(self, **objects):
        components = [build_component(name, value) for name, value in objects.items()]
        self.plan = StagingLayout().plan([component.capture() for component in components], {})
        self.memory = mmap.mmap(-1, self.plan.required_bytes)
        self.slot = StagingSlot(self.memory, CpuCopier())
        self.late = self.slot.fill(self.plan, choose_late(components).tensors)

    def finish(self):
        if self.late is not None:
            self.late.work()
            assert self.late.wait()
        files = files_of(self.plan, self.memory)
        self.slot.close()
        return files

    def tensors(self, path):
        return safetensors_load(bytes(self.finish()[path]))


def test_a_late_tensor_is_read_late_and_all_others_at_once():
    net = nn.Linear(SIDE, SIDE)
    staged = Staged(net=net, opt=trained(*net.parameters()))
    bias = net.bias.detach().clone()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    found = staged.tensors("model/net.safetensors")
    assert not found["weight"].any()
    assert same_bits(found["bias"], bias)
    assert staged.late.find_changed().name == "weight"


def test_a_buffer_in_the_memory_of_a_parameter_is_of_the_same_instant():
    net = nn.Linear(SIDE, SIDE)
    net.register_buffer("row", net.weight.data[3])
    staged = Staged(net=net, opt=trained(net.weight, kind=torch.optim.SGD))
    assert staged.late is None
    weight = net.weight.detach().clone()
    net.row.zero_()  # no version of the parameter tells of it
    found = staged.tensors("model/net.safetensors")
    assert same_bits(found["weight"], weight)
    assert same_bits(found["row"], weight[3])


def test_a_strided_view_of_a_parameter_is_of_the_same_instant():
    net = nn.Linear(SIDE, SIDE)
    column = net.weight.data[:, 5]
    staged = Staged(net=net, column=column, opt=trained(net.weight, kind=torch.optim.SGD))
    assert staged.late is None
    expected = net.weight.detach().clone()
    net.weight.data.zero_()
    assert same_bits(staged.tensors("model/net.safetensors")["weight"], expected)


def test_memory_that_a_parameter_lets_go_of_is_still_there():
    net = nn.Linear(SIDE, SIDE)
    staged = Staged(net=net, opt=trained(net.weight, kind=torch.optim.SGD))
    weight = net.weight.detach().clone()
    net.weight.data = torch.zeros(SIDE, SIDE)
    net.double()
    assert same_bits(staged.tensors("model/net.safetensors")["weight"], weight)
    assert staged.late.find_changed() is None


def test_a_watched_copy_notices_what_changed_meanwhile(monkeypatch):
    live = {"t": torch.zeros(10, 100).t()}
    component = build_component("c", live)
    plan = StagingLayout().plan([component.capture()], {})
    memory = mmap.mmap(-1, plan.required_bytes)
    with StagingSlot(memory, CpuCopier(), is_watched=True) as slot:
        slot.fill(plan)
        copy = CpuCopier.copy

        def change_and_copy(copier, targets, sources):
            copy(copier, targets, sources)
            live["t"].data.add_(1)

        monkeypatch.setattr(CpuCopier, "copy", change_and_copy)
        with pytest.raises(ChangedWhileStagedError, match="at rest") as caught:
            slot.fill(plan)
    assert caught.value.component == "c"
    assert caught.value.tensor == "t"
