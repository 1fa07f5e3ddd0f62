"""Everything that a plain loop tracks is needed: left out, it goes another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from loop_runs import LOOPS, Seen, Start, run_child
from processes import TOKEN, Child

from pyengine import open_run
from pyengine.capture.kinds.rng import PROCESS_RNG
from pyengine.catalog.branch import branch_run

TRACKED = {
    "sac": (
        "actor", "critics", "targets", "log_alpha", "actor_optimizer", "critic_optimizer",
        "alpha_optimizer", "replay", "counters", "envs", "obs", "done", PROCESS_RNG,
    ),
    "td3": (
        "actor", "target_actor", "critics", "target_critics", "actor_optimizer",
        "critic_optimizer", "replay", "counters", "envs", "obs", "done", PROCESS_RNG,
    ),
    "ppo": (
        "agent", "optimizer", "obs_scale", "return_scale", "returns", "counters", "envs", "obs",
        PROCESS_RNG,
    ),
    "dqn": (
        "policy", "target", "optimizer", "replay", "explorer", "counters", "env", PROCESS_RNG,
    ),
}  # fmt: skip
MARKS = {"dqn": [pytest.mark.atari]}


@dataclass(frozen=True)
class Base:
    """A run in one go with snapshots on the way, and what it ended with."""

    run_dir: Path
    end: dict[str, str]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    """Return the base of an example, made when it is first asked for."""
    found: dict[str, Base] = {}

    def make(name: str) -> Base:
        if name == "dqn":
            pytest.importorskip("ale_py")
            pytest.importorskip("cv2")
        if name not in found:
            folder, example = tmp_path_factory.mktemp(name), LOOPS[name]
            one = Start(folder, cuts=(example.cut, *example.cuts.values()))
            child = Child(run_child, name, one, **{TOKEN: name})
            end = Seen().add(child.messages()).end
            assert child.join() == 0
            assert end is not None
            found[name] = Base(folder / "run", end)
        return found[name]

    return make


@pytest.mark.parametrize(
    ("name", "component"),
    [
        pytest.param(name, one, marks=MARKS.get(name, []))
        for name, tracked in TRACKED.items()
        for one in tracked
    ],
)
def test_without_it_the_run_goes_another_way(
    base: Any, start: Any, tmp_path: Path, name: str, component: str
) -> None:
    there, example = base(name), LOOPS[name]
    cut = example.cuts.get(component, example.cut)
    branch_run(f"{there.run_dir}@{cut}", str(tmp_path / "run"))
    seen = Seen().add(start(run_child, name, Start(tmp_path, left_out=(component,))).messages())
    assert seen.resumed_at == cut
    expected = there.end
    if component in example.unused:
        assert seen.end == expected
        return
    assert seen.end != expected
    rest = {key: value for key, value in seen.end.items() if key != component}
    others = {key: value for key, value in expected.items() if key != component}
    assert (rest == others) == (component in example.only_told)


@pytest.mark.parametrize("name", [pytest.param(one, marks=MARKS.get(one, [])) for one in TRACKED])
def test_with_every_component_it_ends_as_in_one_go(
    base: Any, start: Any, tmp_path: Path, name: str
) -> None:
    there, cut = base(name), LOOPS[name].cut
    branch_run(f"{there.run_dir}@{cut}", str(tmp_path / "run"))
    seen = Seen().add(start(run_child, name, Start(tmp_path)).messages())
    assert (seen.resumed_at, seen.end) == (cut, there.end)


@pytest.mark.parametrize("name", [pytest.param(one, marks=MARKS.get(one, [])) for one in TRACKED])
def test_every_component_is_left_out_once(base: Any, name: str) -> None:
    for snapshot in open_run(base(name).run_dir).snapshots:
        components = snapshot.components
        assert sorted(one.name for one in components) == sorted(TRACKED[name])
        assert {one.status for one in components} == {"saved"}
