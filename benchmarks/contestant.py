"""One library in a process of its own: python -m benchmarks.contestant MODULE:CLASS

Reads requests (one JSON line each: the turn's name and its arguments) from standard input, plays
the turn and answers with one JSON line, until that input ends. Libraries are imported before the
first turn, data is made ready before a turn's clock starts; what a library prints goes to stderr.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disk import make_durable, regular_files
from benchmarks.rows import BY_NAME

PR_SET_PDEATHSIG = 1
ADDED_BEFORE_SAVE = 1_000


class Turns:
    """The turns that can be asked for; those of a replay and those of a saver of a model."""

    def __init__(self, subject_class: Any) -> None:
        self._class = subject_class
        self._subject: Any = None
        self._rows: Any = None
        self._added = 0

    def make_replay(self, rows: str, capacity: int, directory: str) -> dict[str, Any]:
        """Make the library's replay buffer, empty."""
        self.close()
        self._rows = BY_NAME[rows]
        self._subject = self._class(self._rows, capacity, Path(directory))
        self._added = 0
        return {}

    def make_saver(self, layers: int, directory: str) -> dict[str, Any]:
        """Make the library's way of saving a model with its optimizer."""
        self.close()
        self._subject = self._class(layers, Path(directory))
        return {"state_bytes": self._subject.state_bytes}

    def fill(self, count: int) -> dict[str, Any]:
        self._subject.fill(self._added, count)
        self._added += count
        return {}

    def check(self, count: int) -> dict[str, Any]:
        """Sample once, untimed, and compare every row with what was added."""
        self._check(self._subject.sample(count), count)
        return {}

    def free_a_block(self, size: int) -> dict[str, Any]:
        """Touch and free one block of memory; of up to 32 MiB, glibc keeps blocks of its size and
        smaller ones from then on, instead of giving them back."""
        np.ones(size, np.uint8)
        return {}

    def sample(self, count: int, seconds: float) -> dict[str, Any]:
        return repeat(lambda: self._subject.sample(count), seconds)

    def sample_tensors(self, count: int, seconds: float) -> dict[str, Any]:
        return repeat(lambda: self._subject.sample_tensors(count), seconds)

    def prioritized(self, count: int, seconds: float) -> dict[str, Any]:
        """Sample and update the priorities of what was sampled, as a learner does."""
        self._subject.warm(count)
        return repeat(lambda: self._subject.sample_and_update(count), seconds)

    def add(self, seconds: float) -> dict[str, Any]:
        """Add single transitions, each in the library's own form before the clock starts.

        Each clock is around 16 calls: reading it is a tenth of the quickest of them.
        """
        chunks = self._rows.chunks(self._added, 256, most=1)
        forms = [self._subject.one_row(chunk) for chunk in chunks]
        endless = itertools.cycle(forms)
        add = self._subject.add

        def sixteen() -> None:
            for form in itertools.islice(endless, 16):
                add(form)

        return repeat(sixteen, seconds, calls_each=16)

    def extend(self, bytes_each: int, seconds: float) -> dict[str, Any]:
        """Add `bytes_each` of rows a call, again and again through the whole block of rows."""
        size = max(1, bytes_each // self._rows.row_bytes)
        chunks = self._rows.chunks(0, self._rows.block_rows // size * size, most=size)
        endless = itertools.cycle([self._subject.many_rows(chunk) for chunk in chunks])
        extend = self._subject.extend
        answer = repeat(lambda: extend(next(endless)), seconds)
        return {**answer, "bytes": size * self._rows.row_bytes}

    def save(self, place: str) -> dict[str, Any]:
        """Save once; return how long the loop stands still, until complete, until durable."""
        if self._rows is not None:
            self.fill(ADDED_BEFORE_SAVE)
        self._subject.change()
        target = Path(place)
        target.mkdir(parents=True)
        begin = time.perf_counter()
        pending = self._subject.save(target)
        stalled = time.perf_counter()
        if pending is not None:
            pending.wait()
        complete = time.perf_counter()
        if not self._subject.durable:
            make_durable(target)
        durable = time.perf_counter()
        size = sum(path.stat().st_size for path in regular_files(target))
        return {
            "stall_s": stalled - begin,
            "complete_s": complete - begin,
            "durable_s": durable - begin,
            "bytes": size,
        }

    def forget(self, place: str) -> dict[str, Any]:
        """Delete an earlier save, outside of every clock."""
        shutil.rmtree(place)
        return {}

    def get_ready(self, place: str) -> dict[str, Any]:
        """Do what a script does before it loads and while it makes networks."""
        self._subject.get_ready(Path(place))
        return {}

    def load(self, place: str, count: int) -> dict[str, Any]:
        """Load once and sample a first batch; its rows are checked after the clock."""
        begin = time.perf_counter()
        self._subject.load(Path(place))
        loaded = time.perf_counter()
        batch = self._subject.sample(count)
        sampled = time.perf_counter()
        self._check(batch, count)
        facts = {"load_s": loaded - begin, "first_batch_s": sampled - begin}
        return {**facts, **self._subject.facts_of(batch)}

    def make_training(self, workload: str, size: int, steps: int, directory: str) -> dict[str, Any]:
        """Make a training loop that is saved by the library; see benchmarks.training."""
        from benchmarks.training import make_training

        self.close()
        self._subject = make_training(
            workload, self._class, Path(directory), size=size, steps=steps
        )
        return {}

    def find_window(self, interval: int, most: int, place: str) -> dict[str, Any]:
        return self._subject.find_window(interval, most, Path(place))

    def train(self, interval: int, saves_first: bool, place: str) -> dict[str, Any]:
        """Train with and without a save, equally many steps."""
        return self._subject.pair(interval, saves_first, Path(place))

    def peak(self, interval: int, place: str) -> dict[str, Any]:
        """Train with a save while memory is watched."""
        return self._subject.peak(interval, Path(place))

    def close(self) -> dict[str, Any]:
        """Give the subject up, with all of its memory, whatever circle of references holds it."""
        if self._subject is not None:
            self._subject.close()
            self._subject = None
            gc.collect()
        return {}

    def _check(self, batch: Any, count: int) -> None:
        self._rows.check(self._subject.arrays(batch), count)


def repeat(call: Callable[[], object], seconds: float, *, calls_each: int = 1) -> dict[str, Any]:
    """Repeat `call` for `seconds`; return calls, their seconds, percentiles in microseconds, and
    page faults.

    What a call returns is held until the next one has returned, as loops hold their batch.
    """
    clock, took = time.perf_counter_ns, []
    for _ in range(3):
        held = call()
    faults = _page_faults()
    end = clock() + int(seconds * 1e9)
    before = clock()
    while before < end:
        held = call()
        after = clock()
        took.append(after - before)
        before = after
    del held
    faults = _page_faults() - faults
    each = np.asarray(took) / (1e3 * calls_each)
    return {
        "calls": len(took) * calls_each,
        "seconds": sum(took) / 1e9,
        "p50_us": float(np.percentile(each, 50)),
        "p99_us": float(np.percentile(each, 99)),
        "faults_per_call": faults / (len(took) * calls_each),
    }


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    turns = Turns(getattr(import_module(module), name))
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(turns, request["turn"])(**request["arguments"])
        answers.write(json.dumps(answer) + "\n")
    turns.close()


if __name__ == "__main__":
    main()
