"""Optimizers with a state_dict() of their own: it is taken and given back as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from pyengine.capture.component import Captured, Decoded, Phase
from pyengine.capture.files import damage_in, structure_path
from pyengine.capture.inplace import same_bits
from pyengine.capture.kinds.stateful import StatefulComponent
from pyengine.capture.leaves import plain
from pyengine.capture.protocol import type_name
from pyengine.capture.tensorfile import TensorFile
from pyengine.capture.tree import Node


class CustomOptimizerComponent(StatefulComponent):
    """An optimizer that has its own state_dict(), or hooks on it."""

    kind = "optimizer"
    phase = Phase.OPTIMIZER

    def capture(self) -> Captured:
        """Return what state_dict() gives, as it is now."""
        captured = super().capture()
        structure = {"mode": "custom", **captured.structure}
        return Captured(self.name, self.kind, structure, captured.names, captured.values)

    def _decode(self, structure: Node, tensors: TensorFile | None, path: str) -> Any:
        if structure["mode"] != "custom":
            raise self._mismatch("saved without its own state_dict()", "custom", "standard")
        return super()._decode(structure, tensors, path)

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        here, there = type_name(self.value), decoded.value["type"]
        if here != there:
            raise self._mismatch("another optimizer", here, there)
        counts = [len(group["params"]) for group in self.value.param_groups]
        with damage_in(structure_path(self.name, self.kind)):
            groups = self._saved_dict(decoded).get("param_groups", [])
            got = [len(group["params"]) for group in groups]
        if got and counts != got:
            raise self._mismatch("other numbers of parameters per group", counts, got)
        return super().check(decoded)

    def apply(self, decoded: Decoded) -> None:
        self.value.load_state_dict(self._fresh(decoded))
        self._undo_casts(decoded)

    def _undo_casts(self, decoded: Decoded) -> None:
        """Put back state that load_state_dict() cast to its parameter's dtype."""
        optimizer: Optimizer = self.value
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        saved = plain(decoded.value["tree"]).get("state", {})
        for index, state in saved.items() if isinstance(saved, dict) else ():
            if not (isinstance(index, int) and index < len(parameters) and isinstance(state, dict)):
                continue
            live = optimizer.state.get(parameters[index], {})
            for key, value in state.items():
                now = live.get(key)
                if not (isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor)):
                    continue
                if now.dtype != value.dtype and not same_bits(now, value):
                    live[key] = value.to(now.device, copy=True)
