"""An Atari game behind the usual DQN wrappers, in one class, so that one place holds all its state.

Random no-ops after a reset, each action for four frames with the maximum over the last two, a lost
life ends an episode, FIRE starts the game, 84 x 84 grayscale, rewards clipped to their sign, the
last four frames stacked. A snapshot needs all of that besides the emulator: `get_state` and
`set_state` carry it, so a resumed run sees exactly the frames that it would have seen.
"""

from __future__ import annotations

from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]

FRAME_SKIP = 4
MAX_NOOPS = 30
NOOP, FIRE, RIGHT = 0, 1, 2


class Atari:
    """One game, played by `step(action)`; `reset()` begins it and each further episode."""

    def __init__(self, game: str, seed: int) -> None:
        gymnasium.register_envs(ale_py)
        cv2.setNumThreads(0)
        self._game: Any = gymnasium.make(game).unwrapped
        self._game.reset(seed=seed)
        meanings = self._game.get_action_meanings()
        self.action_count = len(meanings)
        self._needs_fire = meanings[FIRE] == "FIRE"
        self._noop_rng = np.random.default_rng(seed)
        self._stack = np.zeros((4, 84, 84), np.uint8)
        self._lives = 0
        self._game_over = True
        self.episode_steps = 0

    @property
    def observation(self) -> Frames:
        """The last four frames, oldest first, (4, 84, 84) uint8; a copy."""
        return self._stack.copy()

    def reset(self) -> Frames:
        """Start an episode: a new game, or the next life of the current one."""
        frame = self._new_game() if self._game_over else self._act(NOOP)[0]
        for action in (FIRE, RIGHT) if self._needs_fire else ():
            frame = self._act(action)[0]
            if self._game_over:
                frame = self._new_game()
        self._lives = self._game.ale.lives()
        self._stack[:] = frame
        self.episode_steps = 0
        return self.observation

    def step(self, action: int) -> tuple[Frames, float, bool, bool]:
        """Play one action; return observation, clipped reward, terminated, truncated."""
        frame, reward, terminated, truncated = self._act(action)
        lives = self._game.ale.lives()
        terminated = terminated or 0 < lives < self._lives
        self._lives = lives
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = frame
        self.episode_steps += 1
        return self.observation, float(np.sign(reward)), terminated, truncated

    def get_state(self) -> dict[str, Any]:
        """Return everything that decides what the next step shows, the emulator's RNG included."""
        return {
            "emulator": self._game.clone_state(include_rng=True).serialize(),
            "noop_rng": self._noop_rng.bit_generator.state,
            "stack": self._stack.copy(),
            "lives": self._lives,
            "game_over": self._game_over,
            "episode_steps": self.episode_steps,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_state` returned, in this process or in an earlier one."""
        self._game.restore_state(ale_py.ALEState(state["emulator"]))
        self._noop_rng.bit_generator.state = state["noop_rng"]
        self._stack[:] = state["stack"]
        self._lives = state["lives"]
        self._game_over = state["game_over"]
        self.episode_steps = state["episode_steps"]

    def _new_game(self) -> Frames:
        screen, _ = self._game.reset()
        for _ in range(self._noop_rng.integers(1, MAX_NOOPS + 1)):
            screen, _, terminated, truncated, _ = self._game.step(NOOP)
            if terminated or truncated:
                screen, _ = self._game.reset()
        self._game_over = False
        return _warp(screen)

    def _act(self, action: int) -> tuple[Frames, float, bool, bool]:
        reward, screens = 0.0, []
        terminated = truncated = False
        for _ in range(FRAME_SKIP):
            screen, gained, terminated, truncated, _ = self._game.step(action)
            screens.append(screen)
            reward += float(gained)
            if terminated or truncated:
                break
        self._game_over = terminated or truncated
        # The console draws some sprites in every other frame only: take the brighter of the two.
        brightest = np.maximum(screens[-1], screens[-2]) if len(screens) > 1 else screens[-1]
        return _warp(brightest), reward, terminated, truncated


def _warp(screen: NDArray[np.uint8]) -> Frames:
    gray = cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.resize(gray, (84, 84), interpolation=cv2.INTER_AREA), np.uint8)
