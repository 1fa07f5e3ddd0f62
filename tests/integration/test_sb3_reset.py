"""Environments that cannot be saved are reset, and nobody can mistake that for going on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3 as sb3
from gymnasium.wrappers import TimeLimit
from sb3_ledgers import GAMMA, GoalLedger, Ledger, check_batch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

from pyengine import open_run
from pyengine.integrations.gymnasium import StatefulEnv
from pyengine.integrations.sb3 import SnapshotCallback
from pyengine.integrations.sb3.buffers import Adoption
from pyengine.integrations.sb3.buffers.marks import Marks
from pyengine.integrations.sb3.buffers.rows import MARKED, BufferRows

QUICK = {"every_steps": 20, "budget": None, "when_busy": "wait"}
SETTINGS: dict[str, Any] = {
    "policy": "MlpPolicy", "learning_starts": 10, "batch_size": 8, "buffer_size": 400, "seed": 3,
    "gamma": GAMMA, "train_freq": 16, "policy_kwargs": {"net_arch": [8]}, "device": "cpu",
}  # fmt: skip
HER = {
    "policy": "MultiInputPolicy",
    "replay_buffer_class": sb3.HerReplayBuffer,
    "learning_starts": 70,
}
OVERLAP = {
    "optimize_memory_usage": True,
    "replay_buffer_kwargs": {"handle_timeout_termination": False},
}
BUFFERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (Ledger, {}),
    "overlap": (Ledger, OVERLAP),
    "n-step": (Ledger, {"n_steps": 3}),
    "HER": (GoalLedger, HER),
}


def ledgers(kind: Any = Ledger, count: int = 2) -> VecEnv:
    return make_vec_env(lambda: TimeLimit(kind(), 30), count, seed=0)


def learn(
    run_dir: Path, steps: int, venv: VecEnv, *others: BaseCallback, **settings: Any
) -> tuple[Any, SnapshotCallback]:
    """Train a tiny model; return it and its callback."""
    model = sb3.SAC(**{"env": venv, **SETTINGS, **settings})
    own = SnapshotCallback(run_dir, **QUICK)
    model.learn(steps, callback=[own, *others])
    return model, own


def reset_seeds(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"environments: reset with seed (\d+)", text)]


def test_a_reset_is_printed_and_stands_in_the_manifest(tmp_path: Path, capsys: Any) -> None:
    learn(tmp_path / "run", 40, ledgers(count=8))
    assert "cannot be saved and are reset on resume" in capsys.readouterr().out
    snapshot = open_run(tmp_path / "run").snapshots[-1]
    record = next(one for one in snapshot.components if one.name == "environment")
    assert record.status == "excluded"
    assert record.reason.startswith("reset: ")
    assert "socket" in record.reason
    assert record.reason.endswith("and 5 more")


def test_each_start_has_a_seed_of_its_own(tmp_path: Path, capsys: Any) -> None:
    run_dir, copy = tmp_path / "run", tmp_path / "copy"
    model, _ = learn(run_dir, 40, ledgers())
    assert not reset_seeds(capsys.readouterr().out)
    shutil.copytree(run_dir, copy)
    seeds, observations = [], []
    for steps, path in ((80, run_dir), (80, copy), (120, run_dir)):
        model, _ = learn(path, steps, ledgers())
        seeds += reset_seeds(capsys.readouterr().out)
        observations.append(model._last_obs)
    assert seeds[0] == seeds[1] != seeds[2]
    assert np.array_equal(observations[0], observations[1])
    learn(tmp_path / "other", 40, ledgers(), seed=4)
    learn(tmp_path / "other", 80, ledgers(), seed=4)
    assert reset_seeds(capsys.readouterr().out)[-1] not in seeds


class _Statistics(BaseCallback):
    """Notes the normaliser's statistics when the first rollout starts."""

    found: Any = None

    def _on_rollout_start(self) -> None:
        if self.found is None:
            normalizer = self.model.get_vec_normalize_env()
            assert normalizer is not None
            self.found = [
                (rms.mean.copy(), rms.var.copy(), rms.count)
                for rms in (normalizer.obs_rms, normalizer.ret_rms)
            ]

    def _on_step(self) -> bool:
        return True


