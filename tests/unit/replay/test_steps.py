"""Returns over n steps: what is taken for what, what is refused, damage, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from mapped_rings import flip
from saved_rings import save

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import ConfigError, DamageError, RowError, UnknownRefError
from pyengine.format.segment import iter_blocks
from pyengine.replay.steps import NStep

ROW = {
    "obs": ((2,), "float32"),
    "reward": "float32",
    "next_obs": {"camera": ((2,), "uint8"), "pose": "float32"},
    "terminated": "bool",
    "truncated": "bool",
}
ENDS = ("terminated", "truncated")


def filled(count=12, ends=(4,), *, capacity=64, **options):
    """A ring whose row i has reward 2**i, obs i and next_obs i + 1."""
    schema = Schema(ROW, episode_end=ENDS)
    ring = ReplayBuffer(schema, capacity, seed=1, **options)
    ids = np.arange(count)
    ring.extend(
        obs=np.repeat(ids[:, None], 2, 1).astype(np.float32),
        reward=2.0**ids,
        next_obs={
            "camera": np.repeat(ids[:, None] + 1, 2, 1).astype(np.uint8),
            "pose": ids + 1.0,
        },
        terminated=np.isin(ids, ends),
        truncated=np.zeros(count, bool),
    )
    return ring


def test_a_return_ends_with_the_episode_and_with_the_newest_row():
    with filled() as ring:
        batch = ring.gather([0, 3, 4, 5, 10, 11], n_step=3, gamma=0.5)
        assert batch.steps.tolist() == [3, 2, 1, 3, 2, 1]
        assert batch["reward"].tolist() == [
            1 + 1 + 1,
            8 + 8,
            16,
            32 + 32 + 32,
            1024 + 1024,
            2048,
        ]
        assert batch.discounts.tolist() == [0.125, 0.25, 0.5, 0.125, 0.25, 0.5]
        assert batch["obs"][:, 0].tolist() == [0, 3, 4, 5, 10, 11]
        assert batch["next_obs"]["pose"].tolist() == [3, 5, 5, 8, 12, 12]
        assert batch["next_obs"]["camera"][:, 1].tolist() == [3, 5, 5, 8, 12, 12]
        assert batch["terminated"].tolist() == [False, True, True, False, False, False]
        assert batch.indices.tolist() == [0, 3, 4, 5, 10, 11]
        ring.break_episode()
        ring.add(
            {name: ring.gather([0])[name][0] for name in ("obs", "reward")}
            | {"next_obs": {"camera": [1, 1], "pose": 1.0}, "terminated": False, "truncated": False}
        )
        assert ring.gather([11], n_step=3, gamma=0.5).steps.tolist() == [1]


def test_fields_of_other_names_are_told():
    schema = Schema(
        {"r": ((2,), "float64"), "after": "int64", "gone": "bool"}, episode_end=("gone",)
    )
    with ReplayBuffer(schema, 16) as ring:
        ring.extend(r=[[1, 10], [2, 20], [3, 30]], after=[1, 2, 3], gone=[False] * 3)
        plan = NStep(2, 0.5, reward="r", of_last=["after"])
        batch = ring.gather([0, 1, 2], n_step=plan)
        assert batch["r"].tolist() == [[2, 20], [3.5, 35], [3, 30]]
        assert batch["after"].tolist() == [2, 3, 3]
        for wrong in (
            NStep(2, 0.5),
            NStep(2, 0.5, reward="r"),
            NStep(2, 0.5, reward="after", of_last=["gone"]),
            NStep(2, 0.5, reward="r", of_last=["later"]),
            NStep(2, 0.5, reward="r", of_last=["r"]),
            NStep(0, 0.5, reward="r", of_last=["after"]),
            NStep(2, float("nan"), reward="r", of_last=["after"]),
            NStep(2, -1, reward="r", of_last=["after"]),
        ):
            with pytest.raises(ConfigError):
                ring.gather([0], n_step=wrong)


def test_an_end_that_the_ring_does_not_know_of_is_refused():
    schema = Schema(ROW, episode_end=("terminated",))
    with ReplayBuffer(schema, 64) as ring, pytest.raises(ConfigError, match="truncated"):
        ring.sample(1, n_step=2, gamma=0.9)


def test_both_of_n_step_and_gamma_are_given():
    with filled() as ring:
        for wrong in (
            {"n_step": 3},
            {"gamma": 0.9},
            {"n_step": NStep(3, 0.9), "gamma": 0.9},
            {"n_step": 0, "gamma": 0.9},
            {"n_step": 2.5, "gamma": 0.9},
        ):
            with pytest.raises(ConfigError):
                ring.sample(1, **wrong)
        for ref in (-1, 12):
            with pytest.raises(UnknownRefError):
                ring.gather([ref], n_step=2, gamma=0.9)
        with pytest.raises(RowError):
            ring.gather([0], n_step=2, gamma=0.9, out={"obs": np.zeros(3)})


def test_the_same_rows_are_drawn_with_and_without_steps():
    with filled() as one, filled() as other:
        for _ in range(5):
            drawn = one.sample(20, n_step=3, gamma=0.9, out={"reward": np.zeros(20, np.float32)})
            assert drawn.indices.tolist() == other.sample(20).indices.tolist()
            assert list(drawn) == ["reward"]


def test_tensors_come_with_tensors():
    torch = pytest.importorskip("torch")
    with filled() as ring:
        batch = ring.sample(4, n_step=2, gamma=0.9, device="cpu")
        assert batch.discounts.dtype == torch.float32
        assert batch.steps.dtype == torch.int64
        windows = ring.sample_sequences(3, 2, device="cpu")
        assert windows["obs"].shape == (3, 2, 2)
        assert windows.mask.dtype == torch.bool


@pytest.mark.parametrize("field", ["reward", "next_obs/pose", "@start"])
def test_a_damaged_block_of_any_step_is_met_before_use(tmp_path, field):
    with filled(48, ()) as source, filled(0) as ring:
        files = save(source, tmp_path)
        layout, rows = source._plan.layout, source._plan.segment_rows
        (number,) = (f.first_block for f in layout.fields if f.name == field)
        flip(tmp_path / "0-1.seg", next(at for b, at, _ in iter_blocks(layout) if b == number))
        files.install(ring)
        if field == "@start":  # where a sequence ends is read of all rows at once
            with pytest.raises(DamageError):
                ring.gather([0], n_step=2, gamma=0.5)
            assert ring.gather([0])["reward"].tolist() == [1]
            return
        ring.gather([0], n_step=2, gamma=0.5)
        with pytest.raises(DamageError):
            ring.gather([rows - 1], n_step=2, gamma=0.5)


def test_spans_are_of_one_instant_while_rows_are_added(frequent_switches):
    schema = Schema(
        {
            "obs": Field((4, 2), "int64", stack=4),
            "reward": "float32",
            "next_obs": Field((4, 2), "int64", stack=4, next_of="obs"),
            "end": "bool",
        },
        episode_end=("end",),
    )
    stop = threading.Event()
    with ReplayBuffer(schema, 256, num_envs=2, seed=1) as ring:

        def play():
            number = 0
            while not stop.is_set():
                frames = np.repeat(np.arange(number, number + 5)[:, None], 2, 1)
                ring.add(
                    obs=np.stack([frames[:4], frames[:4] + 10**6]),
                    reward=np.full(2, number, np.float32),
                    next_obs=np.stack([frames[1:], frames[1:] + 10**6]),
                    end=[number % 7 == 6, number % 11 == 10],
                )
                number += 1

        player = threading.Thread(target=play)
        player.start()
        try:
            while len(ring) < 16:
                pass
            for _ in range(300):
                batch = ring.sample(16, n_step=3, gamma=1.0)
                first = batch["obs"][:, 0, 0]
                assert np.array_equal(batch["obs"][:, :, 0], first[:, None] + np.arange(4))
                after = first + batch.steps
                assert np.array_equal(batch["next_obs"][:, :, 0], after[:, None] + np.arange(4))
                number = first % 10**6
                sums = [sum(range(n, n + m)) for n, m in zip(number, batch.steps, strict=True)]
                assert batch["reward"].tolist() == sums
                windows = ring.sample_sequences(4, 3)
                assert (np.diff(windows["reward"], axis=1) == 1).all()
        finally:
            stop.set()
            player.join()
