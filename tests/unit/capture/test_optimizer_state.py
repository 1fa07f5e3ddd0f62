"""Optimizers come back bit for bit: what trains on from a restore is what would have trained on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyengine.capture.build import build_component
from pyengine.capture.coverage import check_coverage, nonfinite_parameters
from pyengine.capture.inplace import same_bits
from pyengine.errors import CaptureError, StateMismatchError, UncoveredParameterError

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=4),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


def make(kind, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return net, OPTIMIZERS[kind](net.parameters())


def train(net, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(6, 4, generator=generator)

        def loss(x=x):
            optimizer.zero_grad()
            value = net(x).square().mean()
            value.backward()
            return value

        optimizer.step(loss)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(snapshot, kind):
    net, optimizer = make(kind, 1)
    train(net, optimizer, 3, seed=1)
    taken = snapshot(net=net, opt=optimizer)
    train(net, optimizer, 3, seed=2)

    other, other_optimizer = make(kind, 99)
    train(other, other_optimizer, 1, seed=5)
    taken.restore({"net": other, "opt": other_optimizer})
    train(other, other_optimizer, 3, seed=2)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert same_bits(one, two)

    fresh, fresh_optimizer = make(kind, 98)
    taken.restore({"net": fresh, "opt": fresh_optimizer})
    train(fresh, fresh_optimizer, 3, seed=2)
    for one, two in zip(net.parameters(), fresh.parameters(), strict=True):
        assert same_bits(one, two)


def test_moments_keep_a_dtype_that_is_not_their_parameters(snapshot):
    net = nn.Linear(4, 4).bfloat16()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 4).bfloat16()).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        state["exp_avg"] = torch.randn(state["exp_avg"].shape, dtype=torch.float32)
    expected = optimizer.state[net.weight]["exp_avg"].clone()
    taken = snapshot(net=net, opt=optimizer)
    fresh = nn.Linear(4, 4).bfloat16()
    fresh_optimizer = torch.optim.Adam(fresh.parameters())
    taken.restore({"net": fresh, "opt": fresh_optimizer})
    assert same_bits(fresh_optimizer.state[fresh.weight]["exp_avg"], expected)
    taken.restore({"net": net, "opt": optimizer})
    assert same_bits(optimizer.state[net.weight]["exp_avg"], expected)


def test_live_tensors_and_dicts_are_refilled(snapshot):
    net, optimizer = make("adam", 1)
    train(net, optimizer, 1, seed=1)
    group, state = optimizer.param_groups[0], optimizer.state[net[0].weight]
    moment, step = state["exp_avg"], state["step"]
    taken = snapshot(net=net, opt=optimizer)
    train(net, optimizer, 2, seed=2)
    group["lr"] = 7.0
    notes = taken.restore({"net": net, "opt": optimizer})
    assert optimizer.param_groups[0] is group
    assert group["lr"] == 0.001
    assert optimizer.state[net[0].weight] is state
    assert state["exp_avg"] is moment
    assert state["step"] is step
    assert step.item() == 1.0
    assert notes == ["opt/groups/0: lr is 0.001 as saved, not 7.0"]


def test_state_that_the_snapshot_lacks_is_gone(snapshot):
    net, optimizer = make("adam", 1)
    taken = snapshot(net=net, opt=optimizer)
    train(net, optimizer, 1, seed=1)
    taken.restore({"net": net, "opt": optimizer})
    assert not optimizer.state


def test_strided_parameters_get_moments_in_their_order(snapshot):
    def build():
        net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return net, torch.optim.Adam(net.parameters())

    net, optimizer = build()
    net(torch.ones(1, 3, 4, 4)).sum().backward()
    optimizer.step()
    other, other_optimizer = build()
    snapshot(net=net, opt=optimizer).restore({"net": other, "opt": other_optimizer})
    moment = other_optimizer.state[other.weight]["exp_avg"]
    assert moment.stride() == other.weight.stride()
    assert same_bits(moment, optimizer.state[net.weight]["exp_avg"])


def test_shared_state_stays_shared(snapshot):
    net, optimizer = make("adam", 1)
    train(net, optimizer, 1, seed=1)
    step = torch.tensor(4.0)
    for state in optimizer.state.values():
        state["step"] = step
    other, other_optimizer = make("adam", 2)
    snapshot(net=net, opt=optimizer).restore({"net": other, "opt": other_optimizer})
    assert len({id(state["step"]) for state in other_optimizer.state.values()}) == 1


def test_groups_options_come_back(snapshot):
    def build(lr):
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        groups = [{"params": part.parameters(), "lr": lr * (i + 1)} for i, part in enumerate(net)]
        return net, torch.optim.AdamW(groups, betas=(0.5, 0.6))

    net, optimizer = build(0.1)
    optimizer.param_groups[1]["note"] = {"warm": [1, 2]}
    other, other_optimizer = build(0.3)
    snapshot(net=net, opt=optimizer).restore({"net": other, "opt": other_optimizer})
    assert [group["lr"] for group in other_optimizer.param_groups] == [0.1, 0.2]
    assert other_optimizer.param_groups[1]["note"] == {"warm": [1, 2]}
    assert other_optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    assert other_optimizer.param_groups[0]["params"][0] is other[0].weight


def test_loaded_state_goes_into_load_state_dict(snapshot):
    net, optimizer = make("adam", 1)
    train(net, optimizer, 2, seed=1)
    other, other_optimizer = make("adam", 2)
    other.load_state_dict(net.state_dict())
    other_optimizer.load_state_dict(snapshot(net=net, opt=optimizer).load("opt"))
    train(net, optimizer, 2, seed=2)
    train(other, other_optimizer, 2, seed=2)
    assert same_bits(net[0].weight, other[0].weight)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda net: torch.optim.SGD(net.parameters(), lr=0.1), "another optimizer"),
        (lambda net: torch.optim.Adam(net[0].parameters()), "numbers of parameters"),
        (
            lambda net: torch.optim.Adam(list(net.parameters())[::-1]),
            "parameter 0 is another one",
        ),
    ],
)
def test_optimizer_that_does_not_fit_is_refused_unchanged(snapshot, build, text):
    net, optimizer = make("adam", 1)
    train(net, optimizer, 1, seed=1)
    taken = snapshot(opt=optimizer)
    other = build(net)
    with pytest.raises(StateMismatchError, match=text):
        taken.check({"opt": other})
    assert not other.state


def test_check_changes_nothing(snapshot):
    net, optimizer = make("adam", 1)
    train(net, optimizer, 1, seed=1)
    taken = snapshot(net=net, opt=optimizer)
    train(net, optimizer, 1, seed=2)
    before = [p.clone() for p in net.parameters()]
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    taken.check({"net": net, "opt": optimizer})
    assert all(same_bits(a, b) for a, b in zip(net.parameters(), before, strict=True))
    now = [s["exp_avg"] for s in optimizer.state.values()]
    assert all(same_bits(a, b) for a, b in zip(now, moments, strict=True))


class Lookahead(torch.optim.SGD):
    """An optimizer with a state_dict() of its own."""

    slow = 0

    def state_dict(self):
        return {**super().state_dict(), "slow": self.slow}

    def load_state_dict(self, state):
        self.slow = state.pop("slow")
        super().load_state_dict(state)


def test_optimizer_with_its_own_state_dict_uses_it(snapshot):
    def build():
        net = nn.Linear(2, 2).bfloat16()
        return net, Lookahead(net.parameters(), lr=0.1, momentum=0.9)

    net, optimizer = build()
    optimizer.slow = 5
    optimizer.state[net.weight]["momentum_buffer"] = torch.full((2, 2), 1 / 3)
    other, other_optimizer = build()
    snapshot(net=net, opt=optimizer).restore({"net": other, "opt": other_optimizer})
    assert other_optimizer.slow == 5
    buffer = other_optimizer.state[other.weight]["momentum_buffer"]
    assert same_bits(buffer, torch.full((2, 2), 1 / 3))


def test_state_of_unknown_parameters_is_refused(snapshot):
    net, optimizer = make("adam", 1)
    optimizer.state[nn.Parameter(torch.ones(1))]["x"] = torch.ones(1)
    with pytest.raises(CaptureError, match="no parameter"):
        snapshot(net=net, opt=optimizer)


def test_state_that_cannot_be_saved_is_named(snapshot):
    net, optimizer = make("adam", 1)
    optimizer.state[net[0].weight]["hook"] = print
    with pytest.raises(CaptureError, match="'opt' at /values/0/hook"):
        snapshot(net=net, opt=optimizer)


def test_names_follow_an_optimizer_that_changes_between_snapshots():
    net, optimizer = make("adam", 1)
    component = build_component("opt", optimizer)
    assert not component.capture().names
    train(net, optimizer, 1, seed=1)
    assert len(component.capture().names) == 4 * 4
    optimizer.state[net[0].weight]["extra"] = torch.ones(1)
    captured = component.capture()
    assert len(captured.names) == 17
    assert captured.values[captured.names.index("state/0/extra")].item() == 1
    replaced = torch.full((8, 4), 3.0)
    optimizer.state[net[0].weight]["exp_avg"] = replaced
    captured = component.capture()
    assert captured.values[captured.names.index("state/0/exp_avg")] is replaced


def _captured(**objects):
    components = [build_component(name, value) for name, value in objects.items()]
    return components, [component.capture() for component in components]


def test_optimizer_of_an_untracked_module_is_refused():
    net, optimizer = make("adam", 1)
    with pytest.raises(UncoveredParameterError, match=r"'opt' steps 4 parameters.*\[8, 4\]"):
        check_coverage(*_captured(opt=optimizer))
    check_coverage(*_captured(net=net, opt=optimizer))
    with pytest.raises(UncoveredParameterError, match="steps 2"):
        check_coverage(*_captured(first=net[0], opt=optimizer))


def test_tracked_tensors_and_agents_cover_their_parameters():
    class Agent:
        def __init__(self):
            self.net = nn.Linear(2, 2)

        def state_dict(self):
            return {"net": self.net.state_dict()}

        def load_state_dict(self, state):
            self.net.load_state_dict(state["net"])

    agent, alpha = Agent(), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([*agent.net.parameters(), alpha])
    check_coverage(*_captured(agent=agent, alpha=alpha, opt=optimizer))


def test_nan_in_parameters_is_found_and_masks_are_left_alone():
    net = nn.Linear(2, 2)
    net.register_buffer("mask", torch.tensor([float("-inf")]))
    components = [build_component("net", net)]
    assert nonfinite_parameters(components) == ()
    net.weight.data[0, 0] = float("nan")
    assert nonfinite_parameters(components) == ("net.weight",)
