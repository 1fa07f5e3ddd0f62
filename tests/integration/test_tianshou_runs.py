"""What a script may do with a Tianshou run, and what it is told."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("tianshou")

from hashes import hashed
from tianshou.data import AsyncCollector, PrioritizedReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou_models import EPOCHS, cartpole, dqn, venv
from tianshou_runs import QUICK, Start, Stopped, buffer_parts, digest, parts, train

import pyengine
from pyengine.errors import ConfigError, ModelMismatchError
from pyengine.integrations.tianshou import SnapshotRun
from pyengine.integrations.tianshou.buffers import adopt
from pyengine.integrations.tianshou.run import LEVEL

NAME = "prioritized DQN"


def opaque(algorithm: Any, params: Any) -> None:
    """Give each environment something that cannot be saved."""
    for worker in params.training_collector.env.workers:
        worker.env.unwrapped.hidden = open("/dev/null")  # noqa: SIM115  a file stays open for good


def snapshots(folder: Path) -> list[pyengine.SnapshotInfo]:
    return list(pyengine.open_run(folder / "run").snapshots)


def test_a_run_that_is_over_returns_at_once_and_more_epochs_go_on(tmp_path: Path) -> None:
    whole = train(NAME, Start(tmp_path / "whole"))
    first = train(NAME, Start(tmp_path / "parts", epochs=1))
    again = train(NAME, Start(tmp_path / "parts", epochs=1))
    assert again.moments == 0
    assert digest(again) == digest(first)
    for epochs in range(2, EPOCHS + 1):
        last = train(NAME, Start(tmp_path / "parts", epochs=epochs))
    assert digest(last) == digest(whole)
    assert snapshots(tmp_path / "parts")[-1].notes["tianshou"]["level"] == LEVEL


def test_restored_and_saved_again_nothing_has_changed(tmp_path: Path) -> None:
    train(NAME, Start(tmp_path / "one", epochs=1))
    saved = snapshots(tmp_path / "one")[-1]

    def at_once(algorithm: Any, params: Any) -> None:
        params.max_epochs = 1

    ended = train(NAME, Start(tmp_path / "one"), before=at_once)
    assert ended.run is not None
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(Stopped):
        train(NAME, Start(tmp_path / "two", stop_at=1, options={"every_steps": 1}))
    again = [one for one in snapshots(tmp_path / "two") if one.global_step == saved.global_step]
    assert again[-1].name == saved.name, "nothing was saved that was there already"


def test_best_models_are_saved_by_the_first_start_alone(tmp_path: Path) -> None:
    calls: list[int] = []

    def watch(algorithm: Any, params: Any) -> None:
        params.save_best_fn = lambda algorithm: calls.append(1)
        params.test_fn = lambda epoch, env_step: calls.append(0)

    train(NAME, Start(tmp_path / "run", epochs=1), before=watch)
    assert calls[:2] == [0, 1]
    calls.clear()
    train(NAME, Start(tmp_path / "run", epochs=1), before=watch)
    assert calls == []


def test_environments_that_cannot_be_saved_are_reset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Start(tmp_path / "run", stop_at=27, options={"verbose": 1})
    with pytest.raises(Stopped):
        train(NAME, start, before=opaque)
    said = capsys.readouterr().out
    assert "training environments cannot be saved and are reset on resume" in said
    assert "not saved: log files" in said
    assert "info/length of the rows is copied whole into every snapshot" in said
    manifest = snapshots(tmp_path / "run")[-1]
    excluded = {one.name for one in manifest.components if one.status == "excluded"}
    assert {"training_environment", "logger", "test_replay"} <= excluded

    seen: list[Any] = []

    def look(algorithm: Any, params: Any) -> None:
        opaque(algorithm, params)
        own = params.training_fn

        def training_fn(epoch: int, env_step: int) -> None:
            if not seen:
                buffer = params.training_collector.buffer
                seen.append([(lane._ep_len, bool(lane.done[lane.last_index[0]]))
                             for lane in buffer.buffers])  # fmt: skip
            own(epoch, env_step)

        params.training_fn = training_fn

    ended = train(NAME, Start(tmp_path / "run", options={"verbose": 1}), before=look)
    assert "training environments: reset with seed" in capsys.readouterr().out
    assert seen == [[(0, True), (0, True)]]
    buffer = ended.params.training_collector.buffer
    for lane in buffer.buffers:
        length = longest = 0
        for at in lane.sample_indices(0):
            length = 0 if lane.done[at] else length + 1
            longest = max(longest, length)
        assert longest < 25, "an episode is longer than the limit"


@pytest.mark.parametrize(
    ("what", "change"),
    [
        (
            "buffer_size",
            lambda p: setattr(p.training_collector, "buffer", VectorReplayBuffer(50, 2)),
        ),
        (
            "buffer_num",
            lambda p: setattr(p.training_collector, "buffer", VectorReplayBuffer(90, 3)),
        ),
        ("num_envs", lambda p: setattr(p.training_collector, "env", venv(cartpole, 1, 5))),
        ("trainer", None),
    ],
)
def test_another_shape_is_refused_before_anything_changes(
    tmp_path: Path, what: str, change: Any
) -> None:
    train(NAME, Start(tmp_path / "run", epochs=1))
    before = sorted(str(path) for path in (tmp_path / "run").rglob("*"))

    def other(algorithm: Any, params: Any) -> None:
        if change is not None:
            change(params)

    name = "PPO" if change is None else NAME
    with pytest.raises(ModelMismatchError, match="the run has") as caught:
        train(name, Start(tmp_path / "run"), before=other)
    assert caught.value.saved is not None
    assert what in ("trainer", caught.value.what) or caught.value.what == "buffer"
    assert sorted(str(path) for path in (tmp_path / "run").rglob("*")) == before


def _replace_optimizer(algorithm: Any, params: Any) -> None:
    algorithm.optim._optim = torch.optim.Adam(algorithm.policy.parameters(), lr=1e-4)


def _replace_network(algorithm: Any, params: Any) -> None:
    algorithm.model_old = copy.deepcopy(algorithm.model_old)


def _replace_buffer(algorithm: Any, params: Any) -> None:
    params.training_collector.buffer = PrioritizedReplayBuffer(66, 0.6, 0.4)


def _replace_memory(algorithm: Any, params: Any) -> None:
    buffer = params.training_collector.buffer
    buffer.__dict__["_meta"] = buffer._meta[np.arange(66)]


@pytest.mark.parametrize(
    ("replace", "text"),
    [
        (_replace_optimizer, "optimizer.optim was replaced"),
        (_replace_network, "model_old was replaced"),
        (_replace_buffer, "buffer was replaced"),
        (_replace_memory, "memory of the training collector's buffer was replaced"),
    ],
)
def test_a_part_that_was_replaced_is_noticed(tmp_path: Path, replace: Any, text: str) -> None:
    def later(algorithm: Any, params: Any) -> None:
        params.test_fn = lambda epoch, env_step: replace(algorithm, params) if epoch == 1 else None

    with pytest.raises(ConfigError, match=text):
        train(NAME, Start(tmp_path / "run", options={"every_steps": 1}), before=later)


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every_steps"):
        SnapshotRun(tmp_path / "run", every_steps=0)
    with pytest.raises(ConfigError, match="unknown"):
        SnapshotRun(tmp_path / "run", unknown=1)
    with pytest.raises(ConfigError, match="on_damage"):
        SnapshotRun(tmp_path / "run", on_damage="drop")

    def from_log(algorithm: Any, params: Any) -> None:
        params.resume_from_log = True

    def asynchronous(algorithm: Any, params: Any) -> None:
        env = DummyVectorEnv([cartpole] * 2, wait_num=1)
        params.training_collector = AsyncCollector(algorithm, env, VectorReplayBuffer(60, 2))

    for change in (from_log, asynchronous):
        with pytest.raises(ConfigError, match=r"resume_from_log|AsyncCollector"):
            train(NAME, Start(tmp_path / "run"), before=change)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_one_who_writes_into_old_rewards_is_told(tmp_path: Path) -> None:
    def relabel(algorithm: Any, params: Any) -> None:
        def test_fn(epoch: int, env_step: int) -> None:
            if epoch == 1:
                params.training_collector.buffer.rew[3] += 1

        params.test_fn = test_fn

    with pytest.raises(pyengine.errors.ImmutableFieldError, match="rew: row 3"):
        train(NAME, Start(tmp_path / "run", options={"every_steps": 1}), before=relabel)


def test_priorities_of_a_large_buffer_come_back(tmp_path: Path) -> None:
    """1,000 rows of random priorities in a ring that wrapped; its capacity is no power of two."""

    def filled() -> Any:
        buffer = PrioritizedReplayBuffer(1000, 0.7, 0.5)
        algorithm, params = dqn(buffer, 1)
        return buffer, algorithm, params

    def fill(buffer: Any, params: Any) -> None:
        params.training_collector.collect(n_step=1300, random=True)
        draw = np.random.default_rng(2)
        for _ in range(20):
            at = draw.integers(0, 1000, 64)
            buffer.update_weight(at, draw.random(64).astype("f4") * 5)

    def drawn(buffer: Any) -> str:
        np.random.seed(11)
        batch, indices = buffer.sample(10_000)
        found = hashed([indices, batch.weight, batch.obs, buffer._max_prio, buffer._min_prio])
        buffer.update_weight(indices[:64], np.linspace(0.1, 2, 64).astype("f4"))
        return found

    buffer, _, params = filled()
    fill(buffer, params)
    adoption = adopt(buffer, keeps_rows=True)
    options: dict[str, Any] = {"budget": None, "keep_last": 1}
    with pyengine.SnapshotEngine(tmp_path / "run", **options) as engine:
        engine.track(**adoption.objects, **adoption.late_objects())
        engine.restore()
        engine.snapshot(1).wait(60)
        first = drawn(buffer)
        layout = adoption.late_objects()["replay_layout"].get_state()

    def resumed() -> tuple[Any, Any, pyengine.SnapshotEngine]:
        again, _, _ = filled()
        adopted = adopt(again, keeps_rows=True)
        adopted.lay_out(layout)
        engine = pyengine.SnapshotEngine(tmp_path / "run", **options)
        engine.track(**adopted.objects, **adopted.late_objects())
        assert engine.restore()
        return again, adopted, engine

    again, adopted, engine = resumed()
    with engine:
        assert drawn(again) == first
        engine.snapshot(2).wait(60)
        shutil.rmtree(pyengine.open_run(tmp_path / "run").snapshots[0].path)
        second = drawn(again)
    last, adopted_last, engine = resumed()
    with engine:
        assert hashed(buffer_parts(last)["rows"]) == hashed(buffer_parts(buffer)["rows"])
        assert drawn(last) == second
    for one in (adoption, adopted, adopted_last):
        one.release()


def test_statistics_of_observations_outlive_a_reset(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train("SAC", Start(tmp_path / "run", stop_at=90), before=_opaque_inside)
    saved = pyengine.load(snapshots(tmp_path / "run")[-1].path, only=["normalizer"])["normalizer"]
    seen: list[Any] = []

    def look(algorithm: Any, params: Any) -> None:
        _opaque_inside(algorithm, params)

        def training_fn(epoch: int, env_step: int) -> None:
            seen.append(hashed(vars(params.training_collector.env.get_obs_rms())))

        params.training_fn = training_fn

    train("SAC", Start(tmp_path / "run"), before=look)
    numbers = saved["training"][0]
    expected = {**_fresh_statistics(), **numbers}
    assert seen[0] == hashed(expected)


def _opaque_inside(algorithm: Any, params: Any) -> None:
    for worker in params.training_collector.env.venv.workers:
        worker.env.unwrapped.hidden = open("/dev/null")  # noqa: SIM115  a file stays open for good


def _fresh_statistics() -> dict[str, Any]:
    from tianshou.utils import RunningMeanStd

    return vars(RunningMeanStd())


def test_settings_are_the_scripts_and_what_training_changed_the_snapshots(tmp_path: Path) -> None:
    train(NAME, Start(tmp_path / "run", epochs=1))

    def other(algorithm: Any, params: Any) -> None:
        algorithm.gamma = 0.5
        params.batch_size = 4

    ended = train(NAME, Start(tmp_path / "run", epochs=1), before=other)
    assert ended.algorithm.gamma == 0.5
    assert ended.algorithm._iter == parts(ended)["attributes"]["_iter"] == 20


def test_costs_are_told_by_the_run(tmp_path: Path) -> None:
    ended = train(NAME, Start(tmp_path / "run", epochs=1, options={**QUICK, "verbose": 0}))
    metrics = snapshots(tmp_path / "run")[-1].metrics
    assert set(metrics) == {"test/best_reward", "test/reward"}
    assert metrics["test/best_reward"] == ended.stats.best_reward
