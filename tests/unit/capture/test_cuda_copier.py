"""The CUDA copier: what of it needs no GPU, and, where there is one, all of it."""

from __future__ import annotations

import mmap

import pytest
import torch
from live_snapshot import files_of
from safetensors.torch import load as safetensors_load
from torch import nn

from pyengine.capture.build import build_component
from pyengine.capture.copiers import cuda
from pyengine.capture.copiers.cuda import GATHER_BYTES, CudaCopier, gathered
from pyengine.capture.inplace import same_bits
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout


def targets_in(memory, sources, gap_after=()):
    """Return places for the sources, one behind the other, with holes after some."""
    base = torch.frombuffer(memory, dtype=torch.uint8)
    targets, end = [], 0
    for index, source in enumerate(sources):
        size = source.numel() * source.element_size()
        targets.append(base[end : end + size].view(source.dtype).view(source.shape))
        end += size + (64 if index in gap_after else 0)
    return targets


def test_small_neighbours_become_one_transfer_and_land_right():
    sources = [torch.randn(3, 5) for _ in range(10)] + [torch.randn(5, 3).t(), torch.tensor(2.0)]
    memory = bytearray(1 << 16)
    targets = targets_in(memory, sources)
    kept = []
    transfers = list(gathered(list(zip(targets, sources, strict=True)), kept))
    assert len(transfers) == 1
    for target, source in transfers:
        target.copy_(source)
    assert all(same_bits(a, b) for a, b in zip(targets, sources, strict=True))
    assert len(kept) == 1


def test_holes_dtypes_and_large_tensors_split_transfers():
    large = torch.randn(GATHER_BYTES // 4)
    sources = [
        torch.ones(4),
        torch.ones(4),
        torch.ones(4),
        large,
        torch.ones(2),
        torch.ones(2).int(),
    ]
    memory = bytearray(1 << 18)
    targets = targets_in(memory, sources, gap_after=(1,))
    transfers = list(gathered(list(zip(targets, sources, strict=True)), []))
    assert [target.numel() for target, _ in transfers] == [8, 4, large.numel(), 2, 2]
    for target, source in transfers:
        target.copy_(source)
    assert all(same_bits(a, b) for a, b in zip(targets, sources, strict=True))


def test_cpu_tensors_go_through_it_unchanged_and_pinning_degrades_once(caplog):
    if torch.cuda.is_available():
        pytest.skip("this machine can pin")
    net = nn.Linear(4, 4)
    component = build_component("net", net)
    layout, copier = StagingLayout(), CudaCopier()
    plan = layout.plan([component.capture()], {})
    with caplog.at_level("WARNING", logger="pyengine"):
        for _ in range(2):
            memory = mmap.mmap(-1, plan.required_bytes)
            with StagingSlot(memory, copier) as slot:
                slot.fill(plan)
                stored = safetensors_load(bytes(files_of(plan, memory)["model/net.safetensors"]))
                assert same_bits(stored["weight"], net.weight)
    assert [record.message for record in caplog.records if "pinned" in record.message] != []
    assert sum("pinned" in record.message for record in caplog.records) == 1


class Runtime:
    """The driver's side of pinning: ranges that are registered, and the call that fails."""

    def __init__(self, fail_at=None):
        self.registered = {}
        self._left = fail_at

    def cudaHostRegister(self, address, size, flags):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                return 35
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address):
        return 0 if self.registered.pop(address, None) else 713


@pytest.fixture
def runtime(monkeypatch):
    def use(**settings):
        made = Runtime(**settings)
        monkeypatch.setattr(cuda, "_runtime", lambda: made)
        monkeypatch.setattr(cuda, "REGISTER_LIMIT_BYTES", 4096)
        monkeypatch.setattr(cuda, "_clear_error", lambda: None)
        return made

    return use


def test_slot_is_registered_whole_in_chunks_and_released_whole(runtime):
    driver, copier = runtime(), CudaCopier()
    memory = mmap.mmap(-1, 10_000)
    copier.attach(memory)
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    assert driver.registered == {start: 4096, start + 4096: 4096, start + 8192: 1808}
    copier.release(memory)
    copier.release(memory)
    assert driver.registered == {}


def test_failed_registration_leaves_nothing_registered(runtime, caplog):
    driver, copier = runtime(fail_at=2), CudaCopier()
    memory = mmap.mmap(-1, 10_000)
    with caplog.at_level("WARNING", logger="pyengine"):
        copier.attach(memory)
    assert driver.registered == {}
    assert "returned 35" in caplog.text
    copier.release(memory)


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda", 0)


@pytest.mark.gpu
def test_gpu_state_comes_back_bit_for_bit(device, snapshot):
    torch.manual_seed(1)
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(20)]).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(2, 16, device=device)).sum().backward()
    optimizer.step()
    taken = snapshot(net=net, opt=optimizer)
    expected = [p.detach().clone() for p in net.parameters()]
    net(torch.randn(2, 16, device=device)).sum().backward()
    optimizer.step()
    other = nn.Sequential(*[nn.Linear(16, 16) for _ in range(20)]).to(device)
    other_optimizer = torch.optim.AdamW(other.parameters())
    taken.restore({"net": other, "opt": other_optimizer})
    for parameter, value in zip(other.parameters(), expected, strict=True):
        assert parameter.device == device
        assert same_bits(parameter, value)
        state = other_optimizer.state[parameter]
        assert state["exp_avg"].device == device
        assert state["step"].device.type == "cpu"


@pytest.mark.gpu
def test_copy_waits_for_the_work_before_the_cut_and_not_for_what_comes_after(device):
    value = torch.zeros(1 << 24, device=device)
    component = build_component("x", value)
    layout = StagingLayout()
    plan = layout.plan([component.capture()], {})
    memory = mmap.mmap(-1, plan.required_bytes)
    with StagingSlot(memory, CudaCopier()) as slot:
        for round_ in range(5):
            for _ in range(50):
                value.add_(1)
            plan = layout.plan([component.capture()], {})
            slot.fill(plan)
            value.add_(1)
            stored = safetensors_load(bytes(files_of(plan, memory)["state/x.safetensors"]))
            wanted = 51 * round_ + 50
            assert stored["value"].min() == stored["value"].max() == wanted


@pytest.mark.gpu
def test_slot_memory_is_pinned_while_attached(device):
    memory = mmap.mmap(-1, 1 << 20)
    copier = CudaCopier()
    copier.attach(memory)
    assert torch.frombuffer(memory, dtype=torch.uint8).is_pinned()
    copier.release(memory)
    assert not torch.frombuffer(memory, dtype=torch.uint8).is_pinned()


@pytest.mark.gpu
def test_generators_of_all_devices_come_back(device, snapshot):
    from pyengine.capture.kinds.rng import ProcessRngComponent

    torch.rand(1, device=device)
    taken = snapshot(process=ProcessRngComponent("process"))
    expected = torch.rand(3, device=device)
    taken.restore({"process": ProcessRngComponent("process")})
    assert torch.equal(torch.rand(3, device=device), expected)
