"""Modules: parameters and buffers by the names of state_dict(), written in place on restore."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pyengine.capture.component import Captured, Component, Decoded, Phase
from pyengine.capture.decode import Decoder
from pyengine.capture.inplace import has_overlap, is_consistent, same_bits, write_tensor
from pyengine.capture.merge import Merge
from pyengine.capture.protocol import type_name
from pyengine.capture.tensor_node import tensor_node
from pyengine.capture.tensorfile import TensorFile
from pyengine.capture.tree import Encoder, Node, join

_COMPILED = "_orig_mod"


@dataclass(slots=True)
class _Names:
    """Names of the tensors at `places` of a state_dict; `tied` are further names of a tensor, and
    `extra` the keys of what is no tensor."""

    names: list[str]
    places: list[int]
    tied: dict[str, str]
    extra: list[str]


class ModuleComponent(Component):
    """A torch module.

    Compiled, DDP and DataParallel wrappers are taken off, so that a snapshot fits the module with
    and without them.
    """

    kind = "module"
    phase = Phase.MODULE

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name)
        self.module = module
        self._names = _Names([], [], {}, [])
        self._named: Any = None

    def capture(self) -> Captured:
        """Return parameters and buffers; a tensor of several names is taken once."""
        state = bare(self.module).state_dict(keep_vars=True)
        values = list(state.values())
        # Naming 5,000 tensors takes 10 ms, comparing what the names depend on under one
        # (2026-11-30). Identities taken over by new objects do no harm: values are not remembered.
        named = (list(state), list(map(id, values)), list(map(type, values)))
        if named != self._named:
            self._names, self._named = self._name(state), named
        names = self._names
        extras = Encoder(self.name)
        structure: dict[str, Node] = {
            "type": type_name(bare(self.module)),
            "tied": names.tied,
            "extra": {
                plain_name(key): extras.encode(state[key], join("/extra", plain_name(key)))
                for key in names.extra
            },
            "versions": extras.encode(_versions(state), "/versions"),
            "inner": extras.names,
        }
        taken = [values[place] for place in names.places]
        return Captured(
            self.name,
            self.kind,
            structure,
            [*names.names, *extras.names],
            [*taken, *extras.values],
        )

    def _name(self, state: dict[str, Any]) -> _Names:
        """Name every tensor; refuse those without bytes of their own."""
        made = _Names([], [], {}, [])
        first: dict[int, str] = {}
        accepted: set[Any] = set()
        for place, (key, value) in enumerate(state.items()):
            name = plain_name(key)
            if not isinstance(value, torch.Tensor):
                made.extra.append(key)
            elif first.setdefault(id(value), name) != name:
                made.tied[name] = first[id(value)]
            else:
                sort = (type(value), value.layout, value.dtype, value.device)
                if sort not in accepted:
                    tensor_node(self.name, value, join("", name))
                    accepted.add(sort)
                made.names.append(name)
                made.places.append(place)
        return made

    def _decode(self, structure: Node, tensors: TensorFile | None, path: str) -> Any:
        return decode_module(structure, tensors, path)

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        saved: dict[str, Any] = decoded.value["state"]
        live = self._live()
        if set(saved) != set(live):
            raise self._mismatch(
                f"other entries: only here {sorted(set(live) - set(saved))[:8]}, "
                f"only in the snapshot {sorted(set(saved) - set(live))[:8]}",
                f"{len(live)} entries",
                f"{len(saved)} entries",
            )
        plain = is_plain(bare(self.module))
        for name, value in live.items():
            self._check_value(name, value, saved[name])
            if not plain and isinstance(value, torch.Tensor) and has_overlap(value):
                what = f"elements of {name} share memory, which load_state_dict() cannot write"
                raise self._mismatch(what, _sort(value), _sort(saved[name]))
        return self._check_ties(live, decoded.value)

    def _check_value(self, name: str, live: Any, saved: Any) -> None:
        if nn.parameter.is_lazy(live):
            raise self._mismatch(
                f"{name} has no shape yet: run one forward pass first", "lazy", _sort(saved)
            )
        if isinstance(live, torch.Tensor) != isinstance(saved, torch.Tensor):
            raise self._mismatch(f"{name} is of another type", _sort(live), _sort(saved))
        if not isinstance(live, torch.Tensor):
            return
        if live.shape != saved.shape or live.dtype != saved.dtype:
            raise self._mismatch(f"{name} does not fit", _sort(live), _sort(saved))
        if not is_consistent(live, saved):
            raise self._mismatch(
                f"elements of {name} share memory here and differ in the snapshot",
                _sort(live),
                _sort(saved),
            )

    def _check_ties(self, live: dict[str, Any], value: dict[str, Any]) -> tuple[str, ...]:
        """Refuse values that differ under names that are one tensor here."""
        saved, tied = value["state"], value["tied"]
        first: dict[int, str] = {}
        for name, tensor in live.items():
            other = first.setdefault(id(tensor), name)
            one, two = saved[name], saved[other]
            if other == name or one is two or not isinstance(tensor, torch.Tensor):
                continue
            if not same_bits(one, two):
                raise self._mismatch(
                    f"{name} and {other} are one tensor here and differ in the snapshot",
                    "tied",
                    "not tied",
                )
        loose = [alias for alias, name in tied.items() if live[alias] is not live[name]]
        return tuple(f"{alias} was tied to {tied[alias]} and is not here" for alias in loose)

    def apply(self, decoded: Decoded) -> None:
        saved: dict[str, Any] = decoded.value["state"]
        module = bare(self.module)
        if is_plain(module):
            for name, live in self._live().items():
                write_tensor(live, saved[name])
            return
        state = OrderedDict((key, saved[plain_name(key)]) for key in module.state_dict())
        # torch looks for the versions in an attribute of the dict, which OrderedDict lacks.
        state._metadata = _metadata(module, decoded.value["versions"])  # type: ignore[attr-defined]
        module.load_state_dict(state, strict=True)
        for name, live in self._live().items():
            if isinstance(live, torch.Tensor) and not same_bits(live, saved[name]):
                raise self._mismatch(
                    f"load_state_dict() left other values in {name}",
                    _sort(live),
                    _sort(saved[name]),
                )

    def live_tensors(self) -> list[tuple[str, Any]]:
        return [(f"{self.name}.{name}", value) for name, value in self._live().items()]

    def _live(self) -> dict[str, Any]:
        state = bare(self.module).state_dict(keep_vars=True)
        return {plain_name(key): value for key, value in state.items()}


def decode_module(structure: Node, tensors: TensorFile | None, path: str) -> dict[str, Any]:
    """Return {"state": entries with ties resolved, "tied", "versions"} of a saved module."""
    assert tensors is not None
    decoder = Decoder(tensors, path)
    extra = {
        name: Merge(path).fresh(decoder.value(node, join("/extra", name), 0))
        for name, node in structure["extra"].items()
    }
    tied: dict[str, str] = structure["tied"]
    names = [name for name in tensors.names if name not in set(structure["inner"])]
    state: dict[str, Any] = {name: tensors.tensor(name) for name in names}
    state.update((alias, state[name]) for alias, name in tied.items())
    versions = decoder.value(structure["versions"], "/versions", 0)
    return {"state": {**state, **extra}, "tied": tied, "versions": versions}


def bare(module: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's, DDP's and DataParallel's wrappers."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        inner: Any = module._modules.get(_COMPILED)
        if inner is None and isinstance(module, wrappers):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def plain_name(key: str) -> str:
    """Return the name of an entry as if no submodule were compiled."""
    return key.replace(_COMPILED + ".", "") if _COMPILED in key else key


def is_plain(module: nn.Module) -> bool:
    """Return whether state_dict() gives the live tensors themselves, with no code in between."""
    return all(_is_plain(part) for part in module.modules())


_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_METHODS = ("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict")


def _is_plain(module: nn.Module) -> bool:
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return False
    kind = type(module)
    if kind.get_extra_state is not nn.Module.get_extra_state:
        return False
    # torch's own overrides (batch norm, containers) only translate states of older versions.
    own = [getattr(kind, name) for name in _METHODS]
    return all(method.__module__.startswith("torch.nn.modules.") for method in own) or (
        "_orig_mod" in module._modules
    )


def _versions(state: Any) -> dict[str, Any]:
    """Return what state_dict() says about versions, where it is not the default."""
    metadata = getattr(state, "_metadata", None) or {}
    return {
        prefix: dict(entry) for prefix, entry in metadata.items() if entry.get("version", 1) != 1
    }


def _metadata(module: nn.Module, versions: dict[str, Any]) -> OrderedDict[str, Any]:
    names = [name for name, _ in module.named_modules(remove_duplicate=False)]
    return OrderedDict((name, versions.get(plain_name(name), {"version": 1})) for name in names)


def _sort(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
