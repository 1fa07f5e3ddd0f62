"""A run of TorchRL, killed and started again, ends as the stock library does undisturbed.

The window crosses learning_starts, ends of episodes, target updates and the ring's end.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

from processes import await_writers_end, leftovers
from torchrl_models import BUFFERS
from torchrl_runs import Start, run


def end(child: Any) -> tuple[Any, int | None]:
    _, digest, resumed_at = child.receive("end")
    assert child.join() == 0
    return digest, resumed_at


@pytest.mark.parametrize("name", BUFFERS)
def test_a_run_killed_twice_ends_as_stock_does(
    start: Any, token: str, tmp_path: Path, name: str
) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    first, second = draw.randint(6, 16), draw.randint(4, 7)
    print(f"seed {seed}: killed before gradient steps {first} and {second}")
    without = start(run, name, Start(tmp_path / "stock", is_stock=True))
    undisturbed, none = end(start(run, name, Start(tmp_path / "undisturbed")))
    killed = tmp_path / "killed"
    for kill_at in (first, second):
        child = start(run, name, Start(killed, kill_at=kill_at))
        assert child.join() == -9
        await_writers_end(token)
    resumed, resumed_at = end(start(run, name, Start(killed)))
    stock, _ = end(without)
    assert stock["buffer"][1] > 2 * stock["buffer"][0], "the ring's end was not crossed twice"
    assert all(len(noted) <= 2 for noted in resumed["drawn"].values())
    assert none is None
    assert undisturbed == stock
    assert resumed_at
    assert resumed == stock
    assert leftovers(killed / "run") == []
