"""Open episodes and time limits in the rows of a plain loop that was killed in mid-episode."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from loop_runs import LOOPS, PENDULUM, Start, run_child
from processes import await_writers_end

import pyengine

LIMIT, TURN_SECONDS = 200, 0.05
LANES = PENDULUM["num-envs"]
PLACE = ("envs", "obs", "done")


def restored_rows(folder: Path) -> pyengine.ReplayBuffer:
    """Return a ring with the rows of the newest snapshot, and nothing else of it."""
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=LANES, vectorization_mode="sync")
    schema = pyengine.Schema.from_env(envs)
    ring = pyengine.ReplayBuffer(schema, PENDULUM["capacity"], num_envs=LANES)
    newest = pyengine.open_run(folder / "run").snapshots[-1]
    others = {one.name for one in newest.components} - {"replay"}
    with pyengine.SnapshotEngine(folder / "run") as engine:
        engine.track(replay=ring)
        engine.restore(allow=others)
    return ring


def pieces(ring: pyengine.ReplayBuffer) -> Iterator[tuple[int, list[int]]]:
    """Yield (lane, row ids) of what the ring takes for one episode each."""
    refs = ring.refs()
    for lane in range(LANES):
        rows = (refs[refs % LANES == lane] // LANES).tolist()
        starts = set(ring.breaks(lane).tolist())
        piece: list[int] = []
        for row in rows:
            if row in starts and piece:
                yield lane, piece
                piece = []
            piece.append(row)
        yield lane, piece


def is_one_step(obs: Any, next_obs: Any) -> Any:
    """Return for each row whether the pendulum may have turned so far in one step."""
    turned = np.arctan2(next_obs[:, 1], next_obs[:, 0]) - np.arctan2(obs[:, 1], obs[:, 0])
    turned = (turned + np.pi) % (2 * np.pi) - np.pi
    return np.abs(turned - next_obs[:, 2] * TURN_SECONDS) < 1e-4


@pytest.mark.parametrize("left_out", [(), PLACE], ids=["environments go on", "they are reset"])
def test_no_row_joins_two_episodes(
    start: Any, token: str, tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    cut = LOOPS["sac"].cut
    killed = start(run_child, "sac", Start(tmp_path, cuts=(cut,), kill_at=cut + 5))
    killed.messages()
    assert killed.join() == -signal.SIGKILL
    await_writers_end(token)
    start(run_child, "sac", Start(tmp_path, left_out=left_out)).messages()

    with restored_rows(tmp_path) as ring:
        found = list(pieces(ring))
        for lane, rows in found:
            batch = ring.gather([row * LANES + lane for row in rows])
            assert len(rows) <= LIMIT
            assert is_one_step(batch["obs"], batch["next_obs"]).all()
            np.testing.assert_array_equal(batch["obs"][1:], batch["next_obs"][:-1])
            assert not (batch["truncated"] | batch["terminated"])[:-1].any()
        # With environments: rows 119 to 199, where the time limit was, and from there to the end.
        # Without: as far as the snapshot, and a new episode, which the script's end leaves open.
        first_ends = {rows[-1] for _, rows in found[::2]}
        assert first_ends == ({cut} if left_out else {LIMIT - 1})
        assert len(found) == 2 * LANES

        windows = ring.sample_sequences(64, 8)
        seen = windows["obs"].reshape(-1, 8, 3)
        np.testing.assert_array_equal(seen[:, 1:], windows["next_obs"].reshape(-1, 8, 3)[:, :-1])
