"""The stall of a snapshot of 400 MB of model and Adam, against one warm copy of it."""

from __future__ import annotations

import time

import torch

import pyengine
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, at_most, format_ratio
from benchmarks.models import LARGE_LAYERS, large_model, state_tensors
from benchmarks.replay_run import WAIT_SECONDS, make_engine
from benchmarks.statistics import paired_ratios, summarize

FIGURE = Figure(
    name="state_stall",
    claim="stall for 400 MB of model + optimizer on CPU",
)

BAR = 1.1
PAIRS = 40
WARM_UPS = 3
"""The first snapshots make and touch the two staging slots."""


def measure(setting: Setting) -> Measured:
    model, optimizer = large_model(2 if setting.quick else LARGE_LAYERS)
    tensors = list(state_tensors(model, optimizer).values())
    copies = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
    stalls, warm, first = [], [], []
    with make_engine(setting.directory / "run") as engine:
        engine.track(model=model, optimizer=optimizer)
        pairs = setting.pairs if setting.quick else max(setting.pairs, PAIRS)
        for step in range(WARM_UPS + pairs):
            _change(tensors)
            if step % 2:
                warm_ms = copy_ms(copies, tensors)
                stall_ms = _stall(engine, step)
            else:
                stall_ms = _stall(engine, step)
                warm_ms = copy_ms(copies, tensors)
            (first if step < WARM_UPS else stalls).append(stall_ms)
            if step >= WARM_UPS:
                warm.append(warm_ms)
    ratios = paired_ratios(stalls, warm)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Measured(
        [
            Finding(
                f"at most {BAR} x one warm copy",
                f"{format_ratio(ratios)}, {summarize(stalls).median:.0f} ms",
                at_most(ratios, BAR),
            )
        ],
        samples={"stall_ms": stalls, "warm_copy_ms": warm, "ratio": ratios, "first_ms": first},
        facts={"state_bytes": total, "torch_threads": torch.get_num_threads()},
    )


def _change(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.add_(1e-6)


def copy_ms(copies: list[torch.Tensor], tensors: list[torch.Tensor]) -> float:
    """Return milliseconds to copy every tensor by torch, with as many threads as it has."""
    begin = time.perf_counter_ns()
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor)
    return (time.perf_counter_ns() - begin) / 1e6


def _stall(engine: pyengine.SnapshotEngine, step: int) -> float:
    begin = time.perf_counter_ns()
    pending = engine.snapshot(step)
    stall_ms = (time.perf_counter_ns() - begin) / 1e6
    pending.wait(WAIT_SECONDS)
    return stall_ms
