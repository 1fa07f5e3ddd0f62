"""What each adapter says of a run that goes on, in manifest and report, and when it says less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pyengine
from pyengine.errors import ReplacedObjectError
from pyengine.format.levels import Level

QUICK = {"every_steps": 20, "budget": None, "when_busy": "wait"}


def _newest(run_dir: Path) -> pyengine.SnapshotInfo:
    return pyengine.open_run(run_dir).snapshots[-1]


class TestStableBaselines3:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("stable_baselines3")

    @staticmethod
    def learn(run_dir: Path, steps: int, *, kind: Any = None, **settings: Any) -> Any:
        import stable_baselines3 as sb3
        from sb3_models import OFF_POLICY, cartpole, make

        from pyengine.integrations.sb3 import SnapshotCallback

        model = make(kind or sb3.DQN, settings.pop("venv", None) or cartpole(), **OFF_POLICY)
        own = SnapshotCallback(run_dir, **QUICK, verbose=0)
        model.learn(steps, callback=own)
        return model, own.report

    def test_a_run_is_exact_and_stays_so(self, tmp_path: Path) -> None:
        self.learn(tmp_path / "run", 40)
        assert _newest(tmp_path / "run").level == Level("exact")
        _, report = self.learn(tmp_path / "run", 80)
        assert report.level == Level("exact")

    def test_environments_that_are_reset_make_it_partial(self, tmp_path: Path) -> None:
        import gymnasium as gym
        from stable_baselines3.common.vec_env import DummyVecEnv

        def opaque() -> Any:
            env = gym.make("CartPole-v1")
            env.unwrapped.hidden = open("/dev/null")  # type: ignore[attr-defined]  # noqa: SIM115
            return env

        self.learn(tmp_path / "run", 40, venv=DummyVecEnv([opaque]))
        level = _newest(tmp_path / "run").level
        assert level.name == "partial"
        assert [reason.partition(": reset")[0] for reason in level.reasons] == ["environment"]

    def test_a_network_beside_the_policy_is_saved_too(self, tmp_path: Path) -> None:
        import stable_baselines3 as sb3

        class Curious(sb3.DQN):
            """Has a network of its own that no state_dict of the library's names."""

            def _setup_model(self) -> None:
                super()._setup_model()
                self.novelty = torch.nn.Linear(4, 1)

        model, _ = self.learn(tmp_path / "run", 40, kind=Curious)
        saved = pyengine.load(tmp_path / "run", only=["model.novelty"])["model.novelty"]
        assert torch.equal(saved["weight"], model.novelty.weight)
        with torch.no_grad():
            model.novelty.weight.zero_()
        again, _ = self.learn(tmp_path / "run", 60, kind=Curious)
        assert torch.equal(again.novelty.weight, saved["weight"])

    def test_a_buffer_that_was_loaded_on_the_way_is_a_replaced_object(self, tmp_path: Path) -> None:
        import stable_baselines3 as sb3
        from sb3_models import OFF_POLICY, cartpole, make
        from stable_baselines3.common.callbacks import BaseCallback

        from pyengine.integrations.sb3 import SnapshotCallback

        other = make(sb3.DQN, cartpole(), **OFF_POLICY)
        other.learn(20)
        other.save_replay_buffer(tmp_path / "rows.pkl")

        class Load(BaseCallback):
            def _on_step(self) -> bool:
                if self.num_timesteps == 30:
                    self.model.load_replay_buffer(tmp_path / "rows.pkl")  # type: ignore[attr-defined]
                return True

        model = make(sb3.DQN, cartpole(), **OFF_POLICY)
        own = SnapshotCallback(tmp_path / "run", **QUICK, verbose=0)
        with pytest.raises(ReplacedObjectError, match="load_replay_buffer") as raised:
            model.learn(80, callback=[own, Load()])
        assert raised.value.component == "replay"


class TestTianshou:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("tianshou")

    @pytest.mark.parametrize("can_be_saved", [True, False])
    def test_a_run_is_exact_at_the_beginning_of_a_step_with_environments_that_can_be_saved(
        self, tmp_path: Path, can_be_saved: bool
    ) -> None:
        from tianshou_runs import Start, train

        def opaque(algorithm: Any, params: Any) -> None:
            for worker in params.training_collector.env.workers:
                worker.env.unwrapped.hidden = open("/dev/null")  # noqa: SIM115

        for epochs in (1, 2):
            before = (lambda *_: None) if can_be_saved else opaque
            train("prioritized DQN", Start(tmp_path / "a", epochs=epochs), before=before)
        info = _newest(tmp_path / "a" / "run")
        assert info.level.condition is not None
        assert "epoch borders included" in info.level.condition
        assert info.level.name == ("exact" if can_be_saved else "partial")
        names = [reason.partition(":")[0] for reason in info.level.reasons]
        assert names == ([] if can_be_saved else ["training_environment"])
        left_out = {one.name: one.harmless for one in info.components if one.status != "saved"}
        assert {name for name, harmless in left_out.items() if harmless} == {
            "logger",
            "test_replay",
        }


class TestTorchRL:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("torchrl")

    @pytest.mark.parametrize("prefetch", [None, 2])
    def test_a_run_is_exact_without_prefetch_and_says_what_it_is_with_it(
        self, tmp_path: Path, prefetch: int | None
    ) -> None:
        from torchrl.collectors import Collector
        from torchrl.data import TensorDictReplayBuffer
        from torchrl.envs import GymEnv
        from torchrl_runs import QUICK as SETTINGS

        from pyengine.integrations.torchrl import RingStorage, TrainingRun

        ahead = {"prefetch": prefetch} if prefetch else {}
        buffer = TensorDictReplayBuffer(storage=RingStorage(64), batch_size=8, **ahead)
        env = GymEnv("CartPole-v1", categorical_action_encoding=True)
        collector = Collector(env, None, frames_per_batch=8, total_frames=16)
        with TrainingRun(
            tmp_path / "run", replay_buffer=buffer, collector=collector, **SETTINGS
        ) as run:
            run.restore()
            for data in collector:
                buffer.extend(data)
                run.tick()
            level = run.snapshot().wait(60).level
            assert level.name == run.level == ("state-complete" if prefetch else "exact")
            if prefetch:
                assert level.condition is None
                assert level.reasons == run.reasons
            else:
                assert level == Level("exact", "without prefetch and with one collector")
