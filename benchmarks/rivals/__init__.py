"""Every way of keeping and saving a replay or a model that pyengine is measured against.

The one list of them. Nothing here imports a rival: each lives in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

NOTHING = "no fsync, no checksum"


@dataclass(frozen=True, slots=True)
class Rival:
    """A class in `benchmarks.rivals`, the distributions it needs, and what its save guarantees."""

    name: str
    target: str
    needs: tuple[str, ...] = ()
    guarantee: str = ""

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in self.needs}

    @property
    def is_installed(self) -> bool:
        try:
            return bool(self.versions) or not self.needs
        except PackageNotFoundError:
            return False


DURABLE = "fsync of every file and directory, XXH3-64 of every block and file, one atomic commit"

OURS = Rival("pyengine", "ours:Replay", guarantee=DURABLE)
OUR_PRIORITIZED = Rival("pyengine", "ours:Prioritized")
OUR_TRAINED = Rival("pyengine", "ours:Trained", guarantee=DURABLE)
OUR_SAVER = Rival("pyengine", "ours:Saver", guarantee=DURABLE)

ROW_GATHER = Rival("c_gather", "limits:RowGather")
MEMCPY = Rival("memcpy", "limits:Memcpy")

SB3 = Rival("sb3", "sb3:Replay", ("stable-baselines3",), NOTHING)
TIANSHOU = Rival("tianshou", "tianshou:Replay", ("tianshou", "h5py", "pandas"), NOTHING)
TIANSHOU_PICKLE = Rival("tianshou_pickle", "tianshou:Pickled", ("tianshou",), NOTHING)
TORCHRL = Rival("torchrl", "torchrl:Replay", ("torchrl", "tensordict"), NOTHING)
TORCHRL_MEMMAP = Rival("torchrl_memmap", "torchrl:Memmap", ("torchrl", "tensordict"), NOTHING)
TORCHRL_CHECKPOINT = Rival(
    "torchrl_checkpoint",
    "torchrl:Checkpointed",
    ("torchrl", "tensordict"),
    "no fsync, no checksum; one atomic rename",
)
CPPRB = Rival("cpprb", "cpprb:Replay", ("cpprb",), "no fsync; CRC-32 of compressed zip members")
CPPRB_PRIORITIZED = Rival("cpprb", "cpprb:Prioritized", ("cpprb",))

REPLAYS = (SB3, TIANSHOU, TORCHRL, TORCHRL_MEMMAP, CPPRB)
"""Each storage once: what sampling and adding are measured on."""

SAVED_REPLAYS = (
    SB3, TIANSHOU, TIANSHOU_PICKLE, TORCHRL, TORCHRL_MEMMAP, TORCHRL_CHECKPOINT, CPPRB,
)  # fmt: skip

DCP_GUARANTEE = "fsync of files, not of directories; no checksum"

TRAINED_REPLAYS = (
    Rival("sb3", "sb3:Trained", ("stable-baselines3",), NOTHING),
    TIANSHOU,
    TIANSHOU_PICKLE,
    TORCHRL,
    Rival("npz_safetensors", "arrays:Npz", ("safetensors",), NOTHING),
    Rival("torch_dcp_async", "arrays:DistributedCheckpoint", ("torch",), DCP_GUARANTEE),
    Rival("torchsnapshot_async", "arrays:Torchsnapshot", ("torchsnapshot", "torch"), NOTHING),
)
"""What a training loop may save itself with, replay and learner: each kind of save once."""

SAVERS = (
    Rival("torch_save", "savers:TorchSave", ("torch",), "no fsync; CRC-32 of zip members"),
    Rival("safetensors", "savers:Safetensors", ("safetensors", "torch"), NOTHING),
    Rival(
        "torch_dcp_async", "savers:DistributedCheckpoint", ("torch",), DCP_GUARANTEE
    ),
    Rival("torchsnapshot_async", "savers:Torchsnapshot", ("torchsnapshot", "torch"), NOTHING),
)  # fmt: skip

DISTRIBUTIONS = tuple(
    dict.fromkeys(name for rival in (*SAVED_REPLAYS, *SAVERS) for name in rival.needs)
)
