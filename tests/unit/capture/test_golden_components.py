"""Component files that version 1 wrote: read by the page alone, by `load`, and restored."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import page_decoder
import pytest
import torch

from pyengine.capture.build import build_component
from pyengine.capture.load import load_component

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden" / "v1" / "components"
KINDS = {
    "policy": "module",
    "optimizer": "optimizer",
    "explorer": "rng",
    "counters": "counters",
}


@pytest.fixture
def files():
    paths = (path for path in GOLDEN.rglob("*") if path.is_file())
    return {path.relative_to(GOLDEN).as_posix(): bytearray(path.read_bytes()) for path in paths}


def by_page(files, name, kind):
    return page_decoder.decode_component(
        {path: bytes(data) for path, data in files.items()}, name, kind
    )


def numbers(value):
    """A tensor or array as Python numbers; bfloat16 as the page stores it, too."""
    if isinstance(value, torch.Tensor):
        return value.float().tolist()
    if value.dtype == np.uint16:
        value = (value.astype(np.uint32) << 16).view(np.float32)
    return value.tolist()


@pytest.mark.parametrize("read", [by_page, load_component])
def test_module_and_optimizer_of_version_1_read_to_their_values(files, read):
    state = read(files, "policy", "module")
    assert numbers(state["weight"]) == [[-0.25, 0.0], [0.25, 0.5], [0.75, 1.0]]
    assert numbers(state["bias"]) == [-0.25, 0.0, 0.25]
    saved = read(files, "optimizer", "optimizer")
    assert saved["param_groups"][0]["params"] == [0, 1]
    assert saved["param_groups"][0]["lr"] == 0.25
    assert numbers(saved["state"][1]["momentum_buffer"]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("read", [by_page, load_component])
def test_counters_of_version_1_read_to_their_values(files, read):
    counters = read(files, "counters", "counters")
    assert counters["updates"] == 12
    assert counters["long"] == list(range(100))
    assert counters["shared"] == [[1.5, -math.inf]] * 2
    assert counters["shared"][0] is counters["shared"][1]
    assert counters["by lane"] == {0: (1, 2**80), 1: np.float32(0.5)}
    assert counters["bytes"] == b"\x00\xff"
    assert counters["grid"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (counters["complex"].dtype, counters["complex"].tolist()) == (np.complex64, [1 - 2j])


def test_generator_of_version_1_reads_to_its_state(files):
    state = by_page(files, "explorer", "rng")["state"]
    assert state == load_component(files, "explorer", "rng")
    assert state["state"] == {"state": 1 << 100, "inc": 3}
    assert (state["has_uint32"], state["uinteger"]) == (1, 7)


def test_files_of_version_1_restore_into_live_objects(files):
    net = torch.nn.Linear(2, 3, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    explorer, counters = np.random.default_rng(), {}
    live = {"policy": net, "optimizer": optimizer, "explorer": explorer, "counters": counters}
    for name, value in live.items():
        component = build_component(name, value)
        assert component.kind == KINDS[name]
        decoded = component.decode(files)
        component.check(decoded)
        component.apply(decoded)
        component.apply_late(decoded)
    assert numbers(net.bias.detach()) == [-0.25, 0.0, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert explorer.bit_generator.state["state"]["state"] == 1 << 100
    assert counters["updates"] == 12


@pytest.mark.parametrize("name", ["policy", "explorer", "counters"])
def test_this_version_still_writes_files_that_read_the_same(files, name):
    """Not the same bytes: torch decides what an optimizer's groups hold."""
    written = runpy.run_path(str(REPOSITORY / "tools" / "make_golden.py"))["components"]()
    kind = KINDS[name]
    former, now = by_page(files, name, kind), by_page(written, name, kind)
    if name == "explorer":
        now["state"].pop("seed_sequence", None)  # it came later, and readers do without
    assert str(former) == str(now)
