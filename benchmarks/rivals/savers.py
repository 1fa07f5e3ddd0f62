"""Ways of saving a model with its optimizer: torch.save, safetensors, and two asynchronous ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.models import change, large_model, state_tensors
from benchmarks.pending import Pending


class ModelSaver:
    """A network with Adam, changed before every save.

    A way of saving adds `save(place)`: into that empty directory; it returns None where the save is
    complete already.
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

    def save(self, place: Path) -> Pending | None:
        raise NotImplementedError

    def end_step(self, number: int, interval: int, place: Path) -> Pending | None:
        """End a step of training: save into `place` where `interval` divides its number."""
        return self.save(place) if number % interval == 0 else None

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
    def save(self, place: Path) -> Pending:
        return dcp_async_save(self.state_dicts(), place)


class Torchsnapshot(ModelSaver):
    def save(self, place: Path) -> Pending:
        return torchsnapshot_async_take({"model": self.model, "optimizer": self.optimizer}, place)


def dcp_async_save(state: dict[str, Any], place: Path) -> Pending:
    """torch.distributed.checkpoint.async_save: staging in the loop, writing in a thread."""
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

    answer = async_save(state, checkpoint_id=place / "checkpoint", no_dist=True)
    future = answer.upload_completion if isinstance(answer, AsyncSaveResponse) else answer
    return Pending(future.result, future.done)


def torchsnapshot_async_take(state: dict[str, Any], place: Path) -> Pending:
    """torchsnapshot's async_take: staging in the loop, writing in a thread."""
    from torchsnapshot import Snapshot

    pending = Snapshot.async_take(str(place / "snapshot"), app_state=state)
    return Pending(pending.wait, pending.done)
