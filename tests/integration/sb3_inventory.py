"""What must be restored for a resumed run to go on, item by item, and how to leave one out.

An item is reached by a path from a `Scene`; numbers in it are indices. Left out means: after the
restore it has the value that the freshly made script had.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sb3_models import MODELS, cartpole
from sb3_runs import Start, digest, hashed, train
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EveryNTimesteps

from pyengine.integrations.sb3.run import ModelRun

MISSING = "missing"


class Count(BaseCallback):
    """Counts its calls, and on the model too."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = 0

    def _on_training_start(self) -> None:
        self.seen: list[int] = []

    def _on_step(self) -> bool:
        self.tally += 1
        self.seen.append(self.num_timesteps)
        self.model.users_tally = getattr(self.model, "users_tally", 0) + 1
        return True


class Change(BaseCallback):
    """Changes once, at step 60, what a script may change while it runs."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.change = change

    def _on_step(self) -> bool:
        if self.num_timesteps == 60:
            self.change(self.model)
        return True


def _change_entropy(model: Any) -> None:
    model.ent_coef_tensor.mul_(0.5)


def _stop_normalizing(model: Any) -> None:
    model.env.norm_reward = False


def siblings(name: str) -> tuple[BaseCallback, ...]:
    """Return the callbacks that run beside ours with a model of MODELS, made anew."""
    if name == "DQN":
        evaluation = EvalCallback(cartpole(), eval_freq=40, n_eval_episodes=2, verbose=0)
        return Count(), EveryNTimesteps(50, Count()), evaluation
    if name == "SAC with fixed entropy":
        return (Change(_change_entropy),)
    return (Change(_stop_normalizing),) if name == "TD3" else ()


@dataclass
class Scene:
    """What a run consists of, as paths begin."""

    model: Any
    callbacks: tuple[BaseCallback, ...]

    @property
    def numpy_generator(self) -> Any:
        return np.random.get_state()

    @numpy_generator.setter
    def numpy_generator(self, state: Any) -> None:
        np.random.set_state(state)

    @property
    def torch_generator(self) -> Any:
        return torch.get_rng_state().numpy()

    @torch_generator.setter
    def torch_generator(self, state: Any) -> None:
        torch.set_rng_state(torch.from_numpy(state))

    @property
    def noises(self) -> Any:
        return self.model.action_noise.noises

    @property
    def stack(self) -> Any:
        """The outermost VecEnv."""
        return self.model.env

    @property
    def buffers(self) -> Any:
        """What a DummyVecEnv returned last."""
        inner = self.model.env
        while hasattr(inner, "venv"):
            inner = inner.venv
        return inner

    @property
    def env(self) -> Any:
        """The first environment, Monitor outermost."""
        return self.buffers.envs[0]


@dataclass(frozen=True)
class Item:
    """One thing to restore, with the model that shows it."""

    name: str
    model: str
    path: str
    decides: bool = True
    """Whether the run's end depends on it; if not, only its own value is compared."""

    def get(self, scene: Scene) -> Any:
        """Return its value now, MISSING where it has none yet."""
        value = self._live(scene)
        if isinstance(value, torch.Tensor):
            return value.detach().clone()
        return copy.deepcopy(value.state_dict() if hasattr(value, "state_dict") else value)

    def put(self, scene: Scene, value: Any) -> None:
        """Give it a value that `get` returned."""
        owner, name = self._place(scene)
        live = self._live(scene)
        if isinstance(live, torch.Tensor):
            live.data.copy_(value)
        elif hasattr(live, "load_state_dict"):
            live.load_state_dict(copy.deepcopy(value))
        elif value is not MISSING:
            setattr(owner, name, copy.deepcopy(value))
        elif live is not MISSING:
            delattr(owner, name)

    def _live(self, scene: Scene) -> Any:
        owner, name = self._place(scene)
        return owner[int(name)] if name.isdigit() else getattr(owner, name, MISSING)

    def _place(self, scene: Scene) -> tuple[Any, str]:
        owner: Any = scene
        *steps, name = self.path.split(".")
        for step in steps:
            owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
        return owner, name


