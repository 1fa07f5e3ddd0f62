"""Counters, and single tensors and arrays: refilled in place."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict, deque

import numpy as np
import pytest
import torch

from pyengine.capture.inplace import same_bits
from pyengine.errors import StateMismatchError


def test_dict_is_refilled_in_place(snapshot):
    returns, best = deque([1.0, 2.0], maxlen=100), np.zeros(3)
    counters = {"steps": 7, "returns": returns, "best": best, "nested": {"lists": [[1], [2]]}}
    inner = counters["nested"]["lists"][0]
    taken = snapshot(counters=counters)
    counters["steps"] = 8
    returns.append(3.0)
    best += 1
    inner.append(5)
    del counters["nested"]["lists"][1]
    counters["late"] = True
    notes = taken.restore({"counters": counters})
    assert counters["steps"] == 7
    assert counters["returns"] is returns
    assert list(returns) == [1.0, 2.0]
    assert counters["best"] is best
    assert best.tolist() == [0, 0, 0]
    assert counters["nested"]["lists"] == [[1], [2]]
    assert counters["nested"]["lists"][0] is inner
    assert "late" not in counters
    assert notes == ["counters/: removed, the snapshot lacks ['late']"]


def test_order_of_keys_comes_back(snapshot):
    taken = snapshot(c={"b": 1, "a": 2})
    live = {"a": 0, "b": 0}
    taken.restore({"c": live})
    assert list(live) == ["b", "a"]


@dataclasses.dataclass
class Inner:
    total: float = 0.0


@dataclasses.dataclass(slots=True)
class Progress:
    step: int = 0
    inner: Inner = dataclasses.field(default_factory=Inner)
    seen: set = dataclasses.field(default_factory=set)


def test_dataclass_is_refilled_in_place(snapshot):
    progress = Progress(5, Inner(0.1 + 0.2), {1, 2})
    taken = snapshot(progress=progress)
    live = Progress()
    inner = live.inner
    taken.restore({"progress": live})
    assert live == progress
    assert live.inner is inner


def test_objects_that_the_live_side_lacks_are_made(snapshot):
    taken = snapshot(c={"items": [Inner(1.0), Inner(2.0)], "rng": np.random.default_rng(3)})
    live = {"items": []}
    taken.restore({"c": live})
    assert live["items"] == [Inner(1.0), Inner(2.0)]
    assert live["rng"].random() == np.random.default_rng(3).random()


def test_defaultdict_of_any_factory_keeps_the_live_factory(snapshot):
    saved = defaultdict(lambda: 5, {"a": 1})
    taken = snapshot(c=saved)
    live = defaultdict(lambda: 6)
    taken.restore({"c": live})
    assert live == {"a": 1}
    assert live["b"] == 6


def test_inference_tensor_is_refilled(snapshot):
    with torch.inference_mode():
        live = {"t": torch.ones(2)}
    taken = snapshot(c=live)
    with torch.inference_mode():
        live["t"].add_(1)
    tensor = live["t"]
    taken.restore({"c": live})
    assert live["t"] is tensor
    assert tensor.tolist() == [1, 1]


def test_two_saved_values_never_go_into_one_live_object(snapshot):
    taken = snapshot(c={"a": [1], "b": [2], "x": np.ones(1), "y": np.zeros(1)})
    shared, array = [], np.full(1, 9.0)
    live = {"a": shared, "b": shared, "x": array, "y": array}
    taken.restore({"c": live})
    assert live["a"] == [1]
    assert live["b"] == [2]
    assert live["x"][0] == 1
    assert live["y"][0] == 0


def test_generators_inside_are_set_after_everything_else(snapshot):
    rng = np.random.default_rng(1)
    taken = snapshot(c={"rng": rng})
    expected = rng.random()
    pairs, _ = taken.check({"c": {"rng": rng}})
    for component, decoded in pairs:
        component.apply(decoded)
    rng.random()  # as a user's callable might do between the two steps
    for component, decoded in pairs:
        component.apply_late(decoded)
    assert rng.random() == expected


def test_tensors_inside_are_refilled(snapshot):
    live = {"t": torch.zeros(3, requires_grad=True), "grown": torch.zeros(1)}
    taken = snapshot(c={"t": torch.ones(3), "grown": torch.ones(2)})
    tensor = live["t"]
    taken.restore({"c": live})
    assert live["t"] is tensor
    assert tensor.tolist() == [1, 1, 1]
    assert live["grown"].tolist() == [1, 1]


def test_frozen_dataclass_field_missing_here_is_refused(snapshot):
    @dataclasses.dataclass
    class Old:
        a: int = 1
        b: int = 2

    taken = snapshot(c={"x": Old()})

    @dataclasses.dataclass
    class New:
        a: int = 1

    New.__qualname__ = Old.__qualname__
    live = {"x": New(5)}
    with pytest.raises(StateMismatchError, match=r"'c' at /x: New has no fields \['b'\]"):
        taken.check({"c": live})
    assert live["x"].a == 5


def test_another_container_is_refused(snapshot):
    with pytest.raises(StateMismatchError, match="another type of container"):
        snapshot(c=[1]).check({"c": {}})


def test_another_kind_of_generator_is_refused_and_nothing_changes(snapshot):
    taken = snapshot(c={"n": 1, "rng": np.random.default_rng(1)})
    live = {"n": 5, "rng": np.random.Generator(np.random.MT19937(1))}
    before = live["rng"].bit_generator.state["state"]["key"].copy()
    with pytest.raises(StateMismatchError, match="broken state"):
        taken.check({"c": live})
    assert live["n"] == 5
    assert (live["rng"].bit_generator.state["state"]["key"] == before).all()


def test_counters_are_readable_in_meta_json(snapshot):
    meta = json.loads(snapshot(counters={"episodes": 3}).files["meta.json"])
    assert meta["state"]["counters"]["structure"]["tree"] == {"episodes": 3}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).reshape(2, 3).t(),
        lambda: torch.zeros(1, requires_grad=True),
        lambda: torch.randn(1, 3).expand(2, 3),
        lambda: torch.tensor(5, dtype=torch.int16),
        lambda: np.arange(12, dtype=np.uint16).reshape(3, 4)[:, ::2],
        lambda: np.array([1 + 2j, np.nan]),
    ],
)
def test_tensor_or_array_is_written_in_place(snapshot, make):
    live = make()
    expected = live.clone() if isinstance(live, torch.Tensor) else live.copy()
    taken = snapshot(x=live)
    with torch.no_grad():
        if isinstance(live, torch.Tensor):
            live.as_strided((1,), (1,), live.storage_offset()).fill_(77)
        else:
            live[...] = 77
    taken.restore({"x": live})
    if isinstance(live, torch.Tensor):
        assert same_bits(live, expected)
    else:
        assert live.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2).double()),
        (torch.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.zeros(2), np.zeros(3)),
    ],
)
def test_tensor_that_does_not_fit_is_refused(snapshot, saved, live):
    with pytest.raises(StateMismatchError, match="'x'"):
        snapshot(x=saved).check({"x": live})
