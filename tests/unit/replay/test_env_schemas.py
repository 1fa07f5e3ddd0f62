"""Schemas made from Gymnasium environments and spaces."""

from __future__ import annotations

import numpy as np
import pytest

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import SchemaError

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


def test_a_vector_environment_gives_the_row_of_one_environment():
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2)
    try:
        schema = Schema.from_env(envs, weight=Field((), "float32", mutable=True, default=1.0))
        assert {name: (f.shape, f.dtype) for name, f in schema.items()} == {
            "obs": ((4,), "float32"),
            "action": ((), "int64"),
            "reward": ((), "float32"),
            "next_obs": ((4,), "float32"),
            "terminated": ((), "bool"),
            "truncated": ((), "bool"),
            "weight": ((), "float32"),
        }
        obs, _ = envs.reset(seed=1)
        with ReplayBuffer(schema, 8, num_envs=2) as ring:
            action = envs.action_space.sample()
            after, reward, terminated, truncated, _ = envs.step(action)
            ring.add(
                obs=obs,
                action=action,
                reward=reward,
                next_obs=after,
                terminated=terminated,
                truncated=truncated,
            )
            np.testing.assert_array_equal(ring[[0, 1]]["next_obs"], after)
    finally:
        envs.close()


def test_nested_spaces_give_nested_fields():
    seen = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "on": spaces.MultiBinary(3)})
    schema = Schema.from_spaces(seen, spaces.MultiDiscrete([2, 3]))
    assert schema["next_obs/image"].shape == (2, 2)
    assert schema["obs/on"].dtype == "int8"
    assert schema["action"].shape == (2,)


class _Half:
    observation_space = spaces.Discrete(2)
    action_space = None


@pytest.mark.parametrize("env", [None, 5, "CartPole-v1", _Half(), gymnasium])
def test_what_is_no_environment_is_refused(env):
    with pytest.raises(SchemaError, match="env: expected a Gymnasium environment") as caught:
        Schema.from_env(env)
    assert caught.value.got is env


def test_a_space_without_a_fixed_shape_is_refused():
    with pytest.raises(SchemaError, match="Text"):
        Schema.from_spaces(spaces.Text(5), spaces.Discrete(2))
