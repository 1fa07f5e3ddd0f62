"""Values of a snapshot without the objects they came from: what `pyengine.load` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyengine.capture.decode import Decoder
from pyengine.capture.files import PICKLE, damage_in, pickle_path, read_parts
from pyengine.capture.leaves import plain
from pyengine.capture.tensorfile import TensorFile
from pyengine.capture.tree import Node
from pyengine.errors import DamageError, PickleRefusedError


def load_component(
    files: Mapping[str, Any], name: str, kind: str, *, may_unpickle: bool = False
) -> Any:
    """Return one saved component as plain data; `files` are verified bytes by relative path.

    module: the state_dict, ready for load_state_dict(). optimizer, scheduler, scaler: likewise.
    tensor: a tensor or array. counters, state, environment: the value, with dataclasses as dicts.
    rng: the generator's state. pickle: the object, where the caller has allowed this one
    (`may_unpickle`, which runs its code), else PickleRefusedError. Raises DamageError or
    FormatVersionError. Values share the memory of writable `files` buffers. Needs no native code.
    """
    if kind == PICKLE:
        return _unpickled(files, name, may_unpickle)
    structure, tensors, path = read_parts(files, name, kind)
    with damage_in(path):
        if kind == "module":
            from pyengine.capture.kinds.module import decode_module

            return plain(decode_module(structure, tensors, path)["state"])
        if kind == "optimizer" and structure["mode"] == "standard":
            return _optimizer_state(structure, tensors, path)
        return plain(Decoder(tensors, path).decode(structure["tree"]))


def _unpickled(files: Mapping[str, Any], name: str, may_unpickle: bool) -> Any:
    if not may_unpickle:
        raise PickleRefusedError(
            f"{name!r} was saved by pickle, which runs code of whoever wrote it when it is read. "
            f"If you trust this snapshot: pyengine.load(path, allow_pickle=[{name!r}])",
            component=name,
        )
    from pyengine.capture.pickled import load

    path = pickle_path(name)
    if path not in files:
        raise DamageError(f"{path}: the snapshot lacks this file of {name!r}", path=path)
    return load(files[path], name)


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
