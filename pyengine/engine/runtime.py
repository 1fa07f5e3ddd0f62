"""What a run runs on, as far as results depend on it: recorded in snapshots, compared at resume.

Threads decide the order of sums, devices and libraries the kernels, flags which of them may be
taken. Nothing here loads torch or starts CUDA.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyengine.capture.component import Captured
from pyengine.capture.lazy_torch import is_cuda_used, is_tensor, is_torch_loaded
from pyengine.engine.describe import versions

DEVICES = "devices"
"""Where modules and tracked tensors lie."""


def runtime(captured: Iterable[Captured]) -> dict[str, Any]:
    """Return threads, devices and flags by name; `captured` is what lies on those devices.

    Those of torch only where it is loaded, those of CUDA where it is in use.
    """
    found: dict[str, Any] = {"machine": platform.machine()}
    if is_torch_loaded():
        found |= _of_torch()
        found[DEVICES] = ", ".join(_devices(captured))
    return found


def _of_torch() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": _matmul_precision(),
        "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "CPU kernels": _cpu_kernels(),
    }
    if is_cuda_used():
        found |= {
            "GPUs": ", ".join(_gpus()),
            "cuDNN deterministic": torch.backends.cudnn.deterministic,
            "cuDNN benchmark": torch.backends.cudnn.benchmark,
        }
    return found


def _matmul_precision() -> str:
    """Return it as it was set, by either of torch's two ways: the first one raises after the other
    was used."""
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        matmul: Any = torch.backends.cuda.matmul
        return str(getattr(matmul, "fp32_precision", "unknown"))


@functools.cache
def _cpu_kernels() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


@functools.cache
def _gpus() -> tuple[str, ...]:
    import torch

    return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _devices(captured: Iterable[Captured]) -> list[str]:
    """Return where modules and tensors lie. What optimizers hold goes with their parameters, is not
    there before their first step, and may be counts that torch keeps on the CPU (Adam's `step`)."""
    found = {
        value.device
        for one in captured
        if one.kind in ("module", "tensor")
        for value in one.values
        if is_tensor(value)
    }
    return sorted(str(device) for device in found)


def differences(
    saved_versions: Mapping[str, str], saved: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for all that is not as it was when a snapshot was taken, with both sides.

    What only one side knows is not compared: a library that was imported later, say.
    """
    for name, then, now in (*_sides(saved_versions, versions()), *_sides(saved, here)):
        yield f"{name}: {then} when it was saved, {now} here"


def _sides(saved: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, then in saved.items():
        if name in here and here[name] != then:
            yield name, then, here[name]
