"""Simulators whose state lies outside Python: the Atari emulator and MuJoCo."""

from __future__ import annotations

import hashlib
import sys
import zlib
from typing import Any

import numpy as np

from pyengine.capture.protocol import type_name

_CACHED_MODELS = 64


class ObstacleError(Exception):
    """An object cannot be saved as it is now; each argument says why."""


class AleAdapter:
    """The Arcade Learning Environment: its own state with the random generator of the console.

    With sticky actions the emulator holds the last action, and gives no way to read it: a quarter
    of the resumed runs went another way (ale-py 0.12.1). Averaged colors hold the last frame.
    """

    name = "ale"
    rank = 1
    held: frozenset[str] = frozenset()

    def matches(self, value: Any) -> bool:
        return type_name(value) == "ale_py._ale_py:ALEInterface"

    def get(self, value: Any) -> Any:
        if value.getFloat("repeat_action_probability") > 0:
            raise ObstacleError(
                "the emulator hides the action that it repeats: make the environment with "
                "repeat_action_probability=0 and let a wrapper repeat actions (Gymnasium's "
                "StickyAction, Stable-Baselines3's StickyActionEnv)"
            )
        if value.getBool("color_averaging"):
            raise ObstacleError("the emulator averages colors with a frame that it hides")
        return {"emulator": value.cloneState(include_rng=True).serialize()}

    def check(self, value: Any, state: Any) -> None:
        if type(state["emulator"]) is not bytes:
            raise ValueError("no emulator state")

    def set(self, value: Any, state: Any) -> None:
        ale_py = sys.modules["ale_py"]
        value.restoreState(ale_py.ALEState(state["emulator"]))


class MujocoModelAdapter:
    """A model, whole: an environment may have changed masses or friction in it.

    Packed once for each content; models of one content are one array, so they are saved once.
    """

    name = "mujoco.model"
    rank = 1
    held: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._packed: dict[str, Any] = {}

    def matches(self, value: Any) -> bool:
        return type_name(value) == "mujoco._structs:MjModel"

    def get(self, value: Any) -> Any:
        content = _model_bytes(value)
        digest = _digest(content)
        if digest not in self._packed:
            while len(self._packed) >= _CACHED_MODELS:
                del self._packed[next(iter(self._packed))]
            packed = zlib.compress(content, 1)
            self._packed[digest] = np.frombuffer(packed, dtype=np.uint8)
        sizes = {"digest": digest, "bytes": len(content)}
        return {**_version(), **sizes, "packed": self._packed[digest]}

    def check(self, value: Any, state: Any) -> None:
        _check_version(state)
        if len(_model_bytes(value)) != state["bytes"]:
            raise ValueError("a model of another size")

    def set(self, value: Any, state: Any) -> None:
        if _digest(_model_bytes(value)) == state["digest"]:
            return
        mujoco = sys.modules["mujoco"]
        content = zlib.decompressobj().decompress(state["packed"].tobytes(), state["bytes"])
        model = mujoco.MjModel.from_binary_path("saved.mjb", {"saved.mjb": content})
        _copy_arrays(model, value)
        for part in ("opt", "stat"):
            _copy_arrays(getattr(model, part), getattr(value, part))
            _copy_numbers(getattr(model, part), getattr(value, part))
        if _digest(_model_bytes(value)) != state["digest"]:
            raise ValueError("a model that differs in more than its numbers")


class MujocoDataAdapter:
    """Everything that MuJoCo computed, contacts and derived positions included.

    An environment may read those before its next step, so the integration state is not enough.
    MuJoCo's own image of the data begins with the model, which is cut out.
    """

    name = "mujoco.data"
    rank = 2
    held: frozenset[str] = frozenset()

    def matches(self, value: Any) -> bool:
        return type_name(value) == "mujoco._structs:MjData"

    def get(self, value: Any) -> Any:
        image, model = value.__getstate__(), _model_bytes(value.model)
        start = image.find(model)
        if start < 0:
            raise ObstacleError("this version of MuJoCo writes its data in an unknown way")
        end = start + len(model)
        rest = zlib.compress(image[:start] + image[end:], 1)
        sizes = {"model": _digest(model), "at": start, "bytes": len(image) - len(model)}
        return {**_version(), **sizes, "rest": rest}

    def check(self, value: Any, state: Any) -> None:
        _check_version(state)
        here = len(value.__getstate__()) - len(_model_bytes(value.model))
        if not 0 <= state["at"] <= state["bytes"] or here <= 0:
            raise ValueError("malformed data")

    def set(self, value: Any, state: Any) -> None:
        mujoco = sys.modules["mujoco"]
        model = _model_bytes(value.model)
        if _digest(model) != state["model"]:
            raise ValueError("data of another model")
        rest = zlib.decompressobj().decompress(state["rest"], state["bytes"])
        if len(rest) != state["bytes"]:
            raise ValueError("malformed data")
        saved = mujoco.MjData.__new__(mujoco.MjData)
        saved.__setstate__(rest[: state["at"]] + model + rest[state["at"] :])
        mujoco.mj_copyData(value, value.model, saved)


def _model_bytes(model: Any) -> bytes:
    mujoco = sys.modules["mujoco"]
    content = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    return content.tobytes()


def _copy_arrays(source: Any, target: Any) -> None:
    """Copy the arrays of one MuJoCo struct into another of its kind."""
    for name in filter(_is_public, dir(source)):
        value = getattr(source, name)
        if isinstance(value, np.ndarray) and value.flags.writeable:
            np.copyto(getattr(target, name), value, casting="no")


def _copy_numbers(source: Any, target: Any) -> None:
    """Copy the single numbers of one MuJoCo struct into another of its kind."""
    for name in filter(_is_public, dir(source)):
        value = getattr(source, name)
        if isinstance(value, (int, float)) and getattr(target, name) != value:
            setattr(target, name, value)


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _version() -> dict[str, str]:
    return {"version": sys.modules["mujoco"].__version__}


def _check_version(state: Any) -> None:
    here = _version()["version"]
    if state["version"] != here:
        raise ValueError(f"state of MuJoCo {state['version']}, here is {here}")


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
