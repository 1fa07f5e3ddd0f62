"""A training of Tianshou, killed twice and started again, ends as if undisturbed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tianshou")

from processes import TOKEN, Child, await_writers_end, leftovers
from tianshou_models import MODELS, MORE_MODELS
from tianshou_runs import Start, digest, run_jobs, train

ALL = (*MODELS, *MORE_MODELS)
KILLS = {"PPO": (11, 6), "SAC": (110, 60), "DDPG with HER": (53, 30)}
"""Optimizer steps before which processes are killed: in the second epoch, then in what is left."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tianshou")


@pytest.fixture(scope="module")
def killed(folder: Path) -> Iterator[Any]:
    """Results of the killed trainings, by name: of two that were killed, and of the last."""
    token = uuid.uuid4().hex
    jobs = []
    for name in ALL:
        first, second = KILLS.get(name, (27, 17))
        place = folder / name.replace(" ", "-")
        jobs += [(name, Start(place, kill_at=kill)) for kill in (first, second, None)]
    child = Child(run_jobs, *jobs, **{TOKEN: token})
    found: dict[str, Any] = {}

    def result(name: str) -> Any:
        while name not in found:
            results = [child.receive("ended")[1] for _ in range(3)]
            found[ALL[len(found)]] = results
        return found[name]

    yield result
    child.close()
    await_writers_end(token)


@pytest.mark.parametrize("name", ALL)
def test_a_training_killed_twice_ends_as_stock_does(
    killed: Any, folder: Path, tmp_path: Path, name: str
) -> None:
    stock = digest(train(name, Start(tmp_path / "stock", is_stock=True)))
    undisturbed = train(name, Start(tmp_path / "undisturbed"))
    assert digest(undisturbed) == stock
    assert undisturbed.run is not None
    assert not undisturbed.run.report

    first, second, last = killed(name)
    assert (first[0], second[0]) == (-9, -9)
    assert last[0] == 0
    assert last[1]["resumed"]
    assert last[1]["digest"] == stock
    assert leftovers(folder / name.replace(" ", "-") / "run") == []
