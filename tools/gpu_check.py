"""Every check that needs a GPU, in one run of under three minutes.

    python tools/gpu_check.py [--device cuda:0] [--megabytes 1024] [--json FILE]

Prints a table and exits with 1 if a check failed. Snapshots go to a temporary directory. With
`--device cpu` it runs without a GPU, to try the script itself; the figures then mean nothing.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from pyengine.capture.build import build_component
from pyengine.capture.component import Component
from pyengine.capture.copiers import Copier
from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.capture.copiers.cuda import CudaCopier
from pyengine.capture.inplace import same_bits
from pyengine.capture.kinds.rng import ProcessRngComponent
from pyengine.capture.slot import StagingSlot
from pyengine.capture.staging import StagingLayout

REPEATS = 7


@dataclass(frozen=True)
class Result:
    """One line of the table; `passed` is None for a figure without a bar."""

    check: str
    figure: str
    passed: bool | None


def main() -> int:
    """Run all checks and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the copied state")
    parser.add_argument("--json", help="also write the table to this file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was checked", file=sys.stderr)
        return 1
    results: list[Result] = []
    for check in (check_copy_rates, check_stall, check_order, check_round_trip, check_training):
        started = time.perf_counter()
        try:
            results += check(device, arguments.megabytes)
        except Exception as error:
            results.append(Result(check.__name__, f"{type(error).__name__}: {error}", False))
        print(f"{check.__name__}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    print_table(device, results)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([asdict(result) for result in results], file, indent=1)
    return 1 if any(result.passed is False for result in results) else 0


def print_table(device: torch.device, results: list[Result]) -> None:
    """Print the machine and one line per result."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    width = max(len(result.check) for result in results)
    for result in results:
        word = {True: "ok", False: "FAILED", None: ""}[result.passed]
        print(f"{result.check:<{width}}  {result.figure:<44}  {word}")


class Staging:
    """Components, a layout and one slot over warm anonymous memory."""

    def __init__(self, components: list[Component], copier: Copier) -> None:
        self.components = components
        self.layout = StagingLayout()
        plan = self.plan()
        self.memory = mmap.mmap(-1, plan.required_bytes)
        self.slot = StagingSlot(self.memory, copier)
        self.slot.fill(plan)

    def plan(self) -> Any:
        return self.layout.plan([component.capture() for component in self.components], {})

    def snapshot(self) -> None:
        self.slot.fill(self.plan())

    def files(self) -> dict[str, bytearray]:
        return {
            file.path: bytearray(self.memory[piece.offset : piece.offset + piece.length])
            for file in self.plan().files
            for piece in file.pieces
        }

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *exc: object) -> None:
        self.slot.close()
        self.memory.close()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(action: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of `action` on an idle device."""
    times = []
    for _ in range(REPEATS):
        synchronize(device)
        started = time.perf_counter()
        action()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class Learner:
    """A network that, with Adam's moments, has about the given size; trains on random data."""

    def __init__(self, device: torch.device, megabytes: float, dtype: torch.dtype) -> None:
        width = 1024
        layers = max(1, round(megabytes * 1e6 / (3 * dtype.itemsize * (width * width + width))))
        parts = [nn.Linear(width, width) for _ in range(layers)]
        self.net = nn.Sequential(*parts).to(device, dtype)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self._data = {"size": (64, width), "device": device, "dtype": dtype}
        self.train(1)

    def train(self, steps: int) -> None:
        """Train on data from the device's own generator."""
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            self.net(torch.randn(**self._data)).square().mean().backward()
            self.optimizer.step()

    def components(self) -> list[Component]:
        """Return components of the learner and the process's generators."""
        tracked = {"net": self.net, "opt": self.optimizer}
        made = [build_component(name, value) for name, value in tracked.items()]
        return [*made, ProcessRngComponent()]

    def values(self) -> list[torch.Tensor]:
        """Return copies of the parameters."""
        return [parameter.detach().clone() for parameter in self.net.parameters()]


def all_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Return whether all tensors are equal bit for bit."""
    return all(same_bits(one, other) for one, other in zip(some, others, strict=True))


def check_copy_rates(device: torch.device, megabytes: int) -> list[Result]:
    """Compare copies into pinned staging memory with copies into pageable memory."""
    parts = 16
    tensors = [torch.randn(megabytes * 250_000 // parts, device=device) for _ in range(parts)]
    size = sum(tensor.numel() * 4 for tensor in tensors)
    components = [build_component(f"t{i}", tensor) for i, tensor in enumerate(tensors)]
    rates = {}
    started = time.perf_counter()
    with Staging(components, CudaCopier()) as staging:
        attached = time.perf_counter() - started
        base = torch.frombuffer(staging.memory, dtype=torch.uint8)
        is_pinned = base.is_pinned() if device.type == "cuda" else None
        del base
        rates["pinned"] = size / median_seconds(staging.snapshot, device) / 1e9
    with Staging(components, CpuCopier()) as staging:
        rates["pageable"] = size / median_seconds(staging.snapshot, device) / 1e9
    ratio = rates["pinned"] / rates["pageable"]
    return [
        Result("staging memory is pinned", f"made and filled once in {attached:.2f} s", is_pinned),
        Result("copy rate, pinned", f"{rates['pinned']:.1f} GB/s", None),
        Result("copy rate, pageable", f"{rates['pageable']:.1f} GB/s ({ratio:.1f} x slower)", None),
    ]


def check_stall(device: torch.device, megabytes: int) -> list[Result]:
    """Measure a whole capture of a learner, beside the bare copy of the same tensors."""
    results = []
    small = nn.ModuleList(nn.Linear(8, 8) for _ in range(2500)).to(device)
    cases: list[tuple[str, list[Component], float | None]] = [
        ("stall, 400 MB model + Adam", Learner(device, 400, torch.float32).components(), 1.25),
        ("stall, 5,000 small tensors", [build_component("net", small)], None),
    ]
    for name, components, bar in cases:
        with Staging(components, CudaCopier()) as staging:
            stall = median_seconds(staging.snapshot, device)
        captured = [component.capture() for component in components]
        sources = [v for one in captured for v in one.values if isinstance(v, torch.Tensor)]
        is_cuda = device.type == "cuda"
        targets = [torch.empty(s.shape, dtype=s.dtype, pin_memory=is_cuda) for s in sources]

        def copy(targets: list[Any] = targets, sources: list[Any] = sources) -> None:
            with torch.no_grad():
                for target, source in zip(targets, sources, strict=True):
                    target.copy_(source, non_blocking=True)

        bare = median_seconds(copy, device)
        ratio = f"{stall / bare:.2f} x bare copies into pinned memory"
        figure = f"{stall * 1e3:.1f} ms, {ratio}"
        results.append(Result(name, figure, None if bar is None else stall <= bar * bare))
    return results


def check_order(device: torch.device, megabytes: int) -> list[Result]:
    """Stage a tensor between long queues of kernels: only what was queued before may be seen."""
    value = torch.zeros(1 << 24, device=device)
    exact = True
    with Staging([build_component("x", value)], CudaCopier()) as staging:
        for round_ in range(5):
            for _ in range(40):
                value.add_(1)
            staging.snapshot()
            value.add_(1)
            data = staging.files()["state/x.safetensors"]
            staged = torch.frombuffer(data[-value.numel() * 4 :], dtype=torch.float32)
            wanted = round_ * 41 + 40
            exact &= bool((staged == wanted).all())
    return [Result("staged values are those of the cut", "5 cuts between 40 kernels", exact)]


def check_round_trip(device: torch.device, megabytes: int) -> list[Result]:
    """Restore model, optimizer and generators into new objects, and train both on."""
    learner = Learner(device, 40, torch.bfloat16)
    learner.train(3)
    with Staging(learner.components(), CudaCopier()) as staging:
        files = staging.files()
    learner.train(3)
    other = Learner(device, 40, torch.bfloat16)
    components = other.components()
    decoded = [component.decode(files) for component in components]
    for component, value in zip(components, decoded, strict=True):
        component.check(value)
    for component, value in zip(components, decoded, strict=True):
        component.apply(value)
    other.train(3)
    exact = all_same(other.values(), learner.values())
    return [Result("restored run trains on bit for bit", "bf16 model, Adam, generators", exact)]


def check_training(device: torch.device, megabytes: int) -> list[Result]:
    """Train with and without snapshots to disk: what does a step lose, is the result the same?"""
    from pyengine import SnapshotEngine

    steps, every = 300, 50
    times: dict[str, float] = {}
    weights = {}
    stalls: list[float] = []
    for name in ("without", "with"):
        torch.manual_seed(7)
        learner = Learner(device, 400, torch.float32)
        with tempfile.TemporaryDirectory() as directory:
            engine = SnapshotEngine(directory, every_steps=every, keep_last=1, budget=1.0)
            engine.track(net=learner.net, optimizer=learner.optimizer)
            engine.restore()
            synchronize(device)
            started = time.perf_counter()
            for step in range(steps):
                learner.train(1)
                if name == "with":
                    tick = time.perf_counter()
                    if engine.tick(step) is not None:
                        stalls.append(time.perf_counter() - tick)
            synchronize(device)
            times[name] = (time.perf_counter() - started) / steps
            engine.close()
        weights[name] = learner.values()
    same = all_same(weights["with"], weights["without"])
    loss = times["with"] / times["without"] - 1
    figure = f"{times['without'] * 1e3:.2f} -> {times['with'] * 1e3:.2f} ms ({loss:+.1%})"
    stall = f"median {statistics.median(stalls) * 1e3:.1f}, max {max(stalls) * 1e3:.1f} ms"
    return [
        Result(f"step time, 400 MB every {every} steps", figure, None),
        Result("tick that takes a snapshot", f"{stall}, {len(stalls)} taken", bool(stalls)),
        Result("training with snapshots is bit-identical", f"{steps} steps", same),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
