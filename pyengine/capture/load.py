"""Values of a snapshot without the objects they came from: what `pyengine.load` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyengine.capture.decode import Decoder
from pyengine.capture.files import damage_in, read_parts
from pyengine.capture.leaves import plain
from pyengine.capture.tensorfile import TensorFile
from pyengine.capture.tree import Node


def load_component(files: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return one saved component as plain data; `files` are verified bytes by relative path.

    module: the state_dict, ready for load_state_dict(). optimizer, scheduler, scaler: likewise.
    tensor: a tensor or array. counters, state, environment: the value, with dataclasses as dicts.
    rng: the generator's state. Raises DamageError or FormatVersionError. Values share the memory of
    writable `files` buffers. Needs no native code.
    """
    structure, tensors, path = read_parts(files, name, kind)
    with damage_in(path):
        if kind == "module":
            from pyengine.capture.kinds.module import decode_module

            return plain(decode_module(structure, tensors, path)["state"])
        if kind == "optimizer" and structure["mode"] == "standard":
            return _optimizer_state(structure, tensors, path)
        return plain(Decoder(tensors, path).decode(structure["tree"]))


def _optimizer_state(structure: Node, tensors: TensorFile | None, path: str) -> dict[str, Any]:
    """Return what torch's Optimizer.state_dict() would give."""
    from pyengine.capture.kinds.optimizer import decode_optimizer

    saved = decode_optimizer(structure, tensors, path)
    groups = []
    start = 0
    for group in saved["groups"]:
        end = start + group["count"]
        groups.append({**plain(group["options"]), "params": list(range(start, end))})
        start = end
    return {"state": plain(saved["state"]), "param_groups": groups}
