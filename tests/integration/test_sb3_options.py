"""Options that people know from CheckpointCallback and EvalCallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3 as sb3
import torch
from processes import await_writers_end
from sb3_models import OFF_POLICY, cartpole, make
from sb3_runs import Start, counters, csv_log, hashed, rows, run_phases
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from pyengine import open_run
from pyengine.errors import ConfigError, ModelStateError, RunBusyError, TruncatedLogError
from pyengine.integrations.sb3 import SnapshotCallback, append_logger

QUICK = {"every_steps": 20, "budget": None, "when_busy": "wait", "verbose": 0}


def dqn(venv: VecEnv | None = None, **settings: Any) -> Any:
    return make(sb3.DQN, venv or cartpole(), **{**OFF_POLICY, **settings})


def steps_of(run_dir: Path) -> list[int]:
    return [snapshot.global_step for snapshot in open_run(run_dir).snapshots]


class Stop(BaseCallback):
    """Stops training at a step; notes observations when the first rollout starts."""

    first: Any = None

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at

    def _on_rollout_start(self) -> None:
        if self.first is None:
            self.first = self.model._last_obs.copy()

    def _on_step(self) -> bool:
        return self.num_timesteps != self.at


class Scores(BaseCallback):
    """Notes the newest evaluation whenever a rollout starts, as a snapshot does."""

    def __init__(self, evaluation: EvalCallback) -> None:
        super().__init__()
        self.evaluation = evaluation
        self.seen: list[tuple[int, float]] = []

    def _on_rollout_start(self) -> None:
        self.seen.append((self.model.num_timesteps, self.evaluation.last_mean_reward))

    def _on_step(self) -> bool:
        return True


def test_a_name_prefix_is_a_run_of_its_own(tmp_path: Path) -> None:
    for prefix in ("first", "second"):
        callback = SnapshotCallback(tmp_path, name_prefix=prefix, **QUICK)
        dqn().learn(40, callback=callback)
        assert callback.report is not None
        assert not callback.report
        assert steps_of(tmp_path / prefix) == [20, 40]
    for prefix in ("a/b", "..", "."):
        with pytest.raises(ConfigError, match="plain name"):
            SnapshotCallback(tmp_path, name_prefix=prefix)


def test_the_newest_and_the_best_snapshots_stay(tmp_path: Path) -> None:
    evaluation = EvalCallback(cartpole(), eval_freq=20, n_eval_episodes=1, verbose=0)
    settings = {**QUICK, "every_steps": 12, "keep_last": 2, "keep_best": "eval/mean_reward"}
    own = SnapshotCallback(tmp_path / "run", **settings)
    scores = Scores(evaluation)
    dqn().learn(192, callback=[own, evaluation, scores])
    found = open_run(tmp_path / "run").snapshots
    assert [snapshot.global_step for snapshot in found][-2:] == [180, 192]
    best = max(score for step, score in scores.seen if step and step % 12 == 0)
    assert max(snapshot.metrics["eval/mean_reward"] for snapshot in found) == best
    assert len(found) <= 3


@pytest.mark.parametrize("verbose", [0, 1])
def test_verbose_says_what_is_not_saved(tmp_path: Path, capsys: Any, verbose: int) -> None:
    model = dqn()
    model.users_object = object()
    model.users_number = 7
    own = SnapshotCallback(tmp_path / "run", **{**QUICK, "verbose": verbose})
    model.learn(40, callback=own)
    text = capsys.readouterr().out
    assert ("NOT saved: users_object: " in text) is bool(verbose)
    assert "users_number" not in text


def test_costs_are_logged(tmp_path: Path) -> None:
    model = dqn()
    model.set_logger(append_logger(tmp_path / "logs", ["csv"]))
    model.learn(240, log_interval=2, callback=SnapshotCallback(tmp_path / "run", **QUICK))
    text = (tmp_path / "logs" / "progress.csv").read_text()
    header = text.splitlines()[0].split(",")
    for name in ("stall_seconds", "persist_seconds", "bytes_written", "skipped"):
        assert f"snapshot/{name}" in header
    assert "snapshot/" not in str(csv_log(tmp_path / "logs" / "progress.csv"))


def monitored(path: Path, *, override: bool) -> VecEnv:
    def make_env() -> Any:
        env = cartpole().envs[0].unwrapped
        return Monitor(env, str(path), override_existing=override)

    return DummyVecEnv([make_env])


def test_logs_are_appended_to(tmp_path: Path) -> None:
    lengths = []
    for steps in (120, 240):
        model = dqn(monitored(tmp_path / "monitor", override=steps == 120))
        model.set_logger(append_logger(tmp_path / "logs", ["csv"]))
        model.learn(steps, log_interval=1, callback=SnapshotCallback(tmp_path / "run", **QUICK))
        model.logger.close()
        lengths.append(len(csv_log(tmp_path / "logs" / "progress.csv")))
    assert 0 < lengths[0] < lengths[1]
    lines = (tmp_path / "monitor.monitor.csv").read_text().splitlines()
    assert sum(line.startswith("#") for line in lines) == 1
    assert len(lines) - 2 == len(model.ep_info_buffer) == lengths[1]


@pytest.mark.parametrize("which", ["monitor", "csv"])
def test_a_log_that_was_begun_anew_is_refused(tmp_path: Path, which: str) -> None:
    for steps in (120, 240):
        is_second = steps == 240
        override = not is_second or which == "monitor"
        model = dqn(monitored(tmp_path / "monitor", override=override))
        if is_second and which == "csv":
            model.set_logger(configure(str(tmp_path / "logs"), ["csv"]))
        else:
            model.set_logger(append_logger(tmp_path / "logs", ["csv"]))
        callback = SnapshotCallback(tmp_path / "run", **QUICK)
        if not is_second:
            model.learn(steps, log_interval=1, callback=callback)
            before = steps_of(tmp_path / "run")
            continue
        with pytest.raises(TruncatedLogError) as caught:
            model.learn(steps, log_interval=1, callback=callback)
        assert which in str(caught.value).split(" had ")[0]
        assert caught.value.got < caught.value.expected
    assert steps_of(tmp_path / "run") == before


def test_a_run_that_a_callback_stopped_begins_an_episode_anew(tmp_path: Path, capsys: Any) -> None:
    own = SnapshotCallback(tmp_path / "run", **{**QUICK, "verbose": 1})
    dqn(buffer_size=400).learn(240, callback=[own, Stop(at=53)])
    last = open_run(tmp_path / "run").snapshots[-1]
    assert last.global_step == 53
    assert last.metrics["environment_reset"] == 1
    assert "reset with seed" not in capsys.readouterr().out

    stop = Stop()
    model = dqn(buffer_size=400)
    own = SnapshotCallback(tmp_path / "run", **{**QUICK, "verbose": 1})
    model.learn(240, callback=[own, stop])
    assert "a callback stopped the run within a step" in capsys.readouterr().out
    assert model.num_timesteps == 241, "rollouts of four steps go on from 53"
    assert model.replay_buffer.size() == 240, "the last step before the stop was not stored"
    assert abs(stop.first).max() <= 0.05, "CartPole begins near the middle"
    assert steps_of(tmp_path / "run")[-1] == 241


def test_several_calls_of_learn_are_one_run(tmp_path: Path) -> None:
    def train(run_dir: Path, *totals: int, until: int | None = None) -> Any:
        model = dqn()
        with SnapshotCallback(run_dir, **QUICK) as run:
            for total in totals:
                run.learn(model, total, callback=Stop(at=until))
                if until is not None:
                    break
        return model

    whole = train(tmp_path / "whole", 120, 240)
    train(tmp_path / "halves", 120)
    resumed = train(tmp_path / "halves", 120, 240)
    for model in (whole, resumed):
        assert model.num_timesteps == 240
    assert counters(resumed) == counters(whole)
    assert hashed(rows(resumed)) == hashed(rows(whole))
    assert hashed(resumed.policy.state_dict()) == hashed(whole.policy.state_dict())
    with SnapshotCallback(tmp_path / "whole", **QUICK) as run:
        done = dqn()
        run.learn(done, 120)
        assert done.num_timesteps == 240, "the total is absolute and past"


@pytest.mark.parametrize(("name", "kill_at"), [("DQN", 230), ("PPO", 50), ("PPO", 130)])
def test_a_kill_in_any_call_of_learn_is_made_up_for(
    start: Any, token: str, tmp_path: Path, name: str, kill_at: int
) -> None:
    whole = start(run_phases, name, Start(tmp_path / "whole"), 130, 260)
    killed = start(run_phases, name, Start(tmp_path / "killed", kill_at=kill_at), 130, 260)
    assert killed.join() == -9
    await_writers_end(token)
    resumed = start(run_phases, name, Start(tmp_path / "killed"), 130, 260)
    assert resumed.receive("end") == whole.receive("end")


def test_a_run_at_its_total_is_left_as_it_is(tmp_path: Path) -> None:
    for _ in range(2):
        model = dqn(make_vec_env("CartPole-v1", 1, seed=5))
        model.learn(40, callback=SnapshotCallback(tmp_path / "run", **QUICK))
        assert model.num_timesteps == 40
    assert steps_of(tmp_path / "run") == [20, 40]


@pytest.mark.parametrize(
    "settings",
    [
        {"every_steps": 0},
        {"keep_last": 0},
        {"budget": 2},
        {"every_step": 10},
        {"on_damage": "drop"},
        {"strict": "no"},
        {"when_busy": "never"},
        {"drain_wait": -1},
        {"keep_best": 5},
        {"algorithm": "mine"},
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        SnapshotCallback(tmp_path / "run", **settings)


def test_a_resumed_run_says_where_it_goes_on_and_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for total in (32, 40):
        model = dqn()
        model.thing = lambda: 1
        model.learn(total, callback=SnapshotCallback(tmp_path / "run", every_steps=20))
    assert "goes on after 32 steps" in capsys.readouterr().out
    excluded = {
        record.name: record.reason
        for record in open_run(tmp_path / "run").snapshots[-1].components
        if record.status == "excluded"
    }
    assert "cannot be saved" in excluded["attribute thing"]


def test_a_cell_that_was_interrupted_can_be_run_again(tmp_path: Path) -> None:
    class Interrupt(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 60:
                raise KeyboardInterrupt
            return True

    kept = []
    for others in ([Interrupt()], []):
        model = dqn()
        callback = SnapshotCallback(tmp_path / "run", **QUICK)
        kept.append(callback)  # as a notebook keeps its variables
        if others:
            with pytest.raises(KeyboardInterrupt):
                model.learn(100, callback=[callback, *others])
        else:
            model.learn(100, callback=callback)
            assert callback.report.global_step == 40
    assert steps_of(tmp_path / "run")[-1] == 100


def test_a_run_whose_learn_is_under_way_is_busy(tmp_path: Path) -> None:
    class Second(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 60:
                with pytest.raises(RunBusyError):
                    dqn().learn(100, callback=SnapshotCallback(tmp_path / "run", **QUICK))
            return True

    model = dqn()
    model.learn(100, callback=[SnapshotCallback(tmp_path / "run", **QUICK), Second()])
    assert steps_of(tmp_path / "run")[-1] == 100


def test_phases_are_of_one_model_and_go_through_the_run(tmp_path: Path) -> None:
    model = dqn()
    with SnapshotCallback(tmp_path / "run", **QUICK) as run:
        run.learn(model, 40)
        with pytest.raises(ModelStateError, match="saves another model"):
            run.learn(dqn(), 80)
        with pytest.raises(ModelStateError, match=r"run\.learn"):
            model.learn(20, callback=run)


@pytest.mark.parametrize("part", ["policy", "optimizer"])
def test_a_part_that_was_replaced_is_found_before_it_is_missed(tmp_path: Path, part: str) -> None:
    class Replace(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 50 and part == "policy":
                self.model.policy = dqn().policy
            elif self.num_timesteps == 50:
                parameters = self.model.policy.q_net.parameters()
                self.model.policy.optimizer = torch.optim.Adam(parameters)
            return True

    replaced = pytest.raises(ConfigError, match=rf"{part} was replaced")
    with SnapshotCallback(tmp_path / "run", **QUICK) as run, replaced:
        run.learn(dqn(), 100, callback=Replace())
    assert steps_of(tmp_path / "run")[-1] == 40
