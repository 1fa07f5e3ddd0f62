"""How much the demo's arms do, so that all of it ends in time.

Before: the speed of the machine is measured, and the plan made smaller until it fits. While arm A
runs: at the pace of its last seconds, where would the demo end? If too late, A ends earlier, and B
and C with it. The arms with Stable-Baselines3 come last and get what is left. Whatever still runs
when the time is up is stopped.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

REPORT_SECONDS = 15
"""Time for the digests of all arms, the tables and the picture."""

SLACK = 1.2
"""Above the median: slow steps happen, but one burst of other work must not shrink the demo."""

REDONE = 3.2
"""Three arms, and the steps that two of them make again after the kill."""

SB3_SHARE = 0.3
"""What the arms with Stable-Baselines3 get at most of the time, when the others are planned."""

LEARNING_STARTS = 1_000
LEAST_STEPS = 3_000
"""Of the arms A, B and C: some saves and updates on both sides of the kill."""

PACE_SECONDS = 10.0


class OutOfTimeError(Exception):
    """The demo would not end in time; says where it stood."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds per playing step, per update, and from a process's start to its first step."""

    play: float
    learn: float
    start: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the arms A, B and C."""

    capacity: int = 16_000
    steps: int = 20_000
    train_every: int = 8
    save_every: int = 500
    pickle_every: int = 2_000

    def options(self, seed: int) -> list[str]:
        settings = {
            "seed": seed, "steps": self.steps, "capacity": self.capacity,
            "train-every": self.train_every, "snapshot-every": self.save_every,
            "learning-starts": LEARNING_STARTS, "exploration-steps": 10_000,
        }  # fmt: skip
        return [text for name, value in settings.items() for text in (f"--{name}", str(value))]

    def seconds(self, speed: Speed) -> float:
        """Return how long the three arms take."""
        return REDONE * self.steps * self._step_seconds(speed) + 5 * speed.start

    def _step_seconds(self, speed: Speed) -> float:
        return speed.play + speed.learn / self.train_every

    @property
    def kill_range(self) -> range:
        """Steps of which the kill comes after one: with updates before it and a save after it.

        The ring has wrapped by then, unless the arms had to end before that.
        """
        wrapped = self.capacity + self.save_every
        first = wrapped if wrapped < self.steps - self.save_every else self.steps // 2
        return range(first, self.steps - self.save_every)

    def fitted(self, speed: Speed, seconds: float) -> Plan:
        """Return the plan, made smaller until it fits: first fewer updates, then fewer steps."""
        plan = self
        while plan.seconds(speed) > seconds and plan.train_every < 32:
            plan = replace(plan, train_every=plan.train_every * 2)
        if plan.seconds(speed) > seconds:
            room = (seconds - 5 * speed.start) / REDONE / plan._step_seconds(speed)
            capacity = max(1_000, int(room - 3_000) // 1_000 * 1_000)
            plan = replace(plan, capacity=capacity, steps=capacity + 3_000)
        return plan


@dataclass(frozen=True, slots=True)
class Sb3Plan:
    """The size of the arms D, E and F; the example's settings where nothing else is said."""

    steps: int = 3_000

    TRAIN_EVERY = 4
    LEAST = 900

    @property
    def save_every(self) -> int:
        return self.steps // 6

    @property
    def capacity(self) -> int:
        return self.steps * 2 // 3

    @property
    def learning_starts(self) -> int:
        return self.steps // 6

    def options(self, seed: int) -> list[str]:
        settings = {
            "seed": seed, "steps": self.steps, "capacity": self.capacity,
            "snapshot-every": self.save_every, "learning-starts": self.learning_starts,
        }  # fmt: skip
        return [text for name, value in settings.items() for text in (f"--{name}", str(value))]

    def seconds(self, speed: Speed) -> float:
        """Return how long the three arms take; the library adds a little to each step."""
        updates = (self.steps - self.learning_starts) / self.TRAIN_EVERY
        return REDONE * (self.steps * speed.play * 1.5 + updates * speed.learn) + 5 * speed.start

    def fitted(self, speed: Speed, seconds: float) -> Sb3Plan | None:
        """Return the plan, made smaller until it fits; None where even the least does not."""
        plan = self
        while plan.seconds(speed) > seconds:
            plan = replace(plan, steps=plan.steps - 300)
            if plan.steps < self.LEAST:
                return None
        return plan


class Clock:
    """The time that the demo has."""

    def __init__(self, started: float, seconds: float) -> None:
        self._started = started
        self._ends = started + seconds

    @property
    def left(self) -> float:
        """Seconds that are left for arms."""
        return self._ends - REPORT_SECONDS - time.time()

    @property
    def spent(self) -> float:
        return time.time() - self._started

    def check(self, where: str) -> None:
        """Raise OutOfTimeError once no time is left."""
        if self.left <= 0:
            raise OutOfTimeError(f"no time left {where}, after {self.spent:.0f} s")


class Shortener:
    """Finds out, while arm A runs, after how many steps it must end for the demo to be in time.

    `for_sb3` seconds are kept for the arms that come last, unless A would then show too little.
    """

    def __init__(self, plan: Plan, speed: Speed, clock: Clock, for_sb3: float) -> None:
        self._plan = plan
        self._for_sb3 = for_sb3
        self._starts = 4 * speed.start
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def __call__(self, done: int) -> int | None:
        """Return a smaller number of steps than planned, or None; OutOfTimeError if none helps."""
        now = time.monotonic()
        self._seen.append((now, done))
        while now - self._seen[0][0] > PACE_SECONDS:
            self._seen.popleft()
        since, begin = self._seen[0]
        # Steps before the first update tell nothing of those to come.
        if begin < LEARNING_STARTS or now - since < PACE_SECONDS / 2 or done == begin:
            return None
        pace = (now - since) / (done - begin)
        seconds = self._clock.left - self._starts
        rooms = [
            int((done + available / pace) / REDONE)
            for available in (seconds - self._for_sb3, seconds)
        ]
        if rooms[1] < LEAST_STEPS:
            raise OutOfTimeError(
                f"at {pace * 1e3:.0f} ms a step there is time for {rooms[1]} steps an arm, which "
                f"show too little ({LEAST_STEPS} would do)"
            )
        room = max(rooms[0], min(rooms[1], LEAST_STEPS), done + 10)
        return room if room < self._plan.steps else None
