"""From a tracked object to its component: which kind it is, or why it cannot be tracked."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyengine.capture.component import Component
from pyengine.capture.environment import EnvironmentState
from pyengine.capture.kinds.pickled import PickledComponent
from pyengine.capture.kinds.rng import RngComponent
from pyengine.capture.kinds.stateful import EnvironmentComponent, StatefulComponent
from pyengine.capture.kinds.trees import CountersComponent, TensorComponent, is_container
from pyengine.capture.lazy_torch import is_torch_loaded
from pyengine.capture.pickled import Pickled
from pyengine.capture.protocol import name_with_article, state_methods, type_name
from pyengine.capture.rngs import rng_kind
from pyengine.errors import UntrackableError


def build_component(name: str, value: Any) -> Component:
    """Return the component for an object tracked as `name`.

    The name becomes part of file names: `is_nested_name` must hold. Raises UntrackableError,
    whose text shows the form that works, for objects that cannot be restored in place, and
    CaptureError for a container that holds what cannot be saved.
    """
    component = None
    if is_torch_loaded():
        from pyengine.capture.build_torch import build_torch_component

        component = build_torch_component(name, value)
    component = component or _other_component(name, value)
    if component is None:
        raise UntrackableError(
            f"{name!r}: {name_with_article(value)} cannot be restored in place; "
            f"{_advice(name, value)}",
            component=name,
        )
    return component


def _other_component(name: str, value: Any) -> Component | None:
    if isinstance(value, EnvironmentState):
        return EnvironmentComponent(name, value)
    if isinstance(value, Pickled):
        return _pickled_component(name, value)
    if rng_kind(value) is not None:
        return RngComponent(name, value)
    if isinstance(value, np.ndarray):
        return TensorComponent(name, value) if value.flags.writeable else None
    if state_methods(value) is not None:
        return StatefulComponent(name, value)
    if not is_container(value) or _is_frozen(value):
        return None
    counters = CountersComponent(name, value)
    counters.capture()  # what cannot be saved is told now, not by the first snapshot
    return counters


def _pickled_component(name: str, value: Pickled) -> Component:
    pickled = PickledComponent(name, value)
    if value.is_object:
        pickled.capture()  # as for counters; functions may not be ready yet
    return pickled


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _advice(name: str, value: Any) -> str:
    """Return the form that would work instead."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"keep it in a dict: counters = {{{name!r}: ...}}; engine.track(counters=counters)"
    if isinstance(value, (tuple, frozenset)):
        return f"track a list or a dict instead: engine.track({name}=list({name}))"
    if isinstance(value, np.ndarray):
        return "the array is read-only: track the writable array it comes from"
    if _is_frozen(value):
        return "the dataclass is frozen: make it mutable, or keep it in a dict"
    if hasattr(value, "step") and hasattr(value, "reset"):
        return (
            "wrap it: engine.track("
            f"{name}=pyengine.EnvironmentState(get=get_state_of_env, set=put_state_back))"
        )
    if type_name(value).endswith(":SystemRandom"):
        return "the system's random numbers have no state: use random.Random(seed)"
    if isinstance(value, type):
        return "track an instance of it, not the class"
    if callable(value) and hasattr(value, "__code__"):
        return "code is not saved: keep what it computes from in a dict and track that"
    return (
        "give it get_state() and set_state(state), or state_dict() and load_state_dict(state), "
        "or put what has to survive into a dict; pyengine.Pickled(...) saves it by pickle, which "
        "runs code when it is restored"
    )
