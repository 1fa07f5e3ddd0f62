"""Every item of a TorchRL run is needed: left out, the run ends differently."""

from __future__ import annotations

import copy
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

from processes import TOKEN, Child, await_writers_end
from torchrl_inventory import ITEMS, Item
from torchrl_models import BUFFERS
from torchrl_runs import Start, digest, hashed, run, train

KILL_AT = 17


@dataclass(frozen=True)
class Base:
    """A killed run, and what an undisturbed one ended with."""

    folder: Path
    end: dict[str, Any]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    """Return the base of a run, made when it is first asked for."""
    found: dict[str, Base] = {}

    def make(name: str) -> Base:
        if name not in found:
            folder = tmp_path_factory.mktemp("base")
            token = uuid.uuid4().hex
            undisturbed = Child(run, name, Start(folder / "undisturbed"), **{TOKEN: token})
            killed = Start(folder / "killed", kill_at=KILL_AT)
            assert Child(run, name, killed, **{TOKEN: token}).join() == -9
            _, end, _ = undisturbed.receive("end")
            assert undisturbed.join() == 0
            await_writers_end(token)
            found[name] = Base(folder / "killed", end)
        return found[name]

    return make


@pytest.mark.parametrize("name", BUFFERS)
def test_with_every_item_it_ends_as_undisturbed(base: Any, tmp_path: Path, name: str) -> None:
    there = base(name)
    folder = shutil.copytree(there.folder, tmp_path / "killed")
    parts, training = train(name, Start(folder))
    assert parts.report.next_step > 1
    assert training.level == "exact"
    assert digest(parts, folder) == there.end


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_without_it_the_run_goes_another_way(base: Any, tmp_path: Path, item: Item) -> None:
    there = base(item.run)
    folder = shutil.copytree(there.folder, tmp_path / "killed")
    seen: dict[str, Any] = {}

    def made(parts: Any) -> None:
        seen["fresh"] = copy.deepcopy(item.get(parts))

    def restored(parts: Any, training: Any) -> None:
        seen["restored"] = copy.deepcopy(item.get(parts))
        item.put(parts, seen["fresh"])

    try:
        parts, _ = train(item.run, Start(folder), restored, made)
        end = digest(parts, folder)
    except Exception as error:  # an item without which nothing goes on is needed too
        end = {"error": repr(error)}
    assert _hash(seen["fresh"]) != _hash(seen["restored"]), "it was as it is made"
    if item.decides:
        assert end != there.end


def _hash(value: Any) -> str:
    return hashed(value) if value is not None else "nothing"
