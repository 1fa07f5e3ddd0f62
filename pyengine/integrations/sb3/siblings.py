"""The other callbacks of a run: counters, best results, and when each fires next.

Environments that a callback evaluates in are saved too: the generators in them decide how the next
evaluation goes, hence which policy is best and when training stops early.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines3.common.vec_env import VecEnv

from pyengine.errors import CaptureError, StateMismatchError
from pyengine.integrations.sb3.environments import VecEnvState
from pyengine.integrations.sb3.state import constructor_parameters, plain_values

_OWNED = frozenset(
    {"model", "locals", "globals", "parent", "callback", "callbacks", "verbose", "eval_env"}
)


def walk(root: BaseCallback, path: str = "") -> Iterator[tuple[str, BaseCallback]]:
    """Yield every callback of a tree with its place in it: "0", "1.callback", ..."""
    yield path or "root", root
    if isinstance(root, CallbackList):
        for index, child in enumerate(root.callbacks):
            yield from walk(child, f"{path}.{index}" if path else str(index))
    elif isinstance(root, EventCallback) and root.callback is not None:
        yield from walk(root.callback, f"{path}.callback" if path else "callback")
    on_new_best = getattr(root, "callback_on_new_best", None)
    if isinstance(on_new_best, BaseCallback):
        yield from walk(on_new_best, f"{path}.on_new_best" if path else "on_new_best")


class SiblingState:
    """The plain attributes of all callbacks of a tree but one; settings stay as scripted.

    `unsaved` names what cannot be saved, and why; `changes` has a line for each callback that a
    restored run had and this script has not.
    """

    def __init__(self, root: BaseCallback, own: BaseCallback) -> None:
        self._callbacks = {path: one for path, one in walk(root) if one is not own}
        self.unsaved: dict[str, str] = {}
        self.changes: list[str] = []
        held = {path: getattr(one, "eval_env", None) for path, one in self._callbacks.items()}
        self._environments = {
            path: VecEnvState(venv) for path, venv in held.items() if isinstance(venv, VecEnv)
        }
        for path, environment in self._environments.items():
            if environment.obstacles:
                name = f"{type(self._callbacks[path]).__name__}.eval_env"
                self.unsaved[name] = "; ".join(environment.obstacles)
        self.get_state()

    def get_state(self) -> dict[str, Any]:
        """Return the attributes of each callback, and its type, by its place in the tree."""
        return {
            path: {
                "type": type(callback).__qualname__,
                "values": self._values(callback),
                "environment": self._environment(path),
            }
            for path, callback in self._callbacks.items()
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Put the attributes back into callbacks of the same type at the same place."""
        self.changes = []
        for path, saved in state.items():
            callback = self._callbacks.get(path)
            if callback is None or type(callback).__qualname__ != saved["type"]:
                got = "nothing" if callback is None else f"a {type(callback).__qualname__}"
                where = "callback=" if path == "root" else f"callback {path}"
                line = f"{where}: the run had a {saved['type']} here, the script has {got}"
                self.changes.append(line)
                continue
            for name, value in saved["values"].items():
                setattr(callback, name, value)
            environment = self._environments.get(path)
            if environment is not None and saved["environment"] is not None:
                try:
                    environment.set_state(saved["environment"])
                except StateMismatchError as error:
                    # Another evaluation than the run's: it begins anew.
                    self.changes.append(f"callback {path}: eval_env stays as it is: {error}")

    def _values(self, callback: BaseCallback) -> dict[str, Any]:
        kind = type(callback)
        passed = constructor_parameters(kind) | _OWNED
        own = {k: v for k, v in vars(callback).items() if not isinstance(v, BaseCallback)}
        return plain_values(own, passed, f"{kind.__name__}.", self.unsaved)

    def _environment(self, path: str) -> dict[str, Any] | None:
        if path in self._environments:
            try:
                return self._environments[path].get_state()
            except CaptureError as error:
                name = f"{type(self._callbacks[path]).__name__}.eval_env"
                self.unsaved.setdefault(name, str(error))
        return None
