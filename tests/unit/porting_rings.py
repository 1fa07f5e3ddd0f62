"""Rings of every kind of field for tests of imports and exports, and their rows to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pyengine
from pyengine.porting import ring_rows

LANES = 2
DEPTH = 4


def schema(*, stacked: bool = False) -> pyengine.Schema:
    """Return nested observations, a mutable field and bfloat16, with stacks or without."""
    frames = (
        pyengine.Field((DEPTH, 3), "float32", stack=DEPTH) if stacked else ((DEPTH, 3), "float32")
    )
    later = (
        pyengine.Field((DEPTH, 3), "float32", stack=DEPTH, next_of="obs/frames")
        if stacked
        else ((DEPTH, 3), "float32")
    )
    fields = {
        "obs": {"frames": frames, "image": ((4, 2), "uint8")},
        "action": "int64",
        "reward": "float32",
        "flag": pyengine.Field((), "uint8", mutable=True, default=0),
        "next_obs": {"frames": later, "image": ((4, 2), "uint8")},
        "terminated": "bool",
        "truncated": "bool",
        "half": "bfloat16",
    }
    return pyengine.Schema(fields, episode_end=("terminated", "truncated"))


def make_ring(
    kind: Any = pyengine.ReplayBuffer, *, stacked: bool = False, capacity: int = 64
) -> Any:
    """Return an empty ring of two lanes."""
    return kind(schema(stacked=stacked), capacity, num_envs=LANES, seed=0)


def fill(ring: Any, steps: int, seed: int = 0) -> None:
    """Add steps of episodes that end by chance, and breaks that no flag tells of."""
    rng = np.random.default_rng(seed)

    def first() -> Any:
        return np.stack([rng.random(3).astype("f4")] * DEPTH)

    obs = np.stack([first() for _ in range(LANES)])
    image = rng.integers(0, 255, (LANES, 4, 2)).astype("u1")
    for step in range(steps):
        new = rng.random((LANES, 1, 3)).astype("f4")
        next_obs = np.concatenate((obs[:, 1:], new), axis=1)
        next_image = rng.integers(0, 255, (LANES, 4, 2)).astype("u1")
        terminated, truncated = rng.random(LANES) < 0.1, rng.random(LANES) < 0.05
        ring.add(
            obs={"frames": obs, "image": image},
            action=rng.integers(0, 5, LANES),
            reward=rng.random(LANES).astype("f4"),
            flag=rng.integers(0, 9, LANES).astype("u1"),
            next_obs={"frames": next_obs, "image": next_image},
            terminated=terminated,
            truncated=truncated,
            half=rng.integers(0, 100, LANES).astype("u2"),
        )
        obs, image = next_obs, next_image
        if step % 23 == 11:
            ring.break_episode(1)
        for lane in range(LANES):
            if terminated[lane] or truncated[lane] or (step % 23 == 11 and lane == 1):
                obs[lane] = first()
                image[lane] = 0
    if hasattr(ring, "update_priorities"):
        ring.update_priorities(ring.refs(), rng.random(len(ring)))


def save(ring: Any, run_dir: Path, step: int = 5, name: str = "replay") -> None:
    """Make a run with one snapshot of the ring."""
    with pyengine.SnapshotEngine(run_dir, track_rng=False) as engine:
        engine.track(**{name: ring})
        engine.restore()
        engine.snapshot(step).wait(60)


def restored(run_dir: Path, ring: Any, name: str = "replay") -> Any:
    """Return the ring with the rows of a run."""
    with pyengine.SnapshotEngine(run_dir, track_rng=False) as engine:
        engine.track(**{name: ring})
        engine.restore()
    return ring


def ring_like(run_dir: Path) -> Any:
    """Return a ring with a run's rows, made by what its snapshot says of it."""
    with ring_rows.open_ring(run_dir) as rows:
        ring = pyengine.ReplayBuffer(
            rows.schema, rows.header.capacity, num_envs=rows.header.num_lanes
        )
    return restored(run_dir, ring)


class Bomb:
    """What makes a directory when its pickle is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.mkdir, (self.path,))


def lane_rows(ring: Any) -> list[dict[str, Any]]:
    """Return for each lane its rows, oldest first: fields by flat name, and "@starts"."""
    lanes = []
    refs = np.asarray(ring.refs())
    for lane in range(ring.num_envs):
        own = np.sort(refs[refs % ring.num_envs == lane])
        values = dict(_flat(ring[own], ""))
        if "@priority" in ring.schema:
            size = ring.capacity // ring.num_envs
            places = lane * size + own // ring.num_envs % size
            values["@priority"] = np.asarray(ring.column("@priority")[places])
        starts = np.isin(own // ring.num_envs, ring.breaks(lane))
        starts[:1] = True  # what the oldest row continues is not there
        lanes.append({**values, "@starts": starts})
    return lanes


def _flat(values: Any, prefix: str) -> Any:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", np.asarray(value)


def assert_same_rows(found: Any, wanted: Any) -> None:
    """Compare two rings bit by bit: fields, order in each lane, where sequences begin."""
    for here, there in zip(lane_rows(found), lane_rows(wanted), strict=True):
        assert here.keys() == there.keys()
        for name in there:
            assert here[name].dtype == there[name].dtype, name
            assert here[name].tobytes() == there[name].tobytes(), name
