"""Plain loops go on exactly: killed, in short starts, with and without snapshots."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loop_runs import LOOPS, Seen, Start, run_child
from processes import TOKEN, Child, await_writers_end

import pyengine

pytest.importorskip("gymnasium")

NAMES = ["sac", "td3", "ppo", pytest.param("dqn", marks=pytest.mark.atari)]
CHUNKS = 20


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """Return what a run without snapshots saw, from its beginning to its end in one go."""
    found: dict[str, Seen] = {}

    def make(name: str) -> Seen:
        if name == "dqn":
            pytest.importorskip("ale_py")
            pytest.importorskip("cv2")
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            child = Child(run_child, name, Start(folder), **{TOKEN: name})
            found[name] = Seen().add(child.messages())
            assert child.join() == 0
        return found[name]

    return make


@pytest.mark.parametrize("name", NAMES)
def test_snapshots_change_nothing(alone: Any, start: Any, tmp_path: Path, name: str) -> None:
    expected = alone(name)
    one = Start(tmp_path, every=LOOPS[name].every)
    assert Seen().add(start(run_child, name, one).messages()) == expected
    first, last = (pyengine.open_run(tmp_path / "run").snapshots[i] for i in (0, -1))
    assert last.sequence - first.sequence >= 2


@pytest.mark.parametrize("name", [*NAMES, "ppo at time limits"])
def test_killed_twice_equals_one_go(
    alone: Any, start: Any, token: str, tmp_path: Path, name: str
) -> None:
    expected, example = alone(name), LOOPS[name]
    seen = Seen()
    for kill_at in (*example.kills, None):
        one = Start(tmp_path, every=example.every, kill_at=kill_at)
        child = start(run_child, name, one)
        seen.add(child.messages())
        assert child.join() == (0 if kill_at is None else -signal.SIGKILL)
        await_writers_end(token)
    assert seen.resumed_at is not None
    assert 0 < example.kills[1] - seen.resumed_at <= example.every
    assert (seen.steps, seen.end) == (expected.steps, expected.end)
    first, last = (expected.steps[step]["counters"] for step in (example.kills[0], max(seen.steps)))
    assert first["episodes"] < last["episodes"], "the window crosses an episode's end"
    assert first.get("updates", 0) == 0, "and the start of learning"
    if "capacity" in example.sizes:
        lanes = example.sizes.get("num-envs", 1)
        assert example.kills[0] < example.sizes["capacity"] // lanes < example.steps


@pytest.mark.parametrize("name", NAMES)
def test_twenty_short_starts_equal_one_go(
    alone: Any, start: Any, tmp_path: Path, name: str
) -> None:
    expected, example = alone(name), LOOPS[name]
    ticks = example.steps // example.tick // CHUNKS
    seen = Seen().add(start(run_child, name, Start(tmp_path, ticks=ticks)).messages())
    assert seen.starts == CHUNKS
    assert (seen.steps, seen.end) == (expected.steps, expected.end)
