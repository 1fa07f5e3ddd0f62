"""TorchRL: a storage whose rows are saved as they come, and runs that go on where they were killed.

    RingStorage      takes the place of LazyTensorStorage
    TrainingRun      saves and restores a loop: buffer, collector, environment, and what is tracked
    SnapshotHook     the same for a torchrl.trainers.Trainer
    RowsCheckpointAdapter    the buffer's rows in a torchrl.checkpoint.Checkpoint

A run goes on exactly without prefetch and with one collector in this process; `TrainingRun.level`
says so, or why not.
"""

from pyengine.integrations.torchrl.checkpoint import RowsCheckpointAdapter
from pyengine.integrations.torchrl.run import TrainingRun
from pyengine.integrations.torchrl.storage import RingStorage
from pyengine.integrations.torchrl.trainer import SnapshotHook

__all__ = ["RingStorage", "RowsCheckpointAdapter", "SnapshotHook", "TrainingRun"]
