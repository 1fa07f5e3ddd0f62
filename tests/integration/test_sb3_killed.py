"""A run of Stable-Baselines3, killed at any moment and started again, ends as if undisturbed.

Moments are drawn at random; PYENGINE_TEST_SEED draws those of a failed test again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from processes import Child, await_writers_end, leftovers
from sb3_models import MODELS
from sb3_runs import STEPS, Start, run

DELAY_SECONDS = 0.02


def end(child: Child) -> tuple[int, Any, int | None]:
    _, moments, digest, resumed_at = child.receive("end")
    assert child.join() == 0
    return moments, digest, resumed_at


def kill(start: Any, token: str, name: str, how: Start) -> None:
    assert start(run, name, how).join() == -9
    await_writers_end(token)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_killed_twice_ends_as_stock_does(
    start: Any, token: str, tmp_path: Path, name: str
) -> None:
    seed = int(os.environ.get("PYENGINE_TEST_SEED", random.randrange(1 << 32)))
    draw = random.Random(seed)
    without = start(run, name, Start(tmp_path / "stock", is_stock=True))
    beside = start(run, name, Start(tmp_path / "undisturbed"))
    moments, stock, _ = end(without)
    assert stock["counters"]["num_timesteps"] >= STEPS
    assert stock["log"], "nothing was logged: the test shows too little"

    _, undisturbed, resumed_at = end(beside)
    assert undisturbed == stock
    assert resumed_at is None

    killed = tmp_path / "killed"
    first = draw.randint(moments // 4, moments * 2 // 3)
    second = draw.randint(1, max(1, (moments - first) // 2))
    delay = draw.random() * DELAY_SECONDS
    print(f"PYENGINE_TEST_SEED={seed}: killed at moments {first} and {second}, then {delay:.4f} s")
    kill(start, token, name, Start(killed, kill_at=first))
    kill(start, token, name, Start(killed, kill_at=second, kill_delay=delay))
    _, resumed, resumed_at = end(start(run, name, Start(killed)))
    assert resumed == stock
    assert resumed_at
    assert leftovers(killed / "run") == []
