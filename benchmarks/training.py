"""A training loop that is saved now and then: what saving costs is measured in it.

A pair is two blocks of equally many steps, one that saves in its first step and one that does not.
Each block begins with the rows of all the other steps that lie between two saves, in one call, so
that a save and what is persisted beside it find as many new rows as after a whole interval. A save
that is not complete at the end of its block is waited for, inside the clock: a block holds all that
a save costs, background included. What it wrote is removed at once, before it costs the others
disk; so the lesser guarantees of those that leave it to the kernel are to their advantage.
"""

from __future__ import annotations

import gc
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.disk import regular_files
from benchmarks.learners import Dqn, Learner, Regression, Sac
from benchmarks.pending import Pending
from benchmarks.process import children, proportional_bytes
from benchmarks.rows import BY_NAME

WINDOW_MARGIN = 1.5
"""Blocks are so much longer than a first save took."""

WATCH_SECONDS = 0.02
FORMS = 256


@dataclass(slots=True)
class Block:
    """Seconds of one block, of them those of its steps, and each step: milliseconds, and whether a
    save was under way in it."""

    seconds: float
    stepping_seconds: float
    steps_ms: np.ndarray
    in_flight: np.ndarray


class Training(ABC):
    """Blocks of steps with and without a save. A subclass says what a step and a save are.

    `steps` is the length of a block; `find_window` makes it as long as a save needs.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._number = 1

    @abstractmethod
    def step(self, *, saving: bool) -> None:
        """Make one step, up to where it may be saved."""

    @abstractmethod
    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        """End the step of this number; a save is due where `interval` divides it."""

    @abstractmethod
    def bring_in(self, count: int, *, saving: bool) -> None:
        """Take in the rows, if there are any, of `count` steps that are not made."""

    @abstractmethod
    def close(self) -> None:
        """End what it holds."""

    def find_window(self, interval: int, most: int, place: Path) -> dict[str, Any]:
        """Save and go on until that is complete, at most `most` steps; fix the block's length.

        A first save warms up: in it staging memory is made, and all rows are new.
        """
        self._block(interval, place)
        took = self._block(interval, place, most=most).in_flight.sum()
        self.steps = int(min(most, max(self.steps, ceil(WINDOW_MARGIN * took))))
        self._block(interval, None)
        return {"steps": self.steps}

    def pair(self, interval: int, saves_first: bool, place: Path) -> dict[str, Any]:
        """Play both blocks, the one that saves first where `saves_first`."""
        blocks = {}
        for saving in (saves_first, not saves_first):
            blocks[saving] = self._block(interval, place if saving else None)
        saved, plain = blocks[True], blocks[False]
        flying = saved.steps_ms[saved.in_flight]
        return {
            "lost_s": saved.seconds - plain.seconds,
            "step_s": plain.stepping_seconds / self.steps,
            "in_flight_steps": len(flying),
            "step_p50_ms": float(np.percentile(plain.steps_ms, 50)),
            "step_p99_ms": float(np.percentile(plain.steps_ms, 99)),
            "in_flight_step_p50_ms": float(np.percentile(flying, 50)),
            "in_flight_step_p99_ms": float(np.percentile(flying, 99)),
        }

    def peak(self, interval: int, place: Path) -> dict[str, Any]:
        """Save once more and watch the memory of this process and its children meanwhile: bytes
        before, and at most; the shared ones count once. Untimed: to look costs time."""
        gc.collect()
        with _watched() as seen:
            self._block(interval, place)
        return {"memory_bytes": seen[0], "peak_bytes": max(seen)}

    def _block(self, interval: int, place: Path | None, *, most: int = 0) -> Block:
        """Run one block; with `most` it goes on, at most so long, until the save is complete."""
        if place is not None:
            place.mkdir(parents=True)
        steps_ms, in_flight = [], []
        pending: Pending | None = None
        self._number = first = ceil(self._number / interval) * interval
        begin = time.perf_counter()
        self.bring_in(interval - self.steps, saving=place is not None)
        stepping = before = time.perf_counter()
        while len(steps_ms) < self.steps or (
            len(steps_ms) < most and pending is not None and not pending.is_done()
        ):
            flying = self._number == first or (pending is not None and not pending.is_done())
            self.step(saving=place is not None)
            if place is not None:
                pending = self.end_step(self._number, interval, place) or pending
            self._number += 1
            now = time.perf_counter()
            steps_ms.append((now - before) * 1e3)
            in_flight.append(flying and place is not None)
            before = now
        if pending is not None:
            pending.wait()
        end = time.perf_counter()
        if place is not None:
            if pending is None and not any(regular_files(place)):
                raise RuntimeError("no save was made in a block that was to have one")
            shutil.rmtree(place)
        return Block(end - begin, before - stepping, np.array(steps_ms), np.array(in_flight))


class ReplayTraining(Training):
    """Act, add a row, and every few steps sample a batch and learn from it."""

    def __init__(self, workload: Workload, saved: Any, steps: int) -> None:
        super().__init__(steps)
        self._learn_every = workload.learn_every
        self._learner = saved.model = workload.learner()
        self._saved = saved
        self._plain = saved.plain_twin()
        self._chunks = list(saved.rows.chunks(0, FORMS, most=1))
        self._forms = [saved.one_row(chunk) for chunk in self._chunks]
        self._added = saved.capacity
        for subject in dict.fromkeys((self._saved, self._plain)):
            subject.fill(0, saved.capacity)

    def step(self, *, saving: bool) -> None:
        subject = self._saved if saving else self._plain
        at = self._number % FORMS
        self._learner.act(self._chunks[at]["obs"])
        subject.add(self._forms[at])
        if self._number % self._learn_every == 0:
            batch = subject.sample(self._learner.batch_size)
            self._learner.learn(subject.arrays(batch))

    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        return self._saved.end_step(number, interval, place)

    def bring_in(self, count: int, *, saving: bool) -> None:
        (self._saved if saving else self._plain).fill(self._added, count)
        self._added += count

    def peak(self, interval: int, place: Path) -> dict[str, Any]:
        """Without the twin, which no script has."""
        if self._plain is not self._saved:
            self._plain.close()
            self._plain = self._saved
        return super().peak(interval, place)

    def close(self) -> None:
        for subject in dict.fromkeys((self._saved, self._plain)):
            subject.close()


class ModelTraining(Training):
    """Steps of a large model with its Adam, as in supervised learning."""

    def __init__(self, saved: Any, steps: int) -> None:
        super().__init__(steps)
        self._saved = saved
        self._regression = Regression(saved.model, saved.optimizer)

    def step(self, *, saving: bool) -> None:
        self._regression.learn()

    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        return self._saved.end_step(number, interval, place)

    def bring_in(self, count: int, *, saving: bool) -> None:
        """Nothing: there are no rows."""

    def close(self) -> None:
        self._saved.close()


@dataclass(frozen=True, slots=True)
class Workload:
    """The rows of a replay, what learns from them, and every how many steps."""

    rows: str
    learner: type[Learner]
    learn_every: int = 1


WORKLOADS = {
    "sac": Workload("vectors", Sac),
    "dqn": Workload("stacked_frames", Dqn, learn_every=4),
    "model": None,
}


def make_training(
    name: str, subject_class: Any, directory: Path, *, size: int, steps: int
) -> Training:
    """Return a training in blocks of `steps` at least: with a full replay of `size` rows, or of a
    model of `size` layers."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    if workload is None:
        return ModelTraining(subject_class(size, directory), steps)
    return ReplayTraining(workload, subject_class(BY_NAME[workload.rows], size, directory), steps)


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Collect the memory of this process and its children, again and again."""
    processes = ("self", *children())
    seen = [proportional_bytes(*processes)]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_SECONDS):
            seen.append(proportional_bytes(*processes))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
