"""Random number generators: tracked ones, and those of the process."""

from __future__ import annotations

import random

import msgpack
import numpy as np
import pytest
import torch

from pyengine.capture.kinds.rng import ProcessRngComponent
from pyengine.errors import StateMismatchError

GENERATORS = {
    "pcg": lambda: np.random.default_rng(1),
    "dxsm": lambda: np.random.Generator(np.random.PCG64DXSM(1)),
    "mt": lambda: np.random.Generator(np.random.MT19937(1)),
    "philox": lambda: np.random.Generator(np.random.Philox(1)),
    "sfc": lambda: np.random.Generator(np.random.SFC64(1)),
    "bit": lambda: np.random.PCG64(1),
    "legacy": lambda: np.random.RandomState(1),
    "python": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}


def draw(rng):
    if isinstance(rng, np.random.Generator):
        return [rng.random(), int(rng.integers(10, dtype=np.uint32)), rng.normal()]
    if isinstance(rng, np.random.BitGenerator):
        return rng.random_raw()
    if isinstance(rng, np.random.RandomState):
        return [rng.rand(), rng.randn()]
    if isinstance(rng, random.Random):
        return [rng.random(), rng.gauss(0, 1)]
    return torch.randn(3, generator=rng).tolist()


@pytest.mark.parametrize("kind", GENERATORS)
def test_generator_goes_on_where_it_was(snapshot, kind):
    rng = GENERATORS[kind]()
    draw(rng)
    taken = snapshot(rng=rng)
    expected = [draw(rng) for _ in range(3)]
    taken.restore({"rng": rng})
    assert [draw(rng) for _ in range(3)] == expected
    other = GENERATORS[kind]()
    taken.restore({"rng": other})
    assert [draw(other) for _ in range(3)] == expected


@pytest.mark.parametrize("kind", GENERATORS)
def test_another_generator_is_refused_unchanged(snapshot, kind):
    other = random.Random(5) if kind == "torch" else torch.Generator().manual_seed(5)
    twin = random.Random(5) if kind == "torch" else torch.Generator().manual_seed(5)
    with pytest.raises(StateMismatchError):
        snapshot(rng=GENERATORS[kind]()).check({"rng": other})
    assert draw(other) == draw(twin)


def draw_process():
    return [random.random(), random.gauss(0, 1), np.random.rand(), torch.rand(1).item()]


@pytest.fixture
def _process_generators():
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(saved[0])
    np.random.set_state(saved[1])
    torch.set_rng_state(saved[2])


@pytest.mark.usefixtures("_process_generators")
def test_process_generators_go_on_where_they_were(snapshot):
    random.gauss(0, 1)
    np.random.randn()
    taken = snapshot(process=ProcessRngComponent("process"))
    expected = [draw_process() for _ in range(3)]
    taken.restore({"process": ProcessRngComponent("process")})
    assert [draw_process() for _ in range(3)] == expected


@pytest.mark.usefixtures("_process_generators")
def test_taking_a_snapshot_draws_nothing(snapshot):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = draw_process()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    taken = snapshot(process=ProcessRngComponent("process"), own=np.random.default_rng(1))
    taken.check({"process": ProcessRngComponent("process"), "own": np.random.default_rng(1)})
    assert draw_process() == expected


@pytest.mark.parametrize("part", ["python", "numpy", "torch"])
def test_broken_state_is_an_error_and_changes_nothing(snapshot, part):
    taken = snapshot(process=ProcessRngComponent("process"))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    path = "rng/process.msgpack"
    envelope = msgpack.unpackb(taken.files[path])
    tree = envelope["structure"]["tree"]
    tree[part] = {"python": {"version": 3}, "numpy": {}, "torch": tree["python"]["words"]}[part]
    taken.files[path] = msgpack.packb(envelope)
    with pytest.raises(StateMismatchError, match="broken state"):
        taken.check({"process": ProcessRngComponent("process")})
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_states_of_devices_that_are_not_here_are_told(snapshot):
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    taken = snapshot(process=ProcessRngComponent("process"))
    path = "rng/process.msgpack"
    envelope = msgpack.unpackb(taken.files[path])
    tree = envelope["structure"]["tree"]
    tree["cuda"] = [tree["torch"]]
    taken.files[path] = msgpack.packb(envelope)
    _, notes = taken.check({"process": ProcessRngComponent("process")})
    assert notes == ["process: no cuda:0 here, its generator is left out"]


def test_one_generator_does_not_fit_the_process(snapshot):
    taken = snapshot(rng=np.random.default_rng(1))
    with pytest.raises(StateMismatchError):
        taken.check({"rng": ProcessRngComponent("rng")})
    taken = snapshot(rng=ProcessRngComponent("rng"))
    with pytest.raises(StateMismatchError):
        taken.check({"rng": np.random.default_rng(1)})
