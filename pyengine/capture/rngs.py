"""State of random number generators, as plain integers and arrays.

Five kinds: NumPy's Generator, BitGenerator and RandomState, Python's random.Random, and
torch.Generator. NumPy's first two bring the seed sequence that their children are spawned from,
where NumPy (2.0 and later) takes one back. A state is proven on a twin before it is set on the live
object, so that a broken one changes nothing.
"""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np

from pyengine.capture.lazy_torch import is_of_torch

_SEEDS = "seed_sequence"
_TAKES_SEEDS = int(np.__version__.split(".")[0]) >= 2
"""Before, a bit generator's own pickle left its seed sequence out, and nothing puts one in."""

_WORDS = 625
"""624 words of the Mersenne twister and its position."""


def rng_kind(value: object) -> str | None:
    """Return the kind of the generator `value`, or None where it is none that can be saved."""
    if isinstance(value, np.random.Generator):
        return "numpy.Generator"
    if isinstance(value, np.random.BitGenerator):
        return "numpy.BitGenerator"
    if isinstance(value, np.random.RandomState):
        return "numpy.RandomState"
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return "python.Random"
    if is_of_torch(value, "Generator"):
        return "torch.Generator"
    return None


def rng_state(value: Any) -> dict[str, Any]:
    """Return the state of a generator: a dict of strings, integers, arrays and tensors."""
    kind = rng_kind(value)
    if kind == "numpy.Generator":
        return _bits_state(value.bit_generator)
    if kind == "numpy.BitGenerator":
        return _bits_state(value)
    if kind == "numpy.RandomState":
        return cast("dict[str, Any]", value.get_state(legacy=False))
    if kind == "python.Random":
        return python_state(value.getstate())
    return {"device": value.device.type, "bytes": value.get_state()}


def set_rng_state(value: Any, state: dict[str, Any]) -> None:
    """Set the state of a live generator, exactly."""
    kind = rng_kind(value)
    if kind == "numpy.Generator":
        _set_bits_state(value.bit_generator, state)
    elif kind == "numpy.BitGenerator":
        _set_bits_state(value, state)
    elif kind == "numpy.RandomState":
        value.set_state(state)
    elif kind == "python.Random":
        value.setstate(python_state_tuple(state))
    else:
        value.set_state(state["bytes"].clone())


def _bits_state(bits: np.random.BitGenerator) -> dict[str, Any]:
    state = dict(bits.state)
    seeds = bits.seed_seq if _TAKES_SEEDS else None
    if type(seeds) is np.random.SeedSequence:
        entropy: Any = seeds.entropy  # it draws some where none was given
        state[_SEEDS] = {
            "entropy": int(entropy) if np.ndim(entropy) == 0 else [int(word) for word in entropy],
            "spawn_key": [int(word) for word in seeds.spawn_key],
            "pool_size": seeds.pool_size,
            "n_children_spawned": seeds.n_children_spawned,
        }
    return state


def _set_bits_state(bits: Any, state: dict[str, Any]) -> None:
    seeds = state.get(_SEEDS)
    drawn = {name: value for name, value in state.items() if name != _SEEDS}
    if seeds is None or not _TAKES_SEEDS:
        bits.state = drawn
    else:
        bits.__setstate__((drawn, np.random.SeedSequence(**seeds)))


def check_rng_state(value: Any, state: dict[str, Any]) -> None:
    """Prove on a twin that `state` can be set on `value`; ValueError says why not."""
    try:
        set_rng_state(_twin(value), state)
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError, IndexError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def make_rng(kind: str, state: dict[str, Any]) -> Any:
    """Make a generator with this state; ValueError where that cannot be done."""
    try:
        rng = _new(kind, state)
        set_rng_state(rng, state)
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError, IndexError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return rng


def python_state(state: tuple[Any, ...]) -> dict[str, Any]:
    """Return what random.getstate() gives, with its 625 integers as an array."""
    version, words, gauss = state
    return {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss}


def python_state_tuple(state: dict[str, Any]) -> tuple[Any, ...]:
    """Return what random.setstate() takes."""
    words = state["words"]
    if len(words) != _WORDS:
        raise ValueError(f"{len(words)} words instead of {_WORDS}")
    return state["version"], tuple(words.tolist()), state["gauss"]


def _twin(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return np.random.Generator(type(value.bit_generator)())
    if is_of_torch(value, "Generator"):
        return type(value)(value.device)
    if isinstance(value, random.Random):
        return random.Random()
    if isinstance(value, np.random.RandomState):
        return np.random.RandomState(type(_bit_generator(value))())
    return type(value)()


def _bit_generator(value: np.random.RandomState) -> Any:
    return value._bit_generator


def _new(kind: str, state: dict[str, Any]) -> Any:
    if kind == "python.Random":
        return random.Random()
    if kind == "torch.Generator":
        import torch

        return torch.Generator(state["device"])
    name = state["bit_generator"]
    bit_generator = getattr(np.random, name, None)
    if not (isinstance(bit_generator, type) and issubclass(bit_generator, np.random.BitGenerator)):
        raise ValueError(f"NumPy has no bit generator {name!r}")
    if kind == "numpy.BitGenerator":
        return bit_generator()
    if kind == "numpy.RandomState":
        return np.random.RandomState(bit_generator())
    if kind == "numpy.Generator":
        return np.random.Generator(bit_generator())
    raise ValueError(f"unknown kind of generator {kind!r}")
