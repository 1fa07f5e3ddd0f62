"""`pyengine.load`: saved values without the objects they came from, verified first."""

from __future__ import annotations

import dataclasses
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import xxhash
from torch import nn

import pyengine
from pyengine.capture.build import build_component
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout
from pyengine.catalog import load as load_module
from pyengine.errors import (
    ComponentMismatchError,
    ConfigError,
    DamageError,
    RunDirectoryError,
    TruncatedFileError,
)
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest


@dataclasses.dataclass
class Progress:
    step: int = 4


def write(directory, objects):
    """Write a snapshot directory as a writer would."""
    components = [build_component(name, value) for name, value in objects.items()]
    plan = StagingLayout().plan([component.capture() for component in components], {})
    memory = mmap.mmap(-1, plan.required_bytes)
    with StagingSlot(memory, CpuCopier()) as slot:
        slot.fill(plan)
    records = []
    for file in plan.files:
        data = b"".join(memory[p.offset : p.offset + p.length] for p in file.pieces)
        path = directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        digest = xxhash.xxh3_64_hexdigest(data)
        records.append(FileRecord(file.path, len(data), digest, "all"))
    ring = ComponentRecord("replay", "ring", "saved")
    left_out = ComponentRecord("secret", "excluded", "excluded", "not needed")
    manifest = Manifest(
        run_id="r",
        generation=1,
        sequence=1,
        line="0" * 16,
        global_step=4,
        created_at="2026-01-01T00:00:00+00:00",
        components=(*plan.components, ring, left_out),
        files=tuple(records),
    )
    (directory / "manifest.json").write_bytes(manifest.to_bytes())
    return directory


@pytest.fixture
def objects():
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    progress = {"progress": Progress(), "best": np.arange(3)}
    return {"policy": net, "optimizer": optimizer, "counters": progress}


def test_all_components_but_rings_are_read(tmp_path, objects):
    values = pyengine.load(write(tmp_path / "s", objects))
    assert set(values) == {"policy", "optimizer", "counters"}
    assert torch.equal(values["policy"]["weight"], objects["policy"].weight)
    assert values["counters"]["progress"] == {"step": 4}
    assert values["counters"]["best"].tolist() == [0, 1, 2]
    other = nn.Linear(2, 2)
    other.load_state_dict(values["policy"])
    torch.optim.Adam(other.parameters()).load_state_dict(values["optimizer"])


def test_only_the_named_are_read(tmp_path, objects):
    directory = write(tmp_path / "s", objects)
    (directory / "optimizer" / "optimizer.msgpack").write_bytes(b"damage")
    assert set(pyengine.load(str(directory), only=["policy"])) == {"policy"}
    with pytest.raises(DamageError, match=r"optimizer\.msgpack"):
        pyengine.load(directory)


def test_names_that_cannot_be_read_are_refused(tmp_path, objects):
    directory = write(tmp_path / "s", objects)
    with pytest.raises(ComponentMismatchError, match="'polcy'") as caught:
        pyengine.load(directory, only=["polcy"])
    assert caught.value.not_saved == ("polcy",)
    with pytest.raises(ComponentMismatchError, match="'secret'"):
        pyengine.load(directory, only=["secret"])
    with pytest.raises(ConfigError, match="ring"):
        pyengine.load(directory, only=["replay"])
    with pytest.raises(ConfigError, match="list"):
        pyengine.load(directory, only="policy")
    with pytest.raises(RunDirectoryError):
        pyengine.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:-1], TruncatedFileError),
        (lambda data: data + b"\0", DamageError),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), DamageError),
        (lambda data: b"\0" * len(data), DamageError),
    ],
)
def test_damage_is_found_before_a_value_is_seen(tmp_path, objects, change, error):
    directory = write(tmp_path / "s", objects)
    path = directory / "model" / "policy.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(error, match=r"policy\.safetensors") as caught:
        pyengine.load(directory, only=["policy"])
    assert caught.value.path == str(path)


def test_missing_file_is_damage(tmp_path, objects):
    directory = write(tmp_path / "s", objects)
    os.unlink(directory / "model" / "policy.safetensors")
    with pytest.raises(DamageError, match="missing"):
        pyengine.load(directory, only=["policy"])


def test_reading_needs_no_native_code(tmp_path, objects):
    directory = write(tmp_path / "s", objects)
    script = (
        "import sys, pyengine\n"
        "sys.modules['pyengine._native.mapping'] = None\n"
        f"print(sorted(pyengine.load({str(directory)!r})))\n"
        "print([name for name in sys.modules if name.startswith('pyengine._native.')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['counters', 'optimizer', 'policy']\n['pyengine._native.mapping']\n"


def test_a_snapshot_that_is_pruned_while_it_is_read_gives_way_to_its_successor(
    tmp_path, objects, monkeypatch
):
    run = write(tmp_path / "s", objects)
    newest = load_module.choose_snapshot(run)
    gone = dataclasses.replace(newest, path=newest.path + "-pruned")
    answers = [gone, newest]
    monkeypatch.setattr(load_module, "choose_snapshot", lambda path: answers.pop(0))
    assert pyengine.load(run, only=["counters"])
    assert answers == []