ITEMS = [
    Item("policy", "DQN", "model.q_net"),
    Item("target network", "DQN", "model.q_net_target"),
    Item("optimizer", "DQN", "model.policy.optimizer"),
    Item("num_timesteps", "DQN", "model.num_timesteps"),
    Item("_episode_num", "DQN", "model._episode_num"),
    Item("_n_updates", "DQN", "model._n_updates"),
    Item("_n_calls", "DQN", "model._n_calls"),
    Item("exploration_rate", "DQN", "model.exploration_rate", decides=False),
    Item("progress", "DQN", "model._current_progress_remaining", decides=False),
    Item("last observation", "DQN", "model._last_obs"),
    Item("episodes' returns", "DQN", "model.ep_info_buffer"),
    Item("episodes' success", "DQN", "model.ep_success_buffer"),
    Item("action space's generator", "DQN", "model.action_space._np_random"),
    Item("NumPy's generator", "DQN", "numpy_generator"),
    Item("torch's generator", "PPO", "torch_generator"),
    Item("classic control", "DQN", "env.unwrapped.state"),
    Item("environment's generator", "DQN", "env.unwrapped._np_random"),
    Item("Monitor", "DQN", "env.env.rewards"),
    Item("count of a callback", "DQN", "callbacks.0.tally"),
    Item("list made in on_training_start", "DQN", "callbacks.0.seen"),
    Item("user's attribute of the model", "DQN", "model.users_tally"),
    Item("EveryNTimesteps", "DQN", "callbacks.1.last_time_trigger"),
    Item("callback within EveryNTimesteps", "DQN", "callbacks.1.callback.tally"),
    Item("EvalCallback's best", "DQN", "callbacks.2.best_mean_reward", decides=False),
    Item("EvalCallback's calls", "DQN", "callbacks.2.n_calls"),
    # An evaluation that ends before the next reset draws nothing: it decides, but not always.
    Item(
        "EvalCallback's env",
        "DQN",
        "callbacks.2.eval_env.envs.0.unwrapped._np_random",
        decides=False,
    ),
    Item("actor's optimizer", "SAC", "model.actor.optimizer"),
    Item("critic's optimizer", "SAC", "model.critic.optimizer"),
    Item("entropy's optimizer", "SAC", "model.ent_coef_optimizer"),
    Item("log_ent_coef", "SAC", "model.log_ent_coef"),
    Item("critic target", "SAC", "model.critic_target"),
    Item("ent_coef_tensor", "SAC with fixed entropy", "model.ent_coef_tensor"),
    Item("actor target", "TD3", "model.actor_target"),
    Item("last original observation", "TD3", "model._last_original_obs"),
    Item("action noise of env 0", "TD3", "noises.0.noise_prev"),
    Item("action noise of env 1", "TD3", "noises.1.noise_prev"),
    Item("VecNormalize.obs_rms", "TD3", "stack.obs_rms"),
    Item("VecNormalize.ret_rms", "TD3", "stack.ret_rms"),
    Item("VecNormalize.returns", "TD3", "stack.returns"),
    Item("VecNormalize.old_obs", "TD3", "stack.old_obs", decides=False),
    Item("VecNormalize.old_reward", "TD3", "stack.old_reward", decides=False),
    Item("VecNormalize's flags", "TD3", "stack.norm_reward"),
    Item("VecFrameStack", "TD3", "stack.venv.stacked_obs.stacked_obs"),
    Item("VecMonitor", "TD3", "stack.venv.venv.episode_returns"),
    Item("DummyVecEnv's buffers", "TD3", "buffers.buf_obs", decides=False),
    Item("TimeLimit", "TD3", "env.env._elapsed_steps"),
    Item("normalized observation", "PPO", "model._last_obs"),
    Item("gSDE's matrix", "A2C", "model.policy.action_dist.exploration_mat", decides=False),
    Item("gSDE's matrices", "A2C", "model.policy.action_dist.exploration_matrices"),
    Item("RMSprop", "A2C", "model.policy.optimizer"),
]
if "CrossQ" in MODELS:
    ITEMS += [
        Item("_last_episode_starts", "RecurrentPPO", "model._last_episode_starts"),
        Item("LSTM states", "RecurrentPPO", "model._last_lstm_states"),
        Item("BatchNorm", "CrossQ", "model.critic.qf0.0.ra_mean"),
    ]


