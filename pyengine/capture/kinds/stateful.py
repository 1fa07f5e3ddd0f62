"""Objects that give and take their whole state.

Schedulers, scalers, anything with get_state/set_state or state_dict/load_state_dict, environments.

What goes back is built anew from the snapshot, so that a restore that fails has touched nothing.
Whether a state fits, only its object knows: where that has a `check_state(state)` it is asked
before anything of a restore changes.
"""

from __future__ import annotations

from typing import Any

from pyengine.capture.component import Captured, Component, Decoded, Phase
from pyengine.capture.decode import Decoder
from pyengine.capture.environment import EnvironmentState
from pyengine.capture.merge import Merge
from pyengine.capture.protocol import StateMethods, state_methods, type_name
from pyengine.capture.tensorfile import TensorFile
from pyengine.capture.tree import Encoder, Node


class StatefulComponent(Component):
    """An object with get_state/set_state or state_dict/load_state_dict, and maybe check_state."""

    kind = "state"
    phase = Phase.STATE

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name)
        self.value = value

    def _methods(self) -> StateMethods:
        methods = state_methods(self.value)
        assert methods is not None
        return methods

    def capture(self) -> Captured:
        """Return what the object's own method gives, as it is now."""
        encoder = Encoder(self.name)
        structure = {
            "type": type_name(self.value),
            "how": self._methods().how,
            "tree": encoder.encode(self._methods().get()),
        }
        return Captured(self.name, self.kind, structure, encoder.names, encoder.values)

    def _decode(self, structure: Node, tensors: TensorFile | None, path: str) -> Any:
        tree = Decoder(tensors, path).decode(structure["tree"])
        return {"type": structure["type"], "how": structure["how"], "tree": tree}

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        saved = decoded.value
        how = self._methods().how
        if saved["how"] != how:
            raise self._mismatch("state from another method", how, saved["how"])
        merge = Merge(self.name)
        self._ask(merge.fresh(saved["tree"]))
        notes = tuple(f"{self.name}{note}" for note in merge.notes)
        here = type_name(self.value)
        if saved["type"] == here:
            return notes
        return (f"{self.name}: {saved['type']} goes into {here}", *notes)

    def _ask(self, state: Any) -> None:
        """Let the object refuse a state, by any exception."""
        check_state = getattr(self.value, "check_state", None)
        if callable(check_state):
            try:
                check_state(state)
            except Exception as error:  # any exception of the object's means no
                what = f"check_state() refuses the saved state: {type(error).__name__}: {error}"
                raise self._mismatch(what, type_name(self.value), type(state).__name__) from error

    def _saved_dict(self, decoded: Decoded) -> dict[str, Any]:
        """Return the saved state where it is what a state_dict() is: load_state_dict() of torch's
        own objects would fail half-way with anything else."""
        tree = decoded.value["tree"]
        if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
            raise self._mismatch("no state_dict()", "a dict with text keys", type(tree).__name__)
        return tree

    def _fresh(self, decoded: Decoded) -> Any:
        return Merge(self.name).fresh(decoded.value["tree"])

    def apply(self, decoded: Decoded) -> None:
        self._methods().set(self._fresh(decoded))


class SchedulerComponent(StatefulComponent):
    """A learning-rate scheduler."""

    kind = "scheduler"
    phase = Phase.SCHEDULER

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        here, there = type_name(self.value), decoded.value["type"]
        if here != there:
            raise self._mismatch("another scheduler", here, there)
        live, saved = self._methods().get(), self._saved_dict(decoded)
        for key in live.keys() | saved.keys():
            # Plain values may be new in torch, or gone; what schedulers are nested in is looked up.
            one, other = live.get(key), saved.get(key)
            is_nested = isinstance(one, (list, dict)) or isinstance(other, (list, dict))
            if is_nested and type(one) is not type(other):
                raise self._mismatch(f"{key!r} differs", type_name(one), type_name(other))
        return super().check(decoded)


class ScalerComponent(StatefulComponent):
    """A gradient scaler; its state is empty where it is disabled."""

    kind = "scaler"
    phase = Phase.SCHEDULER

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        here, there = sorted(self._methods().get()), sorted(self._saved_dict(decoded))
        if here != there:
            raise self._mismatch("enabled on one side only", here, there)
        return super().check(decoded)

    def apply(self, decoded: Decoded) -> None:
        state = self._fresh(decoded)
        if state:
            self._methods().set(state)


class EnvironmentComponent(Component):
    """An environment (or whatever else the training talks to), through two functions."""

    kind = "environment"
    phase = Phase.STATE

    def __init__(self, name: str, environment: EnvironmentState) -> None:
        super().__init__(name)
        self.environment = environment

    def capture(self) -> Captured:
        """Return what the getter gives, as it is now."""
        encoder = Encoder(self.name)
        tree = encoder.encode(self.environment.get())
        return Captured(self.name, self.kind, {"tree": tree}, encoder.names, encoder.values)

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        merge = Merge(self.name)
        state = merge.fresh(decoded.value)
        if self.environment.check is not None:
            self.environment.check(state)
        return tuple(f"{self.name}{note}" for note in merge.notes)

    def apply(self, decoded: Decoded) -> None:
        self.environment.set(Merge(self.name).fresh(decoded.value))
