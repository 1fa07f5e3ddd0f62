"""Optimizers: the state of every parameter by its place in the groups, and the groups' options.

torch's own load_state_dict() casts state to its parameter's dtype and replaces dicts and tensors;
here state keeps its dtype and live tensors are refilled. Optimizers that bring their own
state_dict() (or hooks on it) are saved and restored through it (see custom_optimizer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from pyengine.capture.component import Captured, Component, Decoded, Phase
from pyengine.capture.decode import Decoder
from pyengine.capture.files import damage_in, structure_path
from pyengine.capture.leaves import TensorLeaf
from pyengine.capture.merge import MISSING, Merge
from pyengine.capture.protocol import type_name
from pyengine.capture.tensor_node import tensor_node
from pyengine.capture.tensorfile import TensorFile
from pyengine.capture.tree import Encoder, Node, join

_FLAT = "state"
"""Prefix of tensors that lie directly in a parameter's state: state/<parameter>/<key>."""


@dataclass(slots=True)
class _Names:
    """What is where in an optimizer's state; `places` count all values in the state's order.

    `tied` maps further names of a tensor to its first, `away` lists tensors that are on another
    device than their parameter, `others` are values that are no tensors, by parameter and key.
    """

    names: list[str]
    places: list[int]
    tied: dict[str, str]
    away: list[str]
    others: dict[int, dict[str, int]]

    def add(self, name: str, place: int, *, is_away: bool) -> None:
        self.names.append(name)
        self.places.append(place)
        if is_away:
            self.away.append(name)


class OptimizerComponent(Component):
    """A torch optimizer with the standard state_dict()."""

    kind = "optimizer"
    phase = Phase.OPTIMIZER

    def __init__(self, name: str, optimizer: Optimizer) -> None:
        super().__init__(name)
        self.optimizer = optimizer
        self._names = _Names([], [], {}, [], {})
        self._named: Any = None

    def capture(self) -> Captured:
        """Return the state of all parameters and the options of all groups."""
        encoder = Encoder(self.name)
        parameters = list(_parameters(self.optimizer))
        values = [value for state in self.optimizer.state.values() for value in state.values()]
        print_of_state = _print(self.optimizer, parameters, values)
        if print_of_state != self._named:
            self._names = self._name(parameters, encoder)
            self._named = print_of_state
        names = self._names
        structure = {
            "mode": "standard",
            "type": type_name(self.optimizer),
            "parameters": [_sort(parameter) for parameter in parameters],
            "groups": [self._group(encoder, i, g) for i, g in enumerate(_groups(self.optimizer))],
            "values": {
                str(index): {
                    key: encoder.encode(values[place], join(f"/values/{index}", key))
                    for key, place in places.items()
                }
                for index, places in names.others.items()
            },
            "tied": names.tied,
            "away": names.away,
        }
        return Captured(
            self.name,
            self.kind,
            structure,
            [*names.names, *encoder.names],
            [*(values[place] for place in names.places), *encoder.values],
        )

    def _name(self, parameters: list[torch.Tensor], encoder: Encoder) -> _Names:
        """Name everything that lies in the parameters' state."""
        index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
        made = _Names([], [], {}, [], {})
        first: dict[int, str] = {}
        accepted: set[Any] = set()
        place = -1
        for parameter, state in self.optimizer.state.items():
            index = index_of.get(id(parameter))
            if index is None:
                raise encoder.error("/state", "it holds state of what is no parameter of its own")
            for key, value in state.items():
                place += 1
                if type(key) is not str:
                    raise encoder.error(f"/{index}", f"state under a key that is no text: {key!r}")
                name = f"{_FLAT}/{index}/{key}"
                if type(value) is not torch.Tensor:
                    made.others.setdefault(index, {})[key] = place
                elif first.setdefault(id(value), name) != name:
                    made.tied[name] = first[id(value)]
                else:
                    sort = (value.layout, value.dtype, value.device)
                    if sort not in accepted:
                        tensor_node(self.name, value, "/" + name)
                        accepted.add(sort)
                    made.add(name, place, is_away=value.device != parameter.device)
        return made

    def _group(self, encoder: Encoder, index: int, group: dict[str, Any]) -> Node:
        options = {key: value for key, value in group.items() if key != "params"}
        node = encoder.encode(options, f"/groups/{index}")
        return {"count": len(group["params"]), "options": node}

    def _decode(self, structure: Node, tensors: TensorFile | None, path: str) -> Any:
        if structure["mode"] != "standard":
            raise self._mismatch("saved by a state_dict() of its own", "standard", "custom")
        return decode_optimizer(structure, tensors, path)

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        with damage_in(structure_path(self.name, self.kind)):
            decoded.plan = self._plan(decoded.value)
        return tuple(decoded.plan.notes)

    def apply(self, decoded: Decoded) -> None:
        self._planned(decoded, self._plan).run()
        # Brings state of an older torch up to date, as torch's own load_state_dict() does.
        self.optimizer.__setstate__(
            {"state": self.optimizer.state, "param_groups": self.optimizer.param_groups}
        )

    def _plan(self, saved: dict[str, Any]) -> Merge:
        """Plan the restore; StateMismatchError where groups or parameters do not fit."""
        self._check_shape(saved)
        merge = Merge(self.name)
        if saved["type"] != type_name(self.optimizer):
            raise self._mismatch("another optimizer", type_name(self.optimizer), saved["type"])
        for index, (group, entry) in enumerate(
            zip(_groups(self.optimizer), saved["groups"], strict=True)
        ):
            self._plan_group(merge, index, group, entry["options"])
        for index, (parameter, group) in enumerate(_owners(self.optimizer)):
            self._plan_state(merge, index, parameter, group, saved["state"].get(index, {}))
        return merge

    def _check_shape(self, saved: dict[str, Any]) -> None:
        counts = [len(group["params"]) for group in _groups(self.optimizer)]
        got = [group["count"] for group in saved["groups"]]
        if counts != got:
            raise self._mismatch("other numbers of parameters per group", counts, got)
        for index, parameter in enumerate(_parameters(self.optimizer)):
            here, there = _sort(parameter), saved["parameters"][index]
            if here != there:
                raise self._mismatch(f"parameter {index} is another one", here, there)

    def _plan_group(
        self, merge: Merge, index: int, group: dict[str, Any], options: dict[str, Any]
    ) -> None:
        path = f"/groups/{index}"
        new = {
            key: merge.value(group.get(key, MISSING), value, join(path, key))
            for key, value in options.items()
        }
        for key, value in new.items():
            if _is_plain(value) and key in group and group[key] != value:
                merge.notes.append(
                    f"{self.name}{path}: {key} is {value!r} as saved, not {group[key]!r}"
                )
        merge.actions.append(lambda: group.update(new))

    def _plan_state(
        self,
        merge: Merge,
        index: int,
        parameter: torch.Tensor,
        group: dict[str, Any],
        saved: dict[str, Any],
    ) -> None:
        state = self.optimizer.state
        if not saved:
            merge.actions.append(lambda: state.pop(parameter, None))
            return
        live: dict[str, Any] = state.get(parameter, {})
        on_host = not (group.get("capturable") or group.get("fused"))
        new = {}
        for key, value in saved.items():
            if type(value) is TensorLeaf:
                _place(value, parameter, is_host=key == "step" and on_host)
            new[key] = merge.value(live.get(key, MISSING), value, f"/{_FLAT}/{index}/{key}")
        merge.actions.append(lambda: _refill(state, parameter, new))


