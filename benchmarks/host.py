"""Where and with what a result was measured."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.rivals import DISTRIBUTIONS, DURABLE

PACKAGES = ("pyengine-rl", "torch", "numpy", "safetensors", "xxhash", "msgpack", "posix-ipc")


def describe_host(directory: Path) -> dict[str, object]:
    """Return host, versions, guarantees and file system as plain values."""
    return {
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": _file_system(directory),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "rivals": {name: _version(name) for name in DISTRIBUTIONS if name not in PACKAGES},
        "guarantee": DURABLE,
    }


def available_memory_bytes() -> int:
    """Return the memory that can be taken without swapping, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no line MemAvailable")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """Return type and device of the mount that holds `directory`."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        if str(directory.resolve()).startswith(mount) and len(mount) >= len(best[0]):
            best = (mount, f"{kind} on {device}")
    return best[1]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
