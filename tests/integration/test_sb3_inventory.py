"""Each thing that a resumed run needs is restored: left out, the run ends differently."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from leaving_out import leave_out_component
from processes import TOKEN, Child, await_writers_end
from sb3_inventory import (
    ITEMS,
    SHOWN_BY,
    UNDECIDED,
    Item,
    items_of,
    leave_out,
    run_child,
    run_watched,
    siblings,
)
from sb3_runs import Start

from pyengine import open_run
from pyengine.errors import ConfigError

KILL_AT = {"PPO": 110, "A2C": 90, "RecurrentPPO": 110, "HER": 80}
"""Moments at which about six tenths of a run are over; 180 for the others."""

REFUSED = {"model": "restored at step"}
"""Components without which a run does not even get to its end, and what it says."""


@dataclass(frozen=True)
class Base:
    """A killed run and what an undisturbed one saw and ended with."""

    folder: Path
    end: dict[str, Any]
    seen: list[tuple[int, dict[str, str]]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    """Return the base of a model, made when it is first asked for."""
    found: dict[str, Base] = {}

    def make(name: str) -> Base:
        if name not in found:
            folder = tmp_path_factory.mktemp("base")
            token = uuid.uuid4().hex
            undisturbed = Child(run_child, name, Start(folder / "undisturbed"), **{TOKEN: token})
            killed = Start(folder / "killed", kill_at=KILL_AT.get(name, 180))
            child = Child(run_child, name, killed, **{TOKEN: token})
            assert child.join() == -9
            _, end, seen, _ = undisturbed.receive("end")
            assert undisturbed.join() == 0
            await_writers_end(token)
            found[name] = Base(folder / "killed", end, seen)
        return found[name]

    return make


@pytest.mark.parametrize("name", list(dict.fromkeys(item.model for item in ITEMS)))
def test_every_item_is_as_it_was(base: Any, tmp_path: Path, name: str) -> None:
    there = base(name)
    folder = shutil.copytree(there.folder, tmp_path / "killed")
    end, seen, step = run_watched(name, Start(folder), siblings(name), *items_of(name))
    assert step
    assert seen[0][0] == step
    items = seen[0][1]
    assert items == dict(there.seen)[step]
    assert items.keys() == {item.name for item in items_of(name)}
    assert seen == [one for one in there.seen if one[0] >= step]
    assert end == there.end


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item.name}")
def test_without_it_the_run_goes_another_way(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: Item
) -> None:
    there = base(item.model)
    folder = shutil.copytree(there.folder, tmp_path / "killed")
    callbacks = siblings(item.model)
    hashes = leave_out(item, callbacks, monkeypatch)
    if item.name == "num_timesteps":  # its next snapshot would be of a step before the restored one
        with pytest.raises(ConfigError, match="restored at step"):
            run_watched(item.model, Start(folder), callbacks, item)
        return
    end, seen, step = run_watched(item.model, Start(folder), callbacks, item)
    made, restored = hashes
    assert made != restored == dict(there.seen)[step][item.name]
    assert seen[0][1][item.name] != restored, "it was not left out"
    if item.decides:
        assert end != there.end


@pytest.mark.parametrize("component", SHOWN_BY)
def test_without_a_component_the_run_goes_another_way(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    name = SHOWN_BY[component]
    there = base(name)
    folder = shutil.copytree(there.folder, tmp_path / "killed")
    leave_out_component(component, monkeypatch)
    refusal = REFUSED.get(component)
    if refusal is not None:
        with pytest.raises((ConfigError, RuntimeError), match=refusal):
            run_watched(name, Start(folder), siblings(name), *items_of(name))
        return
    end, _, step = run_watched(name, Start(folder), siblings(name), *items_of(name))
    assert step
    assert end != there.end


def test_every_component_is_left_out_once(base: Any) -> None:
    for name in {*SHOWN_BY.values(), *(item.model for item in ITEMS)}:
        snapshot = open_run(base(name).folder / "run").snapshots[-1]
        saved = {record.name for record in snapshot.components if record.status == "saved"}
        assert saved <= SHOWN_BY.keys() | UNDECIDED.keys(), name
