"""What came out of the demo's arms, from their logs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo_log import events_file, read_events, read_steps
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Arm:
    """What one arm left behind. `lives` are its step records, one array per process."""

    lives: tuple[NDArray[np.void], ...]
    events: tuple[dict[str, dict[str, Any]], ...]
    spawned_ns: tuple[int, ...]
    killed_ns: int | None

    @classmethod
    def read(cls, directory: Path, spawned_ns: list[int], killed_ns: int | None) -> Arm:
        lives = range(1, len(spawned_ns) + 1)
        return cls(
            lives=tuple(read_steps(directory / f"steps-{life}.bin") for life in lives),
            events=tuple(read_events(events_file(directory, life)) for life in lives),
            spawned_ns=tuple(spawned_ns),
            killed_ns=killed_ns,
        )

    @property
    def all_steps(self) -> NDArray[np.void]:
        """Every step that was made, the repeated ones included."""
        return np.concatenate(self.lives)

    @property
    def history(self) -> NDArray[np.void]:
        """The steps that count: of the first life those before the resume, then the second's."""
        parts = list(self.lives)
        for index in range(1, len(parts)):
            parts[index - 1] = parts[index - 1][parts[index - 1]["step"] < self.resumed_at]
        return np.concatenate(parts)

    @property
    def resumed_at(self) -> int:
        """The first step that the last life made."""
        return int(self.events[-1]["restored"]["next_step"])

    def action_digest(self) -> str:
        history = self.history
        log = history["step"].astype("<i8").tobytes() + history["action"].tobytes()
        return hashlib.sha256(log).hexdigest()

    def digest(self, name: str) -> str:
        return str(self.events[-1]["finished"]["digests"][name])

    def redone_steps(self) -> tuple[int, bool]:
        """Return how many steps the second life made again, and whether all came out the same."""
        first, second = self.lives
        again, before, now = np.intersect1d(first["step"], second["step"], return_indices=True)
        same = all(
            np.array_equal(first[name][before], second[name][now], equal_nan=name == "loss")
            for name in ("action", "reward", "loss")
        )
        return len(again), same

    def first_difference(self, other: Arm) -> int | None:
        """Return the first step whose action is not the other arm's; None where there is none."""
        mine, others = self.history, other.history
        count = min(len(mine), len(others))
        differs = np.flatnonzero(mine["action"][:count] != others["action"][:count])
        if len(differs):
            return int(mine["step"][differs[0]])
        return None if len(mine) == len(others) else count

    def resume_seconds(self, until: str) -> float:
        """Return seconds from the kill to an event of the next life, imports apart."""
        assert self.killed_ns is not None
        events = self.events[1]
        imports = events["imported"]["at_ns"] - self.spawned_ns[1]
        return float(events[until]["at_ns"] - self.killed_ns - imports) / 1e9

    def stalls_ms(self) -> NDArray[np.float64]:
        steps = self.all_steps
        return np.asarray(steps["tick_ns"][steps["started"]] / 1e6)

    def step_ms(self, *, saving: bool, learning: bool) -> NDArray[np.float64]:
        """Return the durations of steps that did not start a save, by what else they did."""
        steps = self.all_steps
        chosen = (steps["saving"] == saving) & ~steps["started"]
        chosen &= ~np.isnan(steps["loss"]) == learning
        return np.asarray(steps["step_ns"][chosen] / 1e6)

    def written_bytes(self) -> int:
        """Return the bytes handed to write(), by all lives and their writers."""
        last = [life.get("finished") or life["killed"] for life in self.events]
        return sum(int(event["written"]) for event in last)

    def new_bytes(self, row_bytes: int) -> int:
        """Return the bytes of the rows and of the learner's states that were there to be saved."""
        steps, state = self.all_steps, self.events[-1]["finished"]["state_bytes"]
        return len(steps) * row_bytes + int(steps["started"].sum()) * int(state)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Three arms of one training: never killed, killed and resumed with pyengine, or without."""

    never_killed: Arm
    killed: Arm
    others_way: Arm
    killed_at: int
    row_bytes: int

    @property
    def is_identical(self) -> bool:
        return all(one == other for _, one, other in self.digests())

    def digests(self) -> list[tuple[str, str, str]]:
        """Return (what, of the arm never killed, of the killed one)."""
        return [
            (what, one, other)
            for (what, one), (_, other) in zip(
                arm_digests(self.never_killed), arm_digests(self.killed), strict=True
            )
        ]


def arm_digests(arm: Arm) -> list[tuple[str, str]]:
    """Return (what, SHA-256) of an arm."""
    return [
        ("SHA-256: parameters", arm.digest("parameters")),
        ("SHA-256: Adam moments", arm.digest("moments")),
        ("SHA-256: valid rows", arm.digest("rows")),
        ("SHA-256: action log", arm.action_digest()),
    ]
