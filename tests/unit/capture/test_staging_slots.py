"""Staging: what lies in a slot is what a file needs, and nothing of it follows live objects."""

from __future__ import annotations

import ctypes
import json
import mmap

import numpy as np
import pytest
import torch
from live_snapshot import Snapshot, as_components, files_of
from safetensors.torch import load as safetensors_load
from torch import nn

from pyengine.capture.build import build_component
from pyengine.capture.component import Captured
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.inplace import same_bits
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout
from pyengine.capture.tensorfile import TensorFile
from pyengine.config import PAGE_BYTES
from pyengine.errors import CaptureError, ClosedError
from pyengine.format.descriptor import SlotRange


class Trainer:
    """A learner, its layout and one slot."""

    def __init__(self, size_bytes=1 << 20):
        self.net = nn.Linear(8, 8)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.counters = {"steps": 0, "history": []}
        self.layout = StagingLayout()
        self.memory = mmap.mmap(-1, size_bytes)
        self.slot = StagingSlot(self.memory, CpuCopier())
        self.components = as_components(
            {"net": self.net, "opt": self.optimizer, "counters": self.counters}
        )

    def step(self):
        self.optimizer.zero_grad()
        self.net(torch.randn(4, 8)).square().mean().backward()
        self.optimizer.step()
        self.counters["steps"] += 1
        self.counters["history"].append(self.counters["steps"] * 0.5)

    def plan(self):
        captured = [component.capture() for component in self.components]
        return self.layout.plan(captured, {"global_step": self.counters["steps"]})

    def stage(self):
        plan = self.plan()
        self.slot.fill(plan)
        return plan


@pytest.fixture
def trainer():
    made = Trainer()
    yield made
    made.slot.close()
    made.memory.close()


def test_staged_state_is_wholly_of_its_step(trainer):
    trainer.step()
    weights = trainer.net.weight.detach().clone()
    moments = trainer.optimizer.state[trainer.net.weight]["exp_avg"].clone()
    plan = trainer.stage()
    for _ in range(5):
        trainer.step()
    files = files_of(plan, trainer.memory)
    net = safetensors_load(bytes(files["model/net.safetensors"]))
    optimizer = safetensors_load(bytes(files["optimizer/opt.safetensors"]))
    assert same_bits(net["weight"], weights)
    assert same_bits(optimizer["state/0/exp_avg"], moments)
    assert optimizer["state/0/step"].item() == 1.0
    meta = json.loads(files["meta.json"])
    assert meta["global_step"] == 1
    assert meta["state"]["counters"]["structure"]["tree"] == {"steps": 1, "history": [0.5]}


def test_no_staged_address_is_a_live_one(trainer):
    trainer.step()
    plan = trainer.stage()
    start = ctypes.addressof(ctypes.c_char.from_buffer(trainer.memory))
    end = start + len(trainer.memory)
    for file in plan.tensor_files:
        for value in file.values:
            assert not start <= value.data_ptr() < end


def test_every_file_starts_on_a_page_and_is_one_run_of_the_slot(trainer):
    trainer.step()
    plan = trainer.stage()
    end = 0
    for file in plan.files:
        (piece,) = file.pieces
        assert isinstance(piece, SlotRange)
        assert piece.offset % PAGE_BYTES == 0
        assert piece.offset >= end
        end = piece.offset + piece.length
    assert plan.required_bytes >= end
    assert plan.required_bytes % PAGE_BYTES == 0


def test_payload_starts_on_a_page_of_the_file(trainer):
    trainer.step()
    files = files_of(trainer.stage(), trainer.memory)
    for path in ("model/net.safetensors", "optimizer/opt.safetensors"):
        length = int.from_bytes(files[path][:8], "little")
        assert (8 + length) % PAGE_BYTES == 0


def test_layout_is_kept_while_it_fits(trainer):
    trainer.step()
    first = trainer.plan()
    trainer.step()
    second = trainer.plan()
    layouts = [{file.path: file.layout for file in plan.tensor_files} for plan in (first, second)]
    assert layouts[0] == layouts[1]
    assert all(layouts[0][path] is layouts[1][path] for path in layouts[0])


def test_second_snapshot_into_one_slot_is_whole(trainer):
    trainer.step()
    trainer.stage()
    trainer.step()
    plan = trainer.stage()
    net = safetensors_load(bytes(files_of(plan, trainer.memory)["model/net.safetensors"]))
    assert same_bits(net["weight"], trainer.net.weight)


def test_layout_follows_state_that_appears_and_grows(trainer):
    plan = trainer.stage()
    assert "optimizer/opt.safetensors" not in [file.path for file in plan.files]
    for count in range(1, 200):
        trainer.step()
        if count in (1, 64, 65, 66, 150, 199):
            files = files_of(trainer.stage(), trainer.memory)
    optimizer = safetensors_load(bytes(files["optimizer/opt.safetensors"]))
    assert optimizer["state/0/step"].item() == 199.0
    history = TensorFile(files["state/counters.safetensors"], "h").array("history")
    assert history.tolist() == trainer.counters["history"]


