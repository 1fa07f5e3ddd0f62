"""Everything that a plain loop tracks is needed: left out, it goes another way."""

from __future__ import annotations

import shutil
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from loop_runs import LOOPS, Seen, Start, run_child
from processes import TOKEN, Child, await_writers_end

from pyengine import open_run
from pyengine.capture.kinds.rng import PROCESS_RNG

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
    """Runs that were killed, each after a snapshot of one step, and what one in one go saw."""

    folders: dict[int, Path]
    alone: Seen


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    """Return the base of an example, made when it is first asked for."""
    found: dict[str, Base] = {}

    def make(name: str) -> Base:
        if name == "dqn":
            pytest.importorskip("ale_py")
            pytest.importorskip("cv2")
        if name not in found:
            folder, token = tmp_path_factory.mktemp(name), uuid.uuid4().hex
            folders, example = {}, LOOPS[name]
            for cut in sorted({example.cut, *example.cuts.values()}):
                folders[cut] = folder / str(cut)
                folders[cut].mkdir()
                one = Start(folders[cut], cuts=(cut,), kill_at=cut + example.tick)
                child = Child(run_child, name, one, **{TOKEN: token})
                child.messages()
                assert child.join() == -signal.SIGKILL
            (folder / "alone").mkdir()
            child = Child(run_child, name, Start(folder / "alone"), **{TOKEN: token})
            found[name] = Base(folders, Seen().add(child.messages()))
            await_writers_end(token)
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
    folder = shutil.copytree(there.folders[cut], tmp_path / "killed")
    seen = Seen().add(start(run_child, name, Start(folder, left_out=(component,))).messages())
    assert seen.resumed_at == cut
    expected = there.alone.end
    if component in example.unused:
        assert seen.end == expected
        return
    assert seen.end != expected
    rest = {key: value for key, value in seen.end.items() if key != component}
    others = {key: value for key, value in expected.items() if key != component}
    assert (rest == others) == (component in example.only_told)


@pytest.mark.parametrize("name", [pytest.param(one, marks=MARKS.get(one, [])) for one in TRACKED])
def test_every_component_is_left_out_once(base: Any, name: str) -> None:
    for folder in base(name).folders.values():
        components = open_run(folder / "run").snapshots[-1].components
        assert sorted(one.name for one in components) == sorted(TRACKED[name])
        assert {one.status for one in components} == {"saved"}
