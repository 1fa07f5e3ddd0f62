"""From decoded values into live objects, in two steps: plan everything, then do it.

Planning walks the saved tree beside the live one and changes nothing; it raises for whatever would
not fit. What it leaves are actions. A live container, array, tensor, generator or dataclass that
matches is kept and refilled, so that references to it elsewhere stay good; where none is there, a
new one is made. Generators are set by separate, late actions: nothing may draw from them later.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pyengine.capture.lazy_torch import is_tensor
from pyengine.capture.leaves import (
    DataclassLeaf,
    EnumLeaf,
    NamedTupleLeaf,
    ObjectLeaf,
    RngLeaf,
    TensorLeaf,
    lost_factory,
)
from pyengine.capture.protocol import find_type, state_methods, type_name
from pyengine.capture.rngs import check_rng_state, make_rng, rng_kind, set_rng_state
from pyengine.capture.tree import join
from pyengine.errors import StateMismatchError


class Missing:
    """The absence of a live value."""


MISSING = Missing()


class Merge:
    """One plan for one component: call `value` for the roots, then `run`, later `run_late`.

    `notes` are lines for people: differences that are no errors. Raises StateMismatchError while
    planning; `run` raises what the objects' own methods raise.
    """

    def __init__(self, component: str) -> None:
        self.component = component
        self.actions: list[Callable[[], Any]] = []
        self.late: list[Callable[[], Any]] = []
        self.notes: list[str] = []
        self._made: dict[int, tuple[Any, Any]] = {}
        self._claimed: dict[int, Any] = {}

    def run(self) -> None:
        """Do what was planned, generators excepted."""
        for action in self.actions:
            action()

    def run_late(self) -> None:
        """Set the generators."""
        for action in self.late:
            action()

    def value(self, live: Any, saved: Any, path: str = "") -> Any:
        """Plan to make `live` equal to `saved`; return the object that will hold the value."""
        kind = type(saved)
        if kind in (tuple, frozenset):
            return self._immutable(live, saved, path)
        if kind is EnumLeaf:
            return self._enum(live, saved, path)
        merge = _KINDS.get(kind)
        if merge is None:
            return saved
        if id(saved) in self._made:
            return self._made[id(saved)][1]
        return merge(self, live, saved, path)

    def fresh(self, saved: Any, path: str = "") -> Any:
        """Make the value anew, for methods that take state; nothing live is touched."""
        return self.value(MISSING, saved, path)

    def mismatch(self, path: str, what: str, expected: Any, got: Any) -> StateMismatchError:
        """Return the error for a place where saved and live state do not fit."""
        place = f" at {path}" if path else ""
        return StateMismatchError(
            f"{self.component!r}{place}: {what} (here: {expected}, in the snapshot: {got})",
            component=self.component,
            expected=expected,
            got=got,
        )

    def _keep(self, saved: Any, value: Any) -> Any:
        self._made[id(saved)] = (saved, value)
        return value

    def _claim(self, live: Any, fits: bool) -> bool:
        """Take a live object for one saved object; a second one must not overwrite it."""
        if not fits or id(live) in self._claimed:
            return False
        self._claimed[id(live)] = live
        return True

    def _immutable(self, live: Any, saved: Any, path: str) -> Any:
        parts = live if type(live) is tuple and len(live) == len(saved) else ()
        items = [
            self.value(parts[i] if parts else MISSING, item, f"{path}/{i}")
            for i, item in enumerate(saved)
        ]
        return type(saved)(items)

    def _list(self, live: Any, saved: list[Any], path: str) -> Any:
        mine = self._claim(live, type(live) is list)
        made: list[Any] = self._keep(saved, live if mine else [])
        olds = list(live) if mine else []
        items = [
            self.value(olds[i] if i < len(olds) else MISSING, item, f"{path}/{i}")
            for i, item in enumerate(saved)
        ]
        self._refill(mine, lambda: made.__setitem__(slice(None), items))
        return made

    def _deque(self, live: Any, saved: deque[Any], path: str) -> Any:
        mine = self._claim(live, type(live) is deque)
        made: deque[Any] = self._keep(saved, live if mine else deque(maxlen=saved.maxlen))
        if mine and live.maxlen != saved.maxlen:
            self.notes.append(
                f"{path}: maxlen stays {live.maxlen}, the snapshot has {saved.maxlen}"
            )
        items = [self.fresh(item, f"{path}/{i}") for i, item in enumerate(saved)]
        self._refill(mine, lambda: _replace(made, items))
        return made

    def _set(self, live: Any, saved: set[Any], path: str) -> Any:
        mine = self._claim(live, type(live) is set)
        made: set[Any] = self._keep(saved, live if mine else set())
        items = {self.fresh(item, path) for item in saved}
        self._refill(mine, lambda: _replace_members(made, items))
        return made

    def _dict(self, live: Any, saved: dict[Any, Any], path: str) -> Any:
        mine = self._claim(live, type(live) is type(saved))
        made: Any = self._keep(saved, live if mine else self._new_dict(saved, path))
        olds = dict(live) if mine else {}
        items = {}
        for key, item in saved.items():
            real = self.value(MISSING, key, path)
            items[real] = self.value(olds.get(real, MISSING), item, join(path, str(key)))
        gone = [key for key in olds if key not in items]
        if gone:
            self.notes.append(f"{path or '/'}: removed, the snapshot lacks {gone[:8]}")
        self._refill(mine, lambda: _replace_items(made, items))
        return made

    def _new_dict(self, saved: dict[Any, Any], path: str) -> Any:
        if not isinstance(saved, defaultdict):
            return type(saved)()
        if saved.default_factory is lost_factory:
            raise self.mismatch(
                path, "a defaultdict's factory cannot be saved", "no defaultdict", "a defaultdict"
            )
        return defaultdict(saved.default_factory)

    def _bytearray(self, live: Any, saved: bytearray, path: str) -> Any:
        mine = self._claim(live, type(live) is bytearray)
        made: bytearray = self._keep(saved, live if mine else bytearray(saved))
        self._refill(mine, lambda: made.__setitem__(slice(None), saved))
        return made

    def _array(self, live: Any, saved: np.ndarray[Any, Any], path: str) -> Any:
        if saved.dtype.kind == "O":
            return self._objects(live, saved, path)
        fits = (
            isinstance(live, np.ndarray)
            and live.dtype == saved.dtype
            and live.shape == saved.shape
            and live.flags.writeable
        )
        mine = self._claim(live, fits)
        made = self._keep(saved, live if mine else saved.copy())
        if mine:
            self.actions.append(lambda: np.copyto(made, saved, casting="no"))
        return made

    def _objects(self, live: Any, saved: np.ndarray[Any, Any], path: str) -> Any:
        fits = type(live) is np.ndarray and live.dtype.kind == "O" and live.shape == saved.shape
        mine = self._claim(live, fits and live.flags.writeable)
        made = self._keep(saved, live if mine else np.empty(saved.shape, dtype=object))
        olds = list(live.ravel()) if mine else [MISSING] * saved.size
        items = [
            self.value(old, item, f"{path}/{i}")
            for i, (old, item) in enumerate(zip(olds, saved.ravel(), strict=True))
        ]
        self._refill(mine, lambda: _replace_objects(made, items))
        return made

    def _tensor(self, live: Any, saved: TensorLeaf, path: str) -> Any:
        from pyengine.capture.inplace import (
            is_consistent,
            new_tensor,
            told_of_move,
            write_tensor,
        )

        value = saved.value
        fits = (
            is_tensor(live)
            and live.dtype == value.dtype
            and live.shape == value.shape
            and is_consistent(live, value)
        )
        mine = self._claim(live, fits)
        moved = None if mine else told_of_move(saved)
        if moved is not None:
            self.notes.append(f"{path or '/'}: {moved}")
        made = self._keep(saved, live if mine else new_tensor(saved))
        if mine:
            self.actions.append(lambda: write_tensor(made, value))
        return made

    def _rng(self, live: Any, saved: RngLeaf, path: str) -> Any:
        kind = rng_kind(live)
        if kind is None:
            try:
                return self._keep(saved, make_rng(saved.kind, saved.state))
            except ValueError as error:
                self._check_device(saved, path)
                raise self.mismatch(path, f"broken state: {error}", "none", saved.kind) from None
        if kind != saved.kind:
            raise self.mismatch(path, "another kind of random generator", kind, saved.kind)
        self._check_device(saved, path, live)
        try:
            check_rng_state(live, saved.state)
        except ValueError as error:
            raise self.mismatch(path, f"broken state: {error}", kind, saved.kind) from None
        if not self._claim(live, True):
            return self._keep(saved, make_rng(saved.kind, saved.state))
        self.late.append(lambda: set_rng_state(live, saved.state))
        return self._keep(saved, live)

    def _check_device(self, saved: RngLeaf, path: str, live: Any = None) -> None:
        """Refuse the state of a torch.Generator of another kind of device: nothing converts it."""
        if saved.kind != "torch.Generator":
            return
        there = str(saved.state.get("device"))
        here = "no such device" if live is None else live.device.type
        if here != there:
            raise self.mismatch(
                path,
                "a generator's state belongs to its kind of device: make the generator on that, or "
                f"go on without its state by restore(allow=[{self.component!r}]) and track another",
                here,
                there,
            )

    def _dataclass(self, live: Any, saved: DataclassLeaf, path: str) -> Any:
        kind = self._type(live, saved.type_name, path)
        names = {field.name for field in dataclasses.fields(kind)}
        unknown = sorted(set(saved.fields) - names)
        if unknown:
            raise self.mismatch(path, f"{kind.__name__} has no fields {unknown}", names, unknown)
        live = live if type(live) is kind else MISSING
        mine = self._claim(live, live is not MISSING and not kind.__dataclass_params__.frozen)
        made = self._keep(saved, live if mine else object.__new__(kind))
        items = {
            name: self.value(getattr(live, name, MISSING), item, join(path, name))
            for name, item in saved.fields.items()
        }
        kept = sorted(names - set(items))
        if kept:
            self.notes.append(f"{path or '/'}: the snapshot lacks {kept}; left as they are")
        self._refill(mine, lambda: _set_fields(made, items))
        return made

    def _namedtuple(self, live: Any, saved: NamedTupleLeaf, path: str) -> Any:
        kind = self._type(live, saved.type_name, path)
        if set(getattr(kind, "_fields", ())) != set(saved.fields):
            raise self.mismatch(path, "other fields", getattr(kind, "_fields", ()), saved.fields)
        live = live if type(live) is kind else MISSING
        items = {
            name: self.value(getattr(live, name, MISSING), item, join(path, name))
            for name, item in saved.fields.items()
        }
        return self._keep(saved, tuple.__new__(kind, [items[name] for name in kind._fields]))

    def _enum(self, live: Any, saved: EnumLeaf, path: str) -> Any:
        kind = self._type(live, saved.type_name, path)
        if not issubclass(kind, enum.Enum) or saved.name not in kind.__members__:
            raise self.mismatch(path, f"no member {saved.name!r}", kind, saved.type_name)
        return kind[saved.name]

    def _object(self, live: Any, saved: ObjectLeaf, path: str) -> Any:
        methods = state_methods(live)
        if methods is None or methods.how != saved.how:
            raise self.mismatch(
                path,
                f"state of a {saved.type_name} needs a live object with {saved.how}",
                "nothing" if live is MISSING else type_name(live),
                saved.type_name,
            )
        if type_name(live) != saved.type_name:
            self.notes.append(
                f"{path or '/'}: a {type_name(live)} takes a {saved.type_name}'s state"
            )
        self._keep(saved, live)
        state = self.fresh(saved.state, path)
        self.actions.append(lambda: methods.set(state))
        return live

    def _type(self, live: Any, name: str, path: str) -> Any:
        """Find the type of a value: the live object's, else one that is already imported."""
        found: Any = type(live) if type_name(live) == name else find_type(name)
        if found is None:
            raise self.mismatch(path, "no such type is imported here", "none", name)
        if not (
            dataclasses.is_dataclass(found)
            or issubclass(found, enum.Enum)
            or (issubclass(found, tuple) and hasattr(found, "_fields"))
        ):
            raise self.mismatch(path, "not a dataclass, named tuple or enum", found, name)
        return found

    def _refill(self, mine: bool, refill: Callable[[], Any]) -> None:
        """Fill a new container now, since nobody sees it; a live one when the plan runs."""
        if mine:
            self.actions.append(refill)
        else:
            refill()


def _replace(made: deque[Any], items: list[Any]) -> None:
    made.clear()
    made.extend(items)


def _replace_members(made: set[Any], items: set[Any]) -> None:
    made.clear()
    made.update(items)


def _replace_items(made: Any, items: dict[Any, Any]) -> None:
    made.clear()
    made.update(items)


def _replace_objects(made: np.ndarray[Any, Any], items: list[Any]) -> None:
    for index, item in zip(np.ndindex(made.shape), items, strict=True):
        made[index] = item


def _set_fields(made: Any, items: dict[str, Any]) -> None:
    for name, item in items.items():
        object.__setattr__(made, name, item)


_KINDS: dict[type[Any], Callable[[Merge, Any, Any, str], Any]] = {
    list: Merge._list,
    dict: Merge._dict,
    OrderedDict: Merge._dict,
    Counter: Merge._dict,
    defaultdict: Merge._dict,
    deque: Merge._deque,
    set: Merge._set,
    bytearray: Merge._bytearray,
    np.ndarray: Merge._array,
    TensorLeaf: Merge._tensor,
    RngLeaf: Merge._rng,
    DataclassLeaf: Merge._dataclass,
    NamedTupleLeaf: Merge._namedtuple,
    ObjectLeaf: Merge._object,
}
