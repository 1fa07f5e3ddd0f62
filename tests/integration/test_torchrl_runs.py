"""Runs of TorchRL beyond the plain one: resets, prefetch, refusals, other sizes, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

import numpy as np
import torch
from sb3_ledgers import Ledger
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import ReplayBuffer, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymWrapper, PendulumEnv, SerialEnv, TransformedEnv, VecNorm
from torchrl.modules import RandomPolicy
from torchrl_models import CAPACITY, make, make_env
from torchrl_runs import EVERY, QUICK, Start, digest, hashed, train

import pyengine
from pyengine.errors import ConfigError, ModelMismatchError, UnrestoredRunError
from pyengine.integrations.torchrl import RingStorage, TrainingRun

SIZE = 40
SLICE = 4


def collecting(env: Any, *, total: int = 200, frames: int = 8, **settings: Any) -> Collector:
    policy = RandomPolicy(env.action_spec)
    return Collector(env, policy, frames_per_batch=frames, total_frames=total, **settings)


def slices(**storage: Any) -> Any:
    """A buffer whose slices are cut at the ends of episodes alone."""
    sampler = SliceSampler(slice_len=SLICE, end_key=("next", "done"), strict_length=False)
    return TensorDictReplayBuffer(
        storage=RingStorage(SIZE, **storage), sampler=sampler, batch_size=8 * SLICE
    )


def ledger() -> Any:
    """An environment whose observations name their episode; its socket cannot be saved."""
    return TransformedEnv(GymWrapper(Ledger()), Compose(VecNorm(in_keys=["reward"])))


def session(run_dir: Path, buffer: Any, collector: Any, batches: int, **settings: Any) -> Any:
    """Collect some batches within a run; return the report and the level."""
    with TrainingRun(
        run_dir, replay_buffer=buffer, collector=collector, **{**QUICK, **settings}
    ) as run:
        report = run.restore()
        for _, data in zip(range(batches), collector, strict=False):
            buffer.extend(data.reshape(-1))
            run.tick()
        run.snapshot().wait(60)
        return report, run


@pytest.mark.parametrize("mutable", [(), True, [("next", "done")]])
def test_no_slice_joins_episodes_of_two_starts(tmp_path: Path, mutable: Any) -> None:
    seen = set()
    for start in range(4):
        buffer, env = slices(mutable=mutable), ledger()
        collector = collecting(env)
        _, run = session(tmp_path / "run", buffer, collector, 2)
        assert run.level == "state-complete"
        assert "Ledger" in run.reasons[0] or "socket" in run.reasons[0]
        for _ in range(20):
            batch, info = buffer.sample(return_info=True)
            for piece, ends in _pieces(batch, info):
                assert len(set(piece)) == 1, f"a slice joins episodes {piece} (start {start})"
                assert not ends[:-1].any()
                seen.add(piece[0])
    assert len(seen) > 3


def _pieces(batch: Any, info: Any) -> Any:
    """Yield (episode of each row, done of each row) of each slice: it ends where it says so."""
    episodes = batch["observation"][:, 0].tolist()
    done = batch["next", "done"][:, 0].clone()
    cuts = info["next", "truncated"][:, 0].nonzero()[:, 0].tolist()
    first = 0
    for last in cuts:
        yield episodes[first : last + 1], done[first : last + 1]
        first = last + 1


def test_statistics_survive_a_reset(tmp_path: Path) -> None:
    buffer, env = slices(), ledger()
    session(tmp_path / "run", buffer, collecting(env), 3)
    saved = hashed(env.transform[0].state_dict())
    buffer, env = slices(), ledger()
    collector = collecting(env)
    assert hashed(env.transform[0].state_dict()) != saved
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector, **QUICK) as run:
        assert run.restore().next_step == 25
        assert hashed(env.transform[0].state_dict()) == saved


def test_starts_of_a_run_are_seeded_alike(tmp_path: Path) -> None:
    ends = []
    for copy in ("one", "two"):
        for _ in range(2):
            buffer, collector = slices(), collecting(ledger())
            session(tmp_path / copy, buffer, collector, 3, seed=5)
        ends.append(buffer[24:]["observation"][:, 0].tolist())
    assert ends[0][8:] == ends[1][8:]


def test_what_is_drawn_ahead_lowers_the_level(tmp_path: Path) -> None:
    def made() -> Any:
        return TensorDictReplayBuffer(storage=RingStorage(SIZE), batch_size=8, prefetch=2)

    buffer, env = made(), PendulumEnv()
    with pytest.raises(ConfigError, match="prefetch"):
        TrainingRun(tmp_path / "refused", replay_buffer=buffer, refuse_inexact=True)
    assert not (tmp_path / "refused").exists()
    collector = collecting(env, init_random_frames=8)
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector, **QUICK) as run:
        assert run.level == "state-complete"
        run.restore()
        for _, data in zip(range(8), collector, strict=False):
            buffer.extend(data.reshape(-1))
            for _ in range(3):
                buffer.sample()
            run.tick()
        # The live queue is not thrown away by a snapshot, and nothing draws while one is taken.
        assert len(buffer._prefetch_queue) == 2
        run.snapshot().wait(60)
        assert all(future.done() for future in buffer._prefetch_queue)
        notes = pyengine.open_run(tmp_path / "run").snapshots[-1].notes
        assert notes["torchrl"]["level"] == "state-complete"
        rows = buffer[:].clone()
    buffer, collector = made(), collecting(PendulumEnv(), init_random_frames=8)
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector, **QUICK) as run:
        run.restore()
        assert not buffer._prefetch_queue
        assert hashed(buffer[:].clone()) == hashed(rows)
        buffer.sample()


def test_environments_in_one_process_go_on_exactly(tmp_path: Path) -> None:
    def made() -> Any:
        env = SerialEnv(3, make_env)
        env.set_seed(3)
        torch.manual_seed(3)
        return collecting(env, frames=12), ReplayBuffer(storage=RingStorage(60, ndim=2))

    def collect(collector: Any, buffer: Any, batches: int) -> list[str]:
        collected = []
        for _, data in zip(range(batches), collector, strict=False):
            collected.append(hashed(data))
            buffer.extend(data)
        return collected

    undisturbed = collect(*made(), 12)
    collector, buffer = made()
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector) as run:
        assert run.level == "exact", run.reasons
        run.restore()
        assert collect(collector, buffer, 7) == undisturbed[:7]
        run.snapshot().wait(60)
    rows = hashed(buffer.storage[:].clone())
    collector, buffer = made()
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector) as run:
        run.restore()
        assert hashed(buffer.storage[:].clone()) == rows
        assert collect(collector, buffer, 5) == undisturbed[7:]


def test_a_run_begins_before_its_first_element(tmp_path: Path) -> None:
    for expected in (0, 8):
        buffer, collector = slices(), collecting(PendulumEnv())
        with TrainingRun(
            tmp_path / "run", replay_buffer=buffer, collector=collector, **QUICK
        ) as run:
            report = run.restore()
            assert len(buffer) == 0
            assert report.next_step == (1 if expected else 0)
            if not expected:
                run.snapshot(0).wait(60)
            else:
                buffer.extend(next(iter(collector)).reshape(-1))
                run.snapshot().wait(60)
    buffer, collector = slices(), collecting(PendulumEnv())
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector, **QUICK) as run:
        assert run.restore().rows == 8
        assert len(buffer) == 8


def test_other_parts_than_the_runs_are_named_with_both_sides(tmp_path: Path) -> None:
    session(tmp_path / "run", slices(), collecting(PendulumEnv()), 3)
    other = TensorDictReplayBuffer(storage=RingStorage(SIZE), batch_size=4)
    larger = TensorDictReplayBuffer(
        storage=RingStorage(SIZE + 1), sampler=slices().sampler, batch_size=4
    )
    env = SerialEnv(2, PendulumEnv)
    for buffer, collector, what in (
        (other, collecting(PendulumEnv()), "sampler"),
        (larger, collecting(PendulumEnv()), "storage_size"),
        (slices(mutable=True), collecting(PendulumEnv()), "mutable"),
        (slices(), collecting(env), "environment"),
        (slices(), collecting(PendulumEnv(), frames=10), "frames_per_batch"),
    ):
        with pytest.raises(ModelMismatchError) as caught:
            TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector)
        assert caught.value.what == what
        assert str(caught.value.saved) in str(caught.value)
        assert str(caught.value.found) in str(caught.value)
    assert len(list((tmp_path / "run" / "generations").glob("*[0-9]"))) == 1, "it was claimed"
    with pyengine.SnapshotEngine(tmp_path / "plain") as engine:
        engine.track(counters={"a": 1})
        engine.restore()
        engine.snapshot(0).wait(60)
    with pytest.raises(ModelMismatchError, match="not made by a TrainingRun"):
        TrainingRun(tmp_path / "plain", replay_buffer=slices())


def test_a_run_that_was_not_restored_is_not_gone_over(tmp_path: Path) -> None:
    session(tmp_path / "run", slices(), collecting(PendulumEnv()), 3)
    collector = collecting(PendulumEnv())
    run = TrainingRun(tmp_path / "run", replay_buffer=slices(), collector=collector)
    with run, pytest.raises(UnrestoredRunError):
        run.tick()
    buffer, collector = slices(), collecting(PendulumEnv())
    report, _ = session(tmp_path / "run", buffer, collector, 1, fresh=True)
    assert not report
    assert len(buffer) == 8


def test_collectors_out_of_reach_are_refused(tmp_path: Path) -> None:
    other = MultiSyncCollector.__new__(MultiSyncCollector)
    whole = collecting(PendulumEnv(), trajs_per_batch=2)
    for collector, match in ((other, "MultiSyncCollector"), (whole, "trajs_per_batch")):
        with pytest.raises(ConfigError, match=match):
            TrainingRun(tmp_path / "run", collector=collector)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="on_damage"):
        TrainingRun(tmp_path / "run", replay_buffer=slices(), on_damage="drop")


def test_damage_falls_back_to_the_snapshot_before(tmp_path: Path) -> None:
    buffer, collector = slices(), collecting(PendulumEnv())
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector) as run:
        run.restore()
        for _, data in zip(range(3), collector, strict=False):
            buffer.extend(data.reshape(-1))
            run.snapshot().wait(60)
    newest = pyengine.open_run(tmp_path / "run").snapshots[-1]
    for file in Path(newest.path).rglob("replay_index*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    buffer, collector = slices(), collecting(PendulumEnv())
    with TrainingRun(tmp_path / "run", replay_buffer=buffer, collector=collector) as run:
        assert run.restore().next_step == 17
        assert len(buffer) == 16


def test_with_many_snapshots_equals_with_few_and_in_many_starts(tmp_path: Path) -> None:
    ends = []
    for name, every in (("often", 8), ("rarely", 200)):
        folder = tmp_path / name
        parts, _ = train("random", Start(folder, options={"every_steps": every}))
        ends.append(digest(parts, folder))
    assert ends[0] == ends[1]
    folder = tmp_path / "pieces"
    folder.mkdir()
    for frames in (*range(2 * EVERY, 240, 2 * EVERY), 240):
        parts, _ = train("random", Start(folder, frames=frames, options={"every_steps": 8}))
    assert digest(parts, folder) == ends[0]


def test_memory_may_be_limited(tmp_path: Path) -> None:
    made = make("random", memory_limit=1 << 24)
    assert made.buffer.storage.max_size == CAPACITY
    with TrainingRun(tmp_path / "run", replay_buffer=made.buffer, collector=made.collector) as run:
        run.restore()
        for _, data in zip(range(20), made.collector, strict=False):
            made.buffer.extend(data.reshape(-1))
            run.tick()
        assert len(made.buffer) == CAPACITY
        assert np.isfinite(made.buffer[:]["observation"].numpy()).all()