def test_normalisers_outlive_a_reset(tmp_path: Path) -> None:
    model, _ = learn(tmp_path / "run", 64, VecNormalize(ledgers()))
    normalizer = model.get_vec_normalize_env()
    expected = [
        (rms.mean.copy(), rms.var.copy(), rms.count)
        for rms in (normalizer.obs_rms, normalizer.ret_rms)
    ]
    statistics = _Statistics()
    learn(tmp_path / "run", 96, VecNormalize(ledgers()), statistics)
    for found, wanted in zip(statistics.found, expected, strict=True):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("buffer", ["overlap", "n-step", "HER"])
def test_rows_would_join_episodes_that_nobody_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: str
) -> None:
    monkeypatch.setattr(Adoption, "close_open_episode", lambda self: None)
    with pytest.raises(AssertionError, match=r"another episode|joins two|allclose"):
        _train_in_three_starts(tmp_path / "run", buffer)


@pytest.mark.parametrize("buffer", ["overlap", "n-step"])
def test_rows_would_join_episodes_if_a_restore_forgot_what_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: str
) -> None:
    def forget(self: Any, state: Any) -> None:
        set_state(self, {**state, "marks": {name: Marks(name).get_state() for name in MARKED}})

    set_state = BufferRows.set_state
    monkeypatch.setattr(BufferRows, "set_state", forget)
    with pytest.raises(AssertionError, match=r"joins two|allclose"):
        _train_in_three_starts(tmp_path / "run", buffer)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_no_sampled_row_joins_two_episodes(tmp_path: Path, buffer: str) -> None:
    model = _train_in_three_starts(tmp_path / "run", buffer)
    assert model.num_timesteps >= 140
    assert model.replay_buffer.size() * model.n_envs == model.num_timesteps


def _train_in_three_starts(run_dir: Path, buffer: str) -> Any:
    kind, settings = BUFFERS[buffer]
    for steps in (50, 90, 140):
        venv = ledgers(kind, 1 if buffer == "overlap" else 2)
        model, _ = learn(run_dir, steps, venv, **settings)
        check_batch(model.replay_buffer.sample(2000))
    return model


class _Fork(BaseCallback):
    """Makes environments in forked workers while snapshots are being taken."""

    def _on_step(self) -> bool:
        if self.num_timesteps == 32:
            venv = make_vec_env(
                Ledger, 1, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"}
            )
            venv.reset()
            venv.step(np.zeros((1, 1), np.float32))
            venv.close()
        return True


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes_of_any_kind_go_with_snapshots(
    tmp_path: Path, capsys: Any, method: str
) -> None:
    starts = (48,) if method == "spawn" else (48, 96)  # each spawned worker imports everything
    for steps in starts:
        venv = make_vec_env(
            Ledger, 1 if method == "spawn" else 2, seed=0, vec_env_cls=SubprocVecEnv,
            vec_env_kwargs={"start_method": method},
        )  # fmt: skip
        model, _ = learn(tmp_path / "run", steps, venv, _Fork())
        venv.close()
        check_batch(model.replay_buffer.sample(1000))
    text = capsys.readouterr().out
    assert "StatefulEnv" in text
    assert len(reset_seeds(text)) == len(starts) - 1
    assert model.num_timesteps == starts[-1]


def test_environments_that_can_be_saved_by_now_are_reset_once(tmp_path: Path, capsys: Any) -> None:
    def make(wrap: Any) -> VecEnv:
        return make_vec_env(
            "Pendulum-v1", 1, seed=0, vec_env_cls=SubprocVecEnv, wrapper_class=wrap,
            vec_env_kwargs={"start_method": "fork"},
        )  # fmt: skip

    for steps, wrap in ((48, None), (96, StatefulEnv), (144, StatefulEnv)):
        venv = make(wrap)
        model, own = learn(tmp_path / "run", steps, venv)
        venv.close()
        assert len(reset_seeds(capsys.readouterr().out)) == (1 if steps == 96 else 0)
    assert own.report.component("environment").found == "restored"
    assert model.num_timesteps == 144
