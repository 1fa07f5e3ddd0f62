"""Modules come back bit for bit, in place, or not at all."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load as safetensors_load
from torch import nn

from pyengine.capture.inplace import same_bits
from pyengine.errors import CaptureError, StateMismatchError


def scramble(module):
    with torch.no_grad():
        for value in module.state_dict(keep_vars=True).values():
            if isinstance(value, torch.Tensor) and value.numel():
                value.detach().as_strided((1,), (1,), value.storage_offset()).fill_(1)


def state_of(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def assert_state(module, expected):
    state = module.state_dict()
    assert state.keys() == expected.keys()
    for key, value in state.items():
        assert same_bits(value, expected[key]), key


class Odd(nn.Module):
    """Every sort of tensor that a module can hold."""

    def __init__(self):
        super().__init__()
        base = torch.randn(6, 6)
        self.plain = nn.Parameter(torch.randn(3, 4))
        self.narrow = nn.Parameter(torch.randn(5).bfloat16())
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("strided", base[::2, 1::2])
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("step", torch.tensor(7))
        self.register_buffer("expanded", torch.randn(1, 3).expand(4, 3))
        self.register_buffer("windows", torch.arange(6.0).unfold(0, 3, 1))
        self.register_buffer("pairs", torch.randn(2, dtype=torch.complex64))
        self.register_buffer("conjugate", torch.randn(2, dtype=torch.complex128).conj())
        self.register_buffer("small", torch.tensor([1, 65535], dtype=torch.uint16))
        self.register_buffer("wide", torch.tensor([2**63], dtype=torch.uint64))
        self.register_buffer("eighth", torch.randn(3).to(torch.float8_e4m3fn))
        self.register_buffer("rare", torch.randn(3).to(torch.float8_e4m3fnuz))
        self.register_buffer("special", torch.tensor([float("nan"), float("inf"), -0.0]))
        self.register_buffer(
            "images", torch.randn(1, 3, 2, 2).to(memory_format=torch.channels_last)
        )
        self.register_buffer("absent", None)


def test_every_sort_of_tensor_comes_back_bit_for_bit(snapshot):
    module = Odd()
    expected = state_of(module)
    taken = snapshot(net=module)
    scramble(module)
    taken.restore({"net": module})
    assert_state(module, expected)


def test_restore_into_a_new_process_like_instance(snapshot):
    torch.manual_seed(1)
    module = Odd()
    taken = snapshot(net=module)
    torch.manual_seed(2)
    other = Odd()
    taken.restore({"net": other})
    assert_state(other, state_of(module))


def test_restore_keeps_the_live_tensors(snapshot):
    module = nn.Linear(2, 2)
    taken = snapshot(net=module)
    weight, address = module.weight, module.weight.data_ptr()
    taken.restore({"net": module})
    assert module.weight is weight
    assert module.weight.data_ptr() == address
    assert module.weight.requires_grad


def test_snapshot_shares_no_memory_with_the_module(snapshot):
    module = nn.Linear(4, 4)
    expected = state_of(module)
    taken = snapshot(net=module)
    scramble(module)
    for key, value in taken.load("net").items():
        assert same_bits(value, expected[key])


def test_tied_weights_are_stored_once_and_come_back_tied(snapshot):
    def make():
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        module[2].weight = module[0].weight
        return module

    module = make()
    taken = snapshot(net=module)
    stored = safetensors_load(bytes(taken.files["model/net.safetensors"]))
    assert set(stored) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.bias"}
    other = make()
    assert taken.restore({"net": other}) == []
    assert_state(other, state_of(module))
    assert other[2].weight is other[0].weight
    loaded = taken.load("net")
    assert loaded["2.weight"] is loaded["0.weight"]


def test_tie_that_is_gone_is_told(snapshot):
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    notes = snapshot(net=module).restore({"net": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))})
    assert notes == ["1.weight was tied to 0.weight and is not here"]


def test_different_values_for_one_live_tensor_are_refused(snapshot):
    taken = snapshot(net=nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    with pytest.raises(StateMismatchError, match="one tensor here"):
        taken.check({"net": module})


def test_elements_that_share_memory_must_agree(snapshot):
    def holder(value):
        module = nn.Module()
        module.register_buffer("x", value)
        return module

    taken = snapshot(net=holder(torch.randn(4)))
    live = holder(torch.randn(1).expand(4))
    before = state_of(live)
    with pytest.raises(StateMismatchError, match="share memory"):
        taken.check({"net": live})
    assert_state(live, before)


@pytest.mark.parametrize(
    ("live", "text"),
    [
        (lambda: nn.Linear(3, 5), r"weight does not fit.*\[5, 3\] float32.*\[4, 3\] float32"),
        (lambda: nn.Linear(3, 4).double(), "float64"),
        (lambda: nn.Linear(3, 4, bias=False), r"only in the snapshot \['bias'\]"),
        (lambda: nn.Sequential(nn.Linear(3, 4)), "only here"),
        (lambda: nn.LazyLinear(4), "one forward pass"),
    ],
)
def test_module_that_does_not_fit_is_refused_unchanged(snapshot, live, text):
    taken = snapshot(net=nn.Linear(3, 4))
    module = live()
    lazy = isinstance(module, nn.LazyLinear)
    before = None if lazy else state_of(module)
    with pytest.raises(StateMismatchError, match=text) as caught:
        taken.check({"net": module})
    assert caught.value.component == "net"
    if not lazy:
        assert_state(module, before)


def test_lazy_parameters_are_refused_by_name(snapshot):
    with pytest.raises(CaptureError, match=r"'net' at /weight: .*one forward pass"):
        snapshot(net=nn.LazyLinear(3))


def test_subclass_of_parameter_comes_back(snapshot):
    class Scaled(nn.Parameter):
        pass

    module = nn.Linear(2, 2)
    module.weight = Scaled(torch.randn(2, 2))
    expected = state_of(module)
    taken = snapshot(net=module)
    scramble(module)
    taken.restore({"net": module})
    assert type(module.weight) is Scaled
    assert_state(module, expected)


def test_wrappers_are_taken_off(snapshot):
    plain = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    compiled = torch.compile(copy.deepcopy(plain))
    names = set(safetensors_load(bytes(snapshot(net=compiled).files["model/net.safetensors"])))
    assert names == {"0.weight", "0.bias"}
    snapshot(net=compiled).restore({"net": nn.Sequential(nn.Linear(2, 3), nn.ReLU())})
    taken = snapshot(net=plain)
    scramble(compiled)
    taken.restore({"net": compiled})
    assert_state(compiled._orig_mod, state_of(plain))
    wrapped = nn.DataParallel(copy.deepcopy(plain))
    scramble(wrapped)
    taken.restore({"net": wrapped})
    assert_state(wrapped.module, state_of(plain))


def test_compiled_submodule_has_its_plain_name(snapshot):
    module = nn.Sequential(torch.compile(nn.Linear(2, 2)), nn.Linear(2, 1))
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    snapshot(net=module).restore({"net": other})
    assert same_bits(other[0].weight, module[0]._orig_mod.weight)
    snapshot(net=other).restore({"net": module})


def test_ddp_is_taken_off(snapshot, tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        inner = nn.Linear(2, 2)
        wrapped = nn.parallel.DistributedDataParallel(inner)
        taken = snapshot(net=wrapped)
        other = nn.Linear(2, 2)
        taken.restore({"net": other})
        assert_state(other, state_of(inner))
        scramble(inner)
        taken.restore({"net": wrapped})
        assert_state(inner, state_of(other))
    finally:
        torch.distributed.destroy_process_group()


def test_shared_elements_behind_a_load_hook_are_refused(snapshot):
    module = nn.Module()
    module.register_buffer("x", torch.ones(1).expand(3))
    taken = snapshot(net=module)
    module.register_load_state_dict_post_hook(lambda module, keys: None)
    with pytest.raises(StateMismatchError, match="load_state_dict"):
        taken.check({"net": module})


class WithExtra(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.seen = {"count": 0}
        self.table = torch.zeros(2)

    def get_extra_state(self):
        return {"seen": dict(self.seen), "table": self.table}

    def set_extra_state(self, state):
        self.seen = state["seen"]
        self.table = state["table"]


def test_extra_state_goes_through_the_modules_own_methods(snapshot):
    module = nn.Sequential(WithExtra(), nn.BatchNorm1d(2))
    module[0].seen["count"] = 5
    module[0].table += 3
    taken = snapshot(net=module)
    module[0].table += 1
    other = nn.Sequential(WithExtra(), nn.BatchNorm1d(2))
    taken.restore({"net": other})
    assert other[0].seen == {"count": 5}
    assert torch.equal(other[0].table, torch.full((2,), 3.0))
    assert same_bits(other[0].weight, module[0].weight)
    assert taken.load("net")["0._extra_state"]["seen"] == {"count": 5}


def test_load_hooks_that_lose_values_are_told(snapshot):
    module = nn.Linear(2, 2)
    taken = snapshot(net=module)

    def forget(module, keys):
        module.weight.data.zero_()

    module.register_load_state_dict_post_hook(forget)
    with pytest.raises(StateMismatchError, match="left other values in weight"):
        taken.restore({"net": module})


def test_parametrized_module_comes_back(snapshot):
    def make():
        return nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

    module, other = make(), make()
    snapshot(net=module).restore({"net": other})
    assert same_bits(module.weight, other.weight)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.TransformerEncoderLayer, nn.MultiheadAttention])
def test_torch_modules_are_written_in_place(snapshot, kind):
    module, other = (kind(4, 4) for _ in range(2))
    snapshot(net=module).restore({"net": other})
    assert_state(other, state_of(module))


def test_names_follow_a_module_that_changes_between_snapshots(snapshot):
    from pyengine.capture.build import build_component

    module = nn.Sequential(nn.Linear(2, 2))
    component = build_component("net", module)
    assert list(component.capture().names) == ["0.weight", "0.bias"]
    module.append(nn.Linear(2, 1))
    assert list(component.capture().names) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    module[1].weight = nn.Parameter(module[1].weight.detach().clone())
    captured = component.capture()
    assert captured.values[2] is module[1].weight


def test_file_is_an_ordinary_safetensors_file(snapshot):
    module = Odd()
    stored = safetensors_load(bytes(snapshot(net=module).files["model/net.safetensors"]))
    assert same_bits(stored["plain"], module.plain)
    assert same_bits(stored["expanded"], module.expanded)
    assert same_bits(torch.view_as_complex(stored["pairs"]), module.pairs)


def test_loaded_state_goes_into_load_state_dict(snapshot):
    module, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    module(torch.randn(4, 3))
    other.load_state_dict(snapshot(net=module).load("net"))
    assert_state(other, state_of(module))
