"""A walk over an algorithm of Tianshou: which of its parts hold state, and what else changes in it.

Followed are modules and the library's own objects (noises, statistics, temperatures), through
attributes, lists, tuples and dicts. Found are networks, optimizers, schedulers, generators of
spaces, and plain attributes. Of those only what a run has changed is state; what no run changes is
a setting, and stays the script's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.data import ReplayBuffer
from tianshou.utils.lagged_network import LaggedNetworkCollection
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pyengine.capture.protocol import type_text
from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError, StateMismatchError

_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
_PASSED = frozenset(
    {
        # Set by contexts of the library around each use.
        "training", "is_within_training_step",
        # Saved as components of their own.
        "lr_schedulers", "_optimizers",
    }
)  # fmt: skip
_LISTS = ("lr_schedulers", "_optimizers")
_CODE = (
    functools.partial, types.FunctionType, types.MethodType, types.BuiltinFunctionType,
    types.ModuleType, type,
)  # fmt: skip
_SCHEDULERS = (LRScheduler, ReduceLROnPlateau)
_SAVED_APART = (torch.optim.Optimizer, *_SCHEDULERS, LaggedNetworkCollection, ReplayBuffer)


class Walk:
    """What attributes of `root` lead to, by path. `passed` names attributes of root itself to leave
    out."""

    def __init__(self, root: Any, *, passed: frozenset[str] = frozenset()) -> None:
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.schedulers: dict[str, Any] = {}
        self.spaces: dict[str, spaces.Space[Any]] = {}
        self.owners: dict[str, Any] = {}
        """Objects whose plain attributes may be state."""
        self.foreign: dict[str, str] = {}
        """Objects that were not followed, by path, and what they are."""
        self._root = root
        self._passed = passed
        self._met: set[int] = set()
        self._visit("", root)

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, (torch.Tensor, np.ndarray)) or not _has_identity(value):
            return
        if id(value) in self._met:
            return
        self._met.add(id(value))
        if isinstance(value, torch.optim.Optimizer):
            self.optimizers[path] = value
        elif isinstance(value, _SCHEDULERS):
            self.schedulers[path] = value
        elif isinstance(value, spaces.Space):
            self.spaces[path] = value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                self._visit(f"{path}.{index}", item)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._visit(f"{path}.{key}", item)
        elif isinstance(value, (*_SAVED_APART, *_CODE)):
            return
        elif value is self._root or isinstance(value, nn.Module) or _is_librarys(value):
            self.owners[path] = value
            # Under the algorithm's own names for them, where it has any, before those of lists.
            for name, item in sorted(self._attributes(value), key=lambda one: one[0] in _LISTS):
                self._visit(f"{path}.{name}" if path else name, item)
        elif not _is_plain(value):
            self.foreign[path] = type_text(value)

    def _attributes(self, owner: Any) -> Iterator[tuple[str, Any]]:
        passed = self._passed if owner is self._root else frozenset()
        is_module = isinstance(owner, nn.Module)
        if not (is_module and type(owner).__module__.startswith("torch.")):
            for name, value in vars(owner).items():
                if name not in passed and not (is_module and name in _OF_MODULES):
                    yield name, value
        if is_module:
            yield from owner.named_children()

    def plain(self) -> Iterator[tuple[str, Any, str, Any]]:
        """Yield (path, owner, name, value) of attributes that may be plain state."""
        for path, owner in self.owners.items():
            for name, value in self._attributes(owner):
                place = f"{path}.{name}" if path else name
                if name not in _PASSED and not self._is_entered(place, value):
                    yield place, owner, name, value

    def _is_entered(self, place: str, value: Any) -> bool:
        """Whether a value is no plain one: the walk has gone into it, or somebody else saves it."""
        if isinstance(value, (nn.Module, spaces.Space, *_SAVED_APART, *_CODE)):
            return True
        if _has_identity(value) and _is_librarys(value):
            return True
        if isinstance(value, (list, tuple, dict)):
            return not _is_plain(value)
        return place in self.foreign


class Networks(nn.Module):
    """All networks of an algorithm in one module, whose state_dict holds tensors alone.

    The library's own state_dict of an algorithm has states of optimizers in it.
    """

    def __init__(self, algorithm: nn.Module) -> None:
        super().__init__()
        for name, parameter in algorithm.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in algorithm.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        for name, child in algorithm.named_children():
            self.add_module(name, Networks(child) if isinstance(child, Algorithm) else child)


class Attributes:
    """What a run changes in the attributes that a walk finds; `unsaved` says what cannot be saved.

    An attribute is state once it differs from what it was when this was made, and from then on.
    """

    def __init__(self, root: Any, *, passed: frozenset[str] = frozenset()) -> None:
        self._root = root
        self._passed = passed
        self.unsaved: dict[str, str] = {}
        self._settings: dict[str, Any] = {}
        self._changed: set[str] = set()
        for place, _, _, value in self.walk().plain():
            self._settings[place] = self._print(place, value)

    def walk(self) -> Walk:
        """Walk over everything as it is now."""
        return Walk(self._root, passed=self._passed)

    def get_state(self) -> dict[str, Any]:
        """Return changed attributes by path, and the states of the spaces' generators."""
        walk = self.walk()
        values = {}
        for place, _, _, value in walk.plain():
            found = self._print(place, value)
            if found is None:
                continue
            if place in self._changed or self._settings.get(place) != found:
                self._changed.add(place)
                values[place] = value
        for place, kind in walk.foreign.items():
            self.unsaved.setdefault(place, f"{kind} is not known")
        generators = {
            path: [one.bit_generator.state for one in generators_of(space)]
            for path, space in walk.spaces.items()
        }
        return {"values": values, "spaces": generators}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put them back; StateMismatchError where the attribute's owner is not there."""
        walk = self.walk()
        for place, value in state["values"].items():
            path, _, name = place.rpartition(".")
            owner = walk.owners.get(path)
            if owner is None:
                raise StateMismatchError(
                    f"the algorithm has no {path or 'such object'}, of which the snapshot holds "
                    f"{name}: make it as the run did",
                    component="algorithm", expected="nothing", got=place,
                )  # fmt: skip
            self._changed.add(place)
            live = vars(owner).get(name)
            if isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor):
                value = value.to(live.device)
            setattr(owner, name, value)
        for path, saved in state["spaces"].items():
            space = walk.spaces.get(path)
            if space is not None:
                for generator, one in zip(generators_of(space), saved, strict=True):
                    generator.bit_generator.state = one

    def _print(self, place: str, value: Any) -> Any:
        """Return what tells a plain value from others; None, and a word, for what is not plain."""
        encoder = Encoder(place)
        try:
            node = encoder.encode(value)
        except CaptureError as error:
            if _has_identity(value):
                self.unsaved.setdefault(place, str(error))
            return None
        arrays = [
            (str(one.dtype), tuple(one.shape), np.asarray(one.detach().cpu()).tobytes())
            if isinstance(one, torch.Tensor)
            else (str(one.dtype), one.shape, one.tobytes())
            for one in encoder.values
        ]
        return repr(node), arrays


def _is_plain(value: Any) -> bool:
    try:
        Encoder("attribute").encode(value)
    except CaptureError:
        return False
    return True


def _has_identity(value: Any) -> bool:
    return not (value is None or isinstance(value, (bool, int, float, complex, str, bytes)))


def _is_librarys(value: Any) -> bool:
    """Return whether an object is of a class of the library, or of one derived from it."""
    kinds = type(value).__mro__
    return any(kind.__module__.partition(".")[0] == "tianshou" for kind in kinds)


def generators_of(space: spaces.Space[Any]) -> Iterator[np.random.Generator]:
    """Yield the generators of a space and of the spaces in it, in a fixed order."""
    yield space.np_random
    inner: Any = getattr(space, "spaces", ())
    for one in inner.values() if isinstance(inner, dict) else inner:
        yield from generators_of(one)
