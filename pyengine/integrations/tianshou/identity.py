"""Whether a script's training is the one that a run was made with."""

from __future__ import annotations

from typing import Any

from pyengine.capture.protocol import type_name
from pyengine.integrations.description import Description

DESCRIPTION = Description(
    note="tianshou",
    words={
        "algorithm": "algorithm",
        "policy": "policy class",
        "trainer": "kind of training",
        "observation_space": "observation space",
        "action_space": "action space",
        "num_envs": "number of environments",
        "num_test_envs": "number of test environments",
        "env_ids": "environment ids",
        "buffer": "buffer class",
        "buffer_size": "buffer size",
        "buffer_num": "number of sub-buffers",
        "buffer_options": "buffer made with",
    },
    whose="the script's training",
    what="everything",
    maker="this adapter",
)


def describe(algorithm: Any, params: Any) -> dict[str, Any]:
    """Return what a run and a script must agree on, as plain JSON values."""
    policy = algorithm.policy
    found: dict[str, Any] = {
        "algorithm": type_name(algorithm),
        "policy": type_name(policy),
        "trainer": type_name(params),
        "observation_space": repr(policy.observation_space),
        "action_space": repr(policy.action_space),
    }
    collector = getattr(params, "training_collector", None)
    buffer = collector.buffer if collector is not None else params.buffer
    if collector is not None:
        found |= {"num_envs": collector.env_num, "env_ids": _env_ids(collector.env)}
    if params.test_collector is not None:
        found["num_test_envs"] = params.test_collector.env_num
    stock = getattr(type(buffer), "stock_class", type(buffer))
    options = {name: value for name, value in buffer.options.items() if _is_shape(name)}
    found |= {
        "buffer": f"{stock.__module__}:{stock.__qualname__}",
        "buffer_size": int(buffer.maxsize),
        "buffer_num": int(getattr(buffer, "buffer_num", 1)),
        "buffer_options": ", ".join(f"{name}={value!r}" for name, value in sorted(options.items())),
    }
    return DESCRIPTION.whole(found)


def _is_shape(name: str) -> bool:
    """Whether an option decides what rows are; exponents of priorities are the script's to set."""
    return name not in ("alpha", "beta")


def _env_ids(venv: Any) -> list[str | None]:
    return [getattr(spec, "id", None) for spec in venv.get_env_attr("spec")]
