"""What README.md shows runs as it stands, in its order, and a second start goes on."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyengine
from pyengine.cli.main import main

gymnasium = pytest.importorskip("gymnasium")
REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LOOP, PRIORITIES, CHECKS, READING, LIMITED, STACKS, SPANS, SB3, SB3_PHASES = BLOCKS
COMMANDS = re.findall(r"^    (make|pyengine) (\S+)(.*)$", README, re.MULTILINE)


def names(total_steps: int) -> dict[str, Any]:
    """Return what the loop takes for granted."""
    net, target = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)

    def act(net: Any, obs: Any) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(obs)).argmax(1).numpy()

    def learn(net: Any, target: Any, opt: Any, batch: Any) -> None:
        with torch.no_grad():
            wanted = batch["reward"] + target(batch["next_obs"]).amax(1) * ~batch["terminated"]
        value = net(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        opt.zero_grad()
        (value - wanted).square().mean().backward()
        opt.step()
        target.load_state_dict(net.state_dict())

    return {
        "envs": gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync"),
        "net": net,
        "target": target,
        "opt": torch.optim.Adam(net.parameters()),
        "act": act,
        "learn": learn,
        "total_steps": total_steps,
    }


def start(total_steps: int) -> dict[str, Any]:
    """Run the loop of the page, with a snapshot more often."""
    assert "every_steps=10_000" in LOOP
    scope = names(total_steps)
    try:
        exec(LOOP.replace("every_steps=10_000", "budget=None, every_steps=20"), scope)
    finally:
        scope["envs"].close()
    return scope


def test_code_and_commands_run_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = start(90)
    assert not first["report"]
    assert first["counters"]["episodes"] > 0, "autoreset was part of it"
    second = start(130)
    saved = second["report"].global_step
    assert saved >= 20
    left_out = 8 * (saved + 1) - second["report"].rows
    assert 0 < left_out <= first["counters"]["episodes"], "a row for each reset, no other"
    with pyengine.SnapshotEngine("runs/hopper") as engine:
        engine.track(policy=(net := torch.nn.Linear(4, 2)), counters=(counters := {"episodes": 0}))
        others = {"target", "optimizer", "replay"}
        with monkeypatch.context() as patch:
            patch.setattr(engine, "restore", functools.partial(engine.restore, allow=others))
            some = torch.zeros(3, 4)
            exec(CHECKS, {"engine": engine, "net": net, "some_observations": some})
        assert counters["episodes"] > 0
        assert len(engine.evaluations) == 1
    exec(READING, {"pyengine": pyengine})
    commands = [
        [name, *shlex.split(rest, comments=True)]
        for tool, name, rest in COMMANDS
        if tool == "pyengine"
    ]
    assert len(commands) == 4
    for command in commands:
        assert main(command) == 0
        assert capsys.readouterr().out


def test_the_lines_for_priorities_run_as_shown() -> None:
    schema = pyengine.Schema({"obs": ((4,), "float32")})
    scope: dict[str, Any] = {"pyengine": pyengine, "schema": schema, "total_steps": 100}
    scope |= dict.fromkeys(("net", "target", "opt"))
    scope["learn"] = lambda net, target, opt, batch: batch.weights - batch["obs"][:, 0]
    make, use = PRIORITIES.split("...\n")
    exec(make, scope)
    with scope["ring"] as ring:
        ring.add(obs=torch.full((8, 4), 3.0))
        exec(use, scope)
        assert set(ring.column("@priority")[scope["batch"].indices % 8 * 125_000]) == {
            torch.tensor(2 + 1e-6).item()
        }
        assert ring.beta > 0.4


def test_what_spans_rows_runs_as_shown() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")
    scope: dict[str, Any] = {"pyengine": pyengine, "envs": envs}
    exec("schema = pyengine.Schema.from_env(envs)\n" + LIMITED, scope)
    assert scope["ring"].whole_bytes < 9 << 30
    scope["ring"].close()
    exec(STACKS.replace("1_000_000", "8_000"), scope)
    obs, _ = envs.reset(seed=1)
    frames = np.zeros((8, 4), np.float32)
    for _ in range(100):  # four numbers in turn, as a stack of four frames
        next_frames = np.concatenate([frames[:, 1:], obs[:, :1]], axis=1)
        obs, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        scope["ring"].add(
            obs=frames,
            action=np.zeros(8, np.int64),
            reward=reward,
            next_obs=next_frames,
            terminated=terminated,
            truncated=truncated,
        )
        frames = next_frames
    envs.close()
    exec(SPANS, scope)
    assert scope["batch"].steps.max() == 3
    assert scope["windows"]["obs"].shape == (32, 80, 4)
    assert not scope["windows"].mask.all()
    scope["ring"].close()


def small(block: str, total: int) -> str:
    """Return a block about Stable-Baselines3 with less to do."""
    for shown, instead in {"20_000": total, "10_000": 130, "=2_000": "=40"}.items():
        block = block.replace(shown, str(instead))
    return block


def test_the_lines_for_stable_baselines3_run_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    for total in (160, 190):
        scope: dict[str, Any] = {}
        for block in (SB3, SB3_PHASES):
            exec(small(block, total), scope)
            assert scope["model"].num_timesteps == total
        assert bool(scope["run"].report) == (total == 190)
    for run_dir in ("runs/pendulum", "runs/phases"):
        newest = pyengine.open_run(run_dir).snapshots[-1]
        assert newest.global_step == 190
        assert newest.generation == 2, "the second start went on"
        assert newest.parent is not None


def test_targets_and_links_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = [target for tool, target, _ in COMMANDS if tool == "make"]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for page in ("README.md", "ARCHITECTURE.md"):
        text = (REPOSITORY / page).read_text("utf-8")
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (REPOSITORY / link).exists(), link
