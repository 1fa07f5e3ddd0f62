"""The other callbacks of a run: counters, best results, and when each fires next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback

from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError
from pyengine.integrations.sb3.state import constructor_parameters

_OWNED = frozenset({"model", "locals", "globals", "parent", "callback", "callbacks", "verbose"})


def walk(root: BaseCallback, path: str = "") -> Iterator[tuple[str, BaseCallback]]:
    """Yield every callback of a tree with its place in it: "0", "1.callback", ..."""
    yield path or "root", root
    if isinstance(root, CallbackList):
        for index, child in enumerate(root.callbacks):
            yield from walk(child, f"{path}.{index}" if path else str(index))
    elif isinstance(root, EventCallback) and root.callback is not None:
        yield from walk(root.callback, f"{path}.callback" if path else "callback")
    stop_training = getattr(root, "callback_after_eval", None)
    if isinstance(stop_training, BaseCallback):
        yield from walk(stop_training, f"{path}.after_eval" if path else "after_eval")


class SiblingState:
    """The plain attributes of all callbacks of a tree but one; settings stay as scripted.

    `unsaved` names what cannot be saved, and why.
    """

    def __init__(self, root: BaseCallback, own: BaseCallback) -> None:
        self._callbacks = {path: one for path, one in walk(root) if one is not own}
        self.unsaved: dict[str, str] = {}
        self._names = {path: self._plain(path, one) for path, one in self._callbacks.items()}

    def _plain(self, path: str, callback: BaseCallback) -> list[str]:
        settings = constructor_parameters(type(callback)) | _OWNED
        found = []
        for name, value in vars(callback).items():
            if name in settings or name == "eval_env" or isinstance(value, BaseCallback):
                continue
            try:
                Encoder(name).encode(value)
            except CaptureError as error:
                self.unsaved[f"{type(callback).__name__}.{name}"] = str(error)
            else:
                found.append(name)
        return found

    def get_state(self) -> dict[str, Any]:
        """Return the attributes of each callback, and its type, by its place in the tree."""
        return {
            path: {
                "type": type(callback).__qualname__,
                "values": {name: getattr(callback, name) for name in self._names[path]},
            }
            for path, callback in self._callbacks.items()
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Put the attributes back into callbacks of the same type at the same place."""
        for path, saved in state.items():
            callback = self._callbacks.get(path)
            if callback is None or type(callback).__qualname__ != saved["type"]:
                continue
            for name, value in saved["values"].items():
                setattr(callback, name, value)

    def differences(self, state: dict[str, Any]) -> list[str]:
        """Return a line for each saved callback that has no counterpart in this script."""
        lines = []
        for path, saved in state.items():
            here = self._callbacks.get(path)
            if here is None or type(here).__qualname__ != saved["type"]:
                got = "nothing" if here is None else f"a {type(here).__qualname__}"
                lines.append(f"callback {path}: saved a {saved['type']}, the script has {got}")
        return lines