def decode_optimizer(structure: Node, tensors: TensorFile | None, path: str) -> dict[str, Any]:
    """Return the saved optimizer: "parameters", "groups", and "state" by parameter index."""
    decoder = Decoder(tensors, path)
    groups = [
        {
            "count": group["count"],
            "options": decoder.value(group["options"], f"/groups/{index}", 0),
        }
        for index, group in enumerate(structure["groups"])
    ]
    state: dict[int, dict[str, Any]] = {}
    for name, leaf in _flat_leaves(structure, tensors).items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = leaf
    for index, nodes in structure["values"].items():
        for key, node in nodes.items():
            value = decoder.value(node, join(f"/values/{index}", key), 0)
            state.setdefault(int(index), {})[key] = value
    return {
        "type": structure["type"],
        "parameters": structure["parameters"],
        "groups": groups,
        "state": state,
    }


def _flat_leaves(structure: Node, tensors: TensorFile | None) -> dict[str, TensorLeaf]:
    """Return the tensors that lie directly in a parameter's state, by "<parameter>/<key>"."""
    away = set(structure["away"])
    prefix = _FLAT + "/"
    leaves = {}
    for name in tensors.names if tensors is not None else ():
        if name.startswith(prefix) and tensors is not None:
            device = "cpu" if name in away else "parameter"
            leaves[name.removeprefix(prefix)] = TensorLeaf(tensors.tensor(name), device)
    for alias, name in structure["tied"].items():
        leaves[alias.removeprefix(prefix)] = leaves[name.removeprefix(prefix)]
    return leaves


def _print(optimizer: Optimizer, parameters: list[torch.Tensor], values: list[Any]) -> Any:
    """Return what names depend on: equal prints, equal names.

    Naming 15,000 tensors takes 30 ms and comparing their identities 4 (2026-11-30); identities
    that were taken over by new objects do no harm, since values are never remembered.
    """
    states = optimizer.state
    return (
        list(map(id, parameters)),
        [parameter.device for parameter in parameters],
        list(map(id, states)),
        list(map(len, states.values())),
        [key for state in states.values() for key in state],
        list(map(id, values)),
        list(map(type, values)),
    )


def is_standard(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's state is what torch's own state_dict() says."""
    kind = type(optimizer)
    hooks = (
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_load_state_dict_post_hooks",
    )
    return (
        kind.state_dict is Optimizer.state_dict
        and kind.load_state_dict is Optimizer.load_state_dict
        and not any(getattr(optimizer, name, None) for name in hooks)
        and all(isinstance(key, torch.Tensor) for key in optimizer.state)
    )


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    return optimizer.param_groups


def _owners(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    for group in _groups(optimizer):
        for parameter in group["params"]:
            yield parameter, group


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for parameter, _ in _owners(optimizer):
        yield parameter


def _place(leaf: TensorLeaf, parameter: torch.Tensor, *, is_host: bool) -> None:
    """Say where a new tensor goes: beside its parameter, and in the parameter's order of axes."""
    if leaf.device == "parameter":
        leaf.device = "cpu" if is_host else str(parameter.device)
    if leaf.value.shape == parameter.shape and not parameter.is_contiguous():
        leaf.stride = torch.empty_like(parameter, device="meta").stride()


def _refill(state: Any, parameter: torch.Tensor, new: dict[str, Any]) -> None:
    live = state.setdefault(parameter, {})
    live.clear()
    live.update(new)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple))


def _sort(value: torch.Tensor) -> list[Any]:
    return [str(value.dtype).removeprefix("torch."), *value.shape]