def test_fixed_files_do_not_move_when_counters_grow(trainer):
    trainer.step()
    first = {file.path: file.pieces for file in trainer.plan().files}
    trainer.counters["history"] = [0.0] * 5000
    second = {file.path: file.pieces for file in trainer.plan().files}
    for path in ("model/net.safetensors", "optimizer/opt.safetensors"):
        assert first[path] == second[path]


def test_dtype_that_changes_makes_a_new_layout(trainer):
    trainer.step()
    trainer.stage()
    trainer.net.double()
    files = files_of(trainer.stage(), trainer.memory)
    net = safetensors_load(bytes(files["model/net.safetensors"]))
    assert same_bits(net["weight"], trainer.net.weight)


def test_shape_that_changes_under_one_parameter_is_seen(trainer):
    trainer.stage()
    trainer.net.weight.data = torch.ones(1)
    files = files_of(trainer.stage(), trainer.memory)
    assert safetensors_load(bytes(files["model/net.safetensors"]))["weight"].shape == (1,)


def test_first_snapshot_in_inference_mode_does_not_bind_later_ones(trainer):
    with torch.inference_mode():
        trainer.stage()
    trainer.step()
    files = files_of(trainer.stage(), trainer.memory)
    net = safetensors_load(bytes(files["model/net.safetensors"]))
    assert same_bits(net["weight"], trainer.net.weight)


def test_default_device_of_torch_changes_nothing(trainer):
    trainer.step()
    objects = {"net": trainer.net, "opt": trainer.optimizer, "counters": trainer.counters}
    expected = trainer.net.weight.detach().clone()
    torch.set_default_device("meta")
    try:
        taken = Snapshot({**objects, "x": torch.zeros(0, device="cpu")})
        trainer.net.weight.data.zero_()
        taken.files = {path: bytes(data) for path, data in taken.files.items()}
        taken.restore(objects)
    finally:
        torch.set_default_device(None)
    assert same_bits(trainer.net.weight, expected)


def test_slot_that_is_too_small_is_refused():
    trainer = Trainer(PAGE_BYTES)
    with trainer.slot as slot:
        plan = trainer.plan()
        assert plan.required_bytes > slot.size_bytes
        with pytest.raises(ValueError, match="do not fit"):
            slot.fill(plan)


def test_closed_slot_lets_go_of_its_memory(trainer):
    trainer.stage()
    trainer.slot.close()
    trainer.slot.close()
    trainer.memory.resize(PAGE_BYTES)  # refused by mmap while anything exports the buffer
    with pytest.raises(ClosedError):
        trainer.slot.fill(trainer.plan())


def test_records_name_kind_files_and_bytes(trainer):
    trainer.step()
    plan = trainer.plan()
    sizes = {file.path: file.size_bytes for file in plan.files}
    by_name = {record.name: record for record in plan.components}
    assert by_name["net"].kind == "module"
    assert by_name["net"].files == ("model/net.safetensors",)
    assert by_name["net"].bytes == sizes["model/net.safetensors"]
    assert by_name["opt"].files == ("optimizer/opt.msgpack", "optimizer/opt.safetensors")
    assert by_name["counters"].files == ("meta.json",)


def test_same_state_gives_the_same_bytes(trainer):
    trainer.step()
    objects = {"net": trainer.net, "opt": trainer.optimizer, "counters": trainer.counters}
    assert Snapshot(objects).files == Snapshot(objects).files


def test_restore_then_snapshot_gives_the_same_bytes(trainer):
    for _ in range(70):
        trainer.step()
    objects = {"net": trainer.net, "opt": trainer.optimizer, "counters": trainer.counters}
    taken = Snapshot(objects)
    other = Trainer()
    restored = {"net": other.net, "opt": other.optimizer, "counters": other.counters}
    taken.restore(restored)
    again = Snapshot(restored)
    assert again.files == taken.files
    other.slot.close()


def test_many_small_tensors_are_a_few_files():
    net = nn.ModuleList(nn.Linear(2, 2) for _ in range(2500))
    taken = Snapshot({"net": net})
    assert set(taken.files) == {"model/net.safetensors", "meta.json"}
    taken.restore({"net": net})


def test_two_values_of_one_name_are_refused():
    captured = Captured("x", "state", {}, ["a", "a"], [np.zeros(1), np.zeros(2)])
    with pytest.raises(CaptureError, match="two values"):
        StagingLayout().plan([captured], {})


def test_capture_holds_live_values_until_they_are_staged():
    live = {"a": np.zeros(3)}
    captured = build_component("c", live).capture()
    assert captured.values[0] is live["a"]