SHOWN_BY = {
    "policy": "DQN", "optimizer": "DQN", "model": "DQN", "exploration": "TD3", "callbacks": "DQN",
    "run": "PPO", "logger": "PPO", "environment": "DQN", "process_rng": "DQN", "replay": "DQN",
    "replay_episodes": "HER", "replay_infos": "HER", "actor.optimizer": "SAC",
    "critic.optimizer": "SAC", "ent_coef_optimizer": "SAC", "log_ent_coef": "SAC",
    "ent_coef_tensor": "SAC with fixed entropy",
}  # fmt: skip
"""Each component that an engine gets, with a model whose run goes another way without it."""

UNDECIDED = {
    "logs": "compared before a restore, never put back",
    "normalizer": "the environments hold the statistics too; they matter where those are reset",
    "replay_index": "marks and the newest next observation: tests of resets and seams show them",
}


def items_of(name: str) -> list[Item]:
    """Return the items that a model of MODELS shows."""
    return [item for item in ITEMS if item.model == name]


def leave_out(item: Item, callbacks: tuple[BaseCallback, ...], patch: Any) -> list[str]:
    """Make restores leave `item` as the script made it; return hashes: as made, as restored."""
    restore, rollout_starts = ModelRun.restore, ModelRun.rollout_starts
    hashes: list[str] = []
    fresh: list[Any] = []

    def without(self: ModelRun, *, eager: bool) -> Any:
        scene = Scene(self._model, callbacks)
        fresh.append(item.get(scene))
        report = restore(self, eager=eager)
        hashes.extend((hashed(fresh[0]), hashed(item.get(scene))))
        item.put(scene, fresh[0])
        return report

    def without_again(self: ModelRun) -> bool:
        scene = Scene(self._model, callbacks)
        by_then = item.get(scene) if fresh[0] is MISSING else fresh[0]
        was_restored = rollout_starts(self)
        if was_restored:
            item.put(scene, by_then)
        return was_restored

    patch.setattr(ModelRun, "restore", without)
    patch.setattr(ModelRun, "rollout_starts", without_again)
    return hashes


class Watch(BaseCallback):
    """Notes hashes of items whenever a rollout starts, which is when snapshots are taken."""

    def __init__(self, items: tuple[Item, ...], callbacks: tuple[BaseCallback, ...]) -> None:
        super().__init__()
        self.notes = Notes()
        self._items = items
        self._callbacks = callbacks

    def _on_rollout_start(self) -> None:
        scene = Scene(self.model, self._callbacks)
        found = {item.name: hashed(item.get(scene)) for item in self._items}
        self.notes.by_step.append((self.model.num_timesteps, found))

    def _on_step(self) -> bool:
        return True


class Notes:
    """What a Watch saw: (step, hashes), never saved."""

    def __init__(self) -> None:
        self.by_step: list[tuple[int, dict[str, str]]] = []


def run_watched(
    name: str, start: Start, callbacks: tuple[BaseCallback, ...], *items: Item
) -> tuple[dict[str, Any], list[tuple[int, dict[str, str]]], int | None]:
    """Train with a Watch over these items.

    Return the digest, callbacks included, what the Watch saw and the step of the restored snapshot.
    """
    watch = Watch(items, callbacks)
    model, own, _ = train(name, start, *callbacks, watch)
    inner = [getattr(one, "callback", None) for one in callbacks]
    plain = [
        sorted((k, v) for k, v in vars(one).items() if isinstance(v, (int, float, list)))
        for one in (*callbacks, *inner)
        if one is not None
    ]
    ends = {"callbacks": plain, "tally": getattr(model, "users_tally", None)}
    resumed_at = own.report.global_step if own.report is not None else None
    return {**digest(model, start.folder), **ends}, watch.notes.by_step, resumed_at


def run_child(send: Callable[[Any], None], name: str, start: Start) -> None:
    """Do so in a process of its own; send ("end", ...)."""
    send(("end", *run_watched(name, start, siblings(name), *items_of(name))))
