"""What overlapped snapshots cost a training loop, against one warm copy of the state.

Of three training steps the middle one follows a snapshot's tick; that tick and step is compared
with the mean of the steps before and after. A step is a forward and a backward pass and Adam's
step, which waits where the copy is not done. The writer is stopped meanwhile: what it takes from a
busy machine belongs to other figures, and to synchronous snapshots too. The allocator keeps what a
step frees: else two fifths of each step are page faults, and their noise is all that is seen.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import pyengine
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.figures.state_stall import copy_ms
from benchmarks.judgement import Finding, Verdict, at_most, format_ratio
from benchmarks.models import state_tensors
from benchmarks.process import keep_freed_memory
from benchmarks.replay_run import WAIT_SECONDS, make_engine
from benchmarks.statistics import paired_ratios

FIGURE = Figure(
    name="overlap",
    claim="training time lost to a snapshot of 403 MB, and of 13 MB, with overlap=True",
)

BAR = 0.3
SNAPSHOTS = 60
WIDTHS = {"large": (2048, 8), "small": (512, 4)}
"""Width and number of layers."""
BATCH = 16
"""Passes of this size take twice as long as the copy of the large state beside them."""

WARM_UPS = 3


def measure(setting: Setting) -> Measured:
    # One thread, as learners beside collectors have: the other core is what overlap can use.
    torch.set_num_threads(1)
    keep_freed_memory()
    samples: dict[str, list[float]] = {}
    facts: dict[str, int] = {}
    for name, (width, layers) in WIDTHS.items():
        learner = _Learner(width, 2 if setting.quick else layers)
        facts[f"{name}_state_bytes"] = learner.state_bytes
        with make_engine(setting.directory / name, overlap=True) as engine:
            engine.track(model=learner.model, optimizer=learner.optimizer)
            lost = _lost(engine, learner, setting.pairs if setting.quick else SNAPSHOTS)
        samples |= {f"{name}_{key}": values for key, values in lost.items()}
    large, small = samples["large_ratio"], samples["small_ratio"]
    findings = [
        Finding(f"403 MB: at most {BAR} x one warm copy", format_ratio(large), at_most(large, BAR)),
        Finding("none", f"13 MB: {format_ratio(small)}", Verdict.UNJUDGED),
    ]
    return Measured(findings, samples=samples, facts=facts)


class _Learner:
    def __init__(self, width: int, layers: int) -> None:
        linear = (torch.nn.Linear(width, width) for _ in range(layers))
        self.model = torch.nn.Sequential(*linear)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self._batch = torch.randn(BATCH, width)
        self.step()
        self.tensors = list(state_tensors(self.model, self.optimizer).values())
        self.copies = [tensor.clone() for tensor in self.tensors]
        self.state_bytes = sum(tensor.nbytes for tensor in self.tensors)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()


def _lost(engine: pyengine.SnapshotEngine, learner: _Learner, count: int) -> dict[str, list[float]]:
    """Return milliseconds of steps with a snapshot, of those beside them, of warm copies, and the
    ratio."""
    for number in range(WARM_UPS):
        learner.step()
        engine.snapshot(number).wait(WAIT_SECONDS)
    with_ms, without_ms, warm_ms, held_ms = [], [], [], []
    for number in range(count):
        pid = engine.writer_pid
        assert pid is not None
        with _stopped(pid):
            before = _step_ms(learner)
            begin = time.perf_counter_ns()
            pending = engine.snapshot(WARM_UPS + number)
            learner.step()
            with_ms.append((time.perf_counter_ns() - begin) / 1e6)
            without_ms.append((before + _step_ms(learner)) / 2)
            warm_ms.append(copy_ms(learner.copies, learner.tensors))
        held_ms.append(pending.stall_seconds * 1e3)
        pending.wait(WAIT_SECONDS)
    differences = [on - off for on, off in zip(with_ms, without_ms, strict=True)]
    return {
        "with_ms": with_ms,
        "without_ms": without_ms,
        "held_ms": held_ms,
        "warm_copy_ms": warm_ms,
        "ratio": paired_ratios(differences, warm_ms),
    }


def _step_ms(learner: _Learner) -> float:
    begin = time.perf_counter_ns()
    learner.step()
    return (time.perf_counter_ns() - begin) / 1e6


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Keep the writer from running meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
