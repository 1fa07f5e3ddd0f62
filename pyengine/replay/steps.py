"""Returns over n steps: which fields become what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.errors import ConfigError
from pyengine.format.counts import as_count
from pyengine.format.schema import Schema


@dataclass(frozen=True, slots=True)
class NStep:
    """Returns over up to `steps` steps, for `n_step=` of `sample` and `gather`.

    From a row its sequence is followed, to its end, to the newest row or `steps` rows far,
    whichever comes first; no break is crossed. In the batch `reward` is then r[0] + gamma r[1] +
    gamma^2 r[2] + ... (Sutton and Barto, section 12.1: without the bootstrapped value). It is
    summed in float64, in this order, with gamma^k = gamma^(k-1) * gamma, and rounded once to the
    field's dtype, float32 or float64; rewards of any shape, element by element. Fields `of_last`
    come from the last row that was used, all others from the first. `batch.steps` (int64) says how
    many rows were, and `batch.discounts` (float32) is gamma^steps: the target of Q-learning is

        reward + discounts * (1 - terminated) * max_a Q(next_obs, a)

    whether or not the episode ended on the way. A name in `of_last` may be that of a dict of
    fields. By default they are next_obs, fields that are `next_of` another, the flags of the
    schema's `episode_end`, and fields called terminated or truncated.

    `n_step=3, gamma=0.99` stands for NStep(3, 0.99).
    """

    steps: int
    gamma: float
    reward: str = "reward"
    of_last: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The same by numbers of fields, append fields before mutable ones: `of_last` a byte each."""

    most: int
    gamma: float
    reward: int
    of_last: bytes


def plan_steps(schema: Schema, n_step: int | NStep | None, gamma: float | None) -> StepPlan:
    """Return the plan; ConfigError for what is missing, or has no place in the schema."""
    if isinstance(n_step, NStep):
        if gamma is not None:
            raise _error("gamma", "it once, in NStep", gamma)
        asked = n_step
    elif n_step is None or gamma is None:
        missing = "n_step" if n_step is None else "gamma"
        raise _error(missing, "n_step and gamma together", None)
    else:
        asked = NStep(n_step, gamma)
    most = as_count("n_step", asked.steps, least=1)
    factor = float(asked.gamma)
    if not math.isfinite(factor) or factor < 0:
        raise _error("gamma", "a finite number, at least 0", asked.gamma)
    names = [name for name, field in schema.items() if not field.mutable]
    if asked.reward not in names or schema[asked.reward].dtype not in ("float32", "float64"):
        text = f"NStep(reward=) to name a float32 or float64 append field; there are {names}"
        raise _error("reward", text, asked.reward)
    last = _last_fields(schema, names, asked)
    every = [*names, *schema.mutable_fields]
    marks = bytes(name in last for name in every)
    return StepPlan(most, factor, every.index(asked.reward), marks)


def _last_fields(schema: Schema, names: list[str], asked: NStep) -> set[str]:
    if asked.of_last is not None:
        found = {wanted: _below(names, wanted) for wanted in asked.of_last}
        for wanted, fields in found.items():
            if not fields:
                raise _error("of_last", f"append fields; there are {names}", wanted)
    else:
        usual = ("next_obs", "terminated", "truncated")
        found = {wanted: _below(names, wanted) for wanted in usual}
        found["next_of"] = {name for name in names if schema[name].next_of is not None}
        found["episode_end"] = set(schema.episode_end)
        if not found["next_obs"] | found["next_of"]:
            raise _error("of_last", "NStep(of_last=) to say which fields are the last row's", names)
    last = set().union(*found.values())
    # A step beyond an end that the ring does not know of would go on in the next episode.
    for name in ("terminated", "truncated", "done"):
        if name in names and name not in schema.episode_end:
            raise _error("episode_end", f"{name!r} in the schema's episode_end", schema.episode_end)
    if asked.reward in last:
        raise _error("of_last", "other fields than the reward", asked.reward)
    return last


def _below(names: list[str], wanted: str) -> set[str]:
    return {name for name in names if name == wanted or name.startswith(f"{wanted}/")}


def _error(field: str, expected: str, got: object) -> ConfigError:
    return ConfigError(
        f"{field}: expected {expected}, got {got!r}", field=field, expected=expected, got=got
    )
