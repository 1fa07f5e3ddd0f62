"""pyengine: shared-memory, zero-copy snapshots of a whole reinforcement-learning run.

Names are resolved on first use, so that the writer process and the command line start without
torch and NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "ReplayBuffer": "pyengine.replay.ring",
    "PrioritizedReplayBuffer": "pyengine.replay.priorities",
    "LinearSchedule": "pyengine.replay.schedules",
    "Batch": "pyengine.replay.batch",
    "Column": "pyengine.replay.column",
    "NStep": "pyengine.replay.steps",
    "Schema": "pyengine.format.schema",
    "Field": "pyengine.format.schema",
    "SnapshotEngine": "pyengine.engine.engine",
    "PendingSnapshot": "pyengine.engine.pending",
    "RestoreReport": "pyengine.engine.report",
    "SnapshotInfo": "pyengine.catalog.info",
    "EnvironmentState": "pyengine.capture.environment",
    "Pickled": "pyengine.capture.pickled",
    "open_run": "pyengine.catalog.run",
    "load": "pyengine.catalog.load",
}

__all__ = ["__version__", "errors", "porting", *_PUBLIC]

if TYPE_CHECKING:
    from pyengine import errors as errors
    from pyengine import porting as porting
    from pyengine.capture.environment import EnvironmentState as EnvironmentState
    from pyengine.capture.pickled import Pickled as Pickled
    from pyengine.catalog.info import SnapshotInfo as SnapshotInfo
    from pyengine.catalog.load import load as load
    from pyengine.catalog.run import open_run as open_run
    from pyengine.engine.engine import SnapshotEngine as SnapshotEngine
    from pyengine.engine.pending import PendingSnapshot as PendingSnapshot
    from pyengine.engine.report import RestoreReport as RestoreReport
    from pyengine.format.schema import Field as Field
    from pyengine.format.schema import Schema as Schema
    from pyengine.replay.batch import Batch as Batch
    from pyengine.replay.column import Column as Column
    from pyengine.replay.priorities import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from pyengine.replay.ring import ReplayBuffer as ReplayBuffer
    from pyengine.replay.schedules import LinearSchedule as LinearSchedule
    from pyengine.replay.steps import NStep as NStep


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("pyengine.errors")
    if name == "porting":
        return import_module("pyengine.porting")
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'pyengine' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
