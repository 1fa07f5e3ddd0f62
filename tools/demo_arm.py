"""One arm of the demo: examples/dqn_atari.py, unchanged, with a stop-watch around its calls.

    PYTHONPATH=examples python tools/demo_arm.py --saves engine --arm-dir DIR [its options]

`--saves engine` trains with a SnapshotEngine, `--saves pickle` with torch.save and pickle. The last
event of a life that reaches its end holds the SHA-256 of parameters, Adam moments and valid rows.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dqn_atari
import numpy as np
import torch._dynamo  # noqa: F401  the first optimizer would load it, in the middle of a resume
from demo_log import ArmLog, sha256, written_bytes
from demo_pickle import PickledCheckpoints, PlainRing, plain_fields

import pyengine


class TimedRing:
    """Pass add and sample through; note the time inside add and the moment of the first batch."""

    def __init__(self, ring: Any, log: ArmLog) -> None:
        self.ring = ring
        self.add_ns = 0
        self._log = log
        self._sampled = False

    def add(self, **row: Any) -> None:
        begin = time.perf_counter_ns()
        self.ring.add(**row)
        self.add_ns = time.perf_counter_ns() - begin

    def sample(self, count: int, device: str) -> Any:
        batch = self.ring.sample(count, device=device)
        if not self._sampled:
            self._sampled = True
            self._log.event("first_batch", rows=len(self.ring))
        return batch


class TimedEngine:
    """Pass track, restore and tick through; note the stall of each tick and what is in flight."""

    def __init__(self, engine: Any, log: ArmLog) -> None:
        self.tracked: dict[str, Any] = {}
        self.restored_ns = 0
        self.tick_ns = 0
        self.saving = False
        self.started = False
        self._engine = engine
        self._pending: list[Any] = []
        self._log = log

    def track(self, **objects: Any) -> None:
        self.tracked = objects
        live = {n: o.ring if isinstance(o, TimedRing) else o for n, o in objects.items()}
        self._engine.track(**live)

    def restore(self) -> Any:
        begin = time.perf_counter_ns()
        report = self._engine.restore()
        seconds = (time.perf_counter_ns() - begin) / 1e9
        self.restored_ns = time.monotonic_ns()
        self._log.event("restored", seconds=seconds, next_step=report.next_step)
        return report

    def tick(self, step: int) -> None:
        self._pending = [pending for pending in self._pending if not pending.is_done]
        self.saving = bool(self._pending)
        begin = time.perf_counter_ns()
        pending = self._engine.tick(step)
        self.tick_ns = time.perf_counter_ns() - begin
        self.started = bool(pending)
        if hasattr(pending, "is_done"):
            self._pending.append(pending)

    def wait_for_pending(self) -> None:
        for pending in self._pending:
            pending.wait(timeout=60.0)


class ReachedEndError(Exception):
    """The parent wants the arm to end here, sooner than planned."""


class Recorder:
    """Write one record per training step; ReachedEndError where the parent wants the end."""

    def __init__(self, ring: TimedRing, engine: TimedEngine, log: ArmLog) -> None:
        self._ring, self._engine, self._log = ring, engine, log
        self._last_ns = 0

    def __call__(self, *, step: int, action: int, reward: float, loss: float | None) -> None:
        now = time.monotonic_ns()
        engine = self._engine
        begin = self._last_ns or engine.restored_ns
        self._log.step(
            step, now, now - begin, engine.tick_ns, self._ring.add_ns,
            float("nan") if loss is None else loss, action, int(reward),
            engine.saving, engine.started,
        )  # fmt: skip
        self._last_ns = time.monotonic_ns()
        ends_at = self._log.ends_at()
        if ends_at is not None and step + 1 >= ends_at:
            raise ReachedEndError


def digests(tracked: dict[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of parameters, of Adam's moments and of the valid rows, oldest first."""
    networks = [tensor for name in ("policy", "target") for tensor in tracked[name].parameters()]
    adam = tracked["optimizer"].state_dict()["state"]
    moments = [adam[i][key] for i in sorted(adam) for key in ("step", "exp_avg", "exp_avg_sq")]
    return {
        "parameters": sha256(tensor.detach().numpy() for tensor in networks),
        "moments": sha256(tensor.numpy() for tensor in moments),
        "rows": sha256(_rows_in_order(tracked["replay"].ring)),
    }


def _rows_in_order(ring: Any) -> Iterator[np.ndarray]:
    if isinstance(ring, PlainRing):
        return
    refs = ring.refs()
    for begin in range(0, len(refs), 256):
        rows = ring[refs[begin : begin + 256]]
        for name in dqn_atari.SCHEMA:
            yield np.asarray(rows[name])


def state_bytes(tracked: dict[str, Any]) -> int:
    """Return the bytes of networks and Adam moments: what each save has to write anew."""
    adam = tracked["optimizer"].state_dict()["state"]
    tensors = [t for name in ("policy", "target") for t in tracked[name].parameters()]
    tensors += [value for entry in adam.values() for value in entry.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def run(args: argparse.Namespace, options: argparse.Namespace, log: ArmLog) -> None:
    if args.saves == "pickle":
        plain = PlainRing(
            plain_fields(dqn_atari.SCHEMA), capacity=options.capacity, seed=options.seed
        )
        checkpoints = PickledCheckpoints(Path(options.run_dir), every_steps=options.snapshot_every)
        finish(options, TimedRing(plain, log), TimedEngine(checkpoints, log), log)
        return
    with (
        pyengine.ReplayBuffer(
            dqn_atari.SCHEMA, capacity=options.capacity, seed=options.seed
        ) as ring,
        claim(options, log) as engine,
    ):
        finish(options, TimedRing(ring, log), TimedEngine(engine, log), log)


def claim(options: argparse.Namespace, log: ArmLog) -> pyengine.SnapshotEngine:
    """Make the engine; after a kill that waits until the dead trainer's writer has finished."""
    begin = time.perf_counter_ns()
    engine = pyengine.SnapshotEngine(options.run_dir, every_steps=options.snapshot_every)
    log.event("claimed", seconds=(time.perf_counter_ns() - begin) / 1e9)
    return engine


def finish(options: argparse.Namespace, ring: TimedRing, engine: TimedEngine, log: ArmLog) -> None:
    """Train to the end and say what came out."""
    with contextlib.suppress(ReachedEndError):
        dqn_atari.train(options, ring, engine, on_step=Recorder(ring, engine, log))
    engine.wait_for_pending()
    log.event(
        "finished",
        written=written_bytes(),
        state_bytes=state_bytes(engine.tracked),
        digests=digests(engine.tracked),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", choices=("engine", "pickle"), required=True)
    parser.add_argument("--arm-dir", type=Path, required=True)
    args, rest = parser.parse_known_args()
    options = dqn_atari.parse_arguments([*rest, "--run-dir", str(args.arm_dir / "run")])
    log = ArmLog(args.arm_dir)
    log.event("imported")
    run(args, options, log)


if __name__ == "__main__":
    main()
