"""Ways of saving a model with its optimizer: torch.save, safetensors, and two asynchronous ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import change, large_model, state_tensors


class ModelSaver:
    """A network with Adam, changed before every save.

    A way of saving adds `save(place)`: into that empty directory; it returns what waits until the
    save is complete, None where it is already.
    """

    durable = False

    def __init__(self, layers: int, directory: Path) -> None:
        self.model, self.optimizer = large_model(layers)
        self.state_bytes = sum(
            tensor.numel() * tensor.element_size()
            for tensor in state_tensors(self.model, self.optimizer).values()
        )

    def change(self) -> None:
        change(self.model)

    def state_dicts(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def close(self) -> None:
        pass


class TorchSave(ModelSaver):
    def save(self, place: Path) -> None:
        torch.save(self.state_dicts(), place / "state.pt")


class Safetensors(ModelSaver):
    def save(self, place: Path) -> None:
        from safetensors.torch import save_file

        save_file(state_tensors(self.model, self.optimizer), place / "state.safetensors")


class DistributedCheckpoint(ModelSaver):
    """torch.distributed.checkpoint.async_save: staging in the loop, writing in a thread."""

    def save(self, place: Path) -> Callable[[], None]:
        from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

        future = async_save(self.state_dicts(), checkpoint_id=place / "checkpoint", no_dist=True)

        def wait() -> None:
            staged = isinstance(future, AsyncSaveResponse)
            (future.upload_completion if staged else future).result()

        return wait


class Torchsnapshot(ModelSaver):
    """torchsnapshot's async_take: staging in the loop, writing in a thread."""

    def save(self, place: Path) -> Callable[[], None]:
        from torchsnapshot import Snapshot

        state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        pending = Snapshot.async_take(str(place / "snapshot"), app_state=state)

        def wait() -> None:
            pending.wait()

        return wait
