"""`device=`: what is none, or not there, is refused before a row is drawn."""

from __future__ import annotations

import pytest
import torch

from pyengine import ReplayBuffer
from pyengine.errors import ConfigError

NONE = ["nope", "cuda:9", "cuda:x", "meta", 2.5, True, ["cpu"], {}, "cpu:", ""]


@pytest.fixture
def ring():
    with ReplayBuffer({"x": "float32"}, 64, seed=3) as ring:
        ring.extend(x=range(64))
        yield ring


@pytest.mark.skipif(torch.cuda.device_count() > 9, reason="there is such a device")
@pytest.mark.parametrize("device", NONE, ids=repr)
def test_a_device_that_is_not_there_is_refused_and_nothing_is_drawn(ring, device):
    with ReplayBuffer({"x": "float32"}, 64, seed=3) as other:
        other.extend(x=range(64))
        for call in (
            lambda: ring.sample(4, device=device),
            lambda: ring.gather([0], device=device),
            lambda: ring.gather_at([0], device=device),
        ):
            with pytest.raises(ConfigError, match="device: expected a torch device") as caught:
                call()
            assert caught.value.field == "device"
            assert caught.value.got is device
        assert ring.sample(8).indices.tolist() == other.sample(8).indices.tolist()


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cpu:0"], ids=repr)
def test_the_cpu_is_always_there(ring, device):
    found = ring.gather([3, 5], device=device)["x"]
    assert torch.equal(found, torch.tensor([3.0, 5.0]))
    assert torch.equal(ring.gather_at([4], device=device)["x"], torch.tensor([4.0]))
