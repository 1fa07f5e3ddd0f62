"""Rings that may take less memory than their rows need: segments live in files beyond the limit."""

from __future__ import annotations

import os

import numpy as np
import pytest
from mapped_rings import new_ring, rows
from pool_owner import PoolOwner
from saved_rings import save
from spilled_rings import Clock, R, check, is_file, limited, persisted, slot_bytes

import pyengine
from pyengine import Field, ReplayBuffer, Schema
from pyengine._native.control import Words
from pyengine.errors import (
    ConfigError,
    EmptyRingError,
    SharedMemoryError,
)
from pyengine.replay import plan, reserving, waiting
from pyengine.replay.priorities import PrioritizedReplayBuffer
from pyengine.shm.arena import Arena
from pyengine.shm.states import SlotState, SnapshotState, pack_word


def test_a_ring_of_eight_segments_lives_in_four_slots(alone, tmp_path):
    with limited() as ring:
        owner = PoolOwner(ring, tmp_path)
        for first in range(0, 3 * 4096, 300):
            ring.extend(**rows(np.arange(first, first + 300)))
        assert ring.total_count == 12300
        check(ring, 12300 - 4096, 12300)
        slots_end = ring._plan.slot_count * slot_bytes(ring)
        assert ring._plan.slot_count == 4
        assert ring.storage.arena.taken_bytes <= ring.whole_bytes - slots_end + 4 * slot_bytes(ring)
        assert [is_file(ring, segment) for segment in range(16, 25)].count(True) >= 5
        assert not is_file(ring, 24)
        # Mappings of what has left the window are gone.
        assert all((segment + 1) * R > ring.tail for _, segment in ring.storage.mapped)
        assert ring.storage.mapped.keys() == ring.storage.paths.keys()
        mapped = list(ring.storage.mapped.values())
        del owner
    assert all(mapping.closed for mapping in mapped)


def test_the_thread_keeps_slots_free_so_that_no_append_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 0)
    with limited(6) as ring:
        owner = PoolOwner(ring, tmp_path)
        ring.add(**rows(0))
        for first in range(1, 2 * 4096, R):
            ring.extend(**rows(np.arange(first, first + R)))
            owner.persist()
            while ring.storage.core.slots()[0] < 1:
                os.sched_yield()
        assert ring.wait_count == 0
        check(ring, ring.tail, ring.total_count)


@pytest.mark.parametrize("kind", ["plain", "priorities", "stacks"])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_it_is_the_ring_without_a_limit_in_every_bit(alone, tmp_path, kind, lanes, seed):
    """Draws, returns over steps, windows, breaks, columns, priorities: random calls, both alike."""
    rng = np.random.default_rng([seed, lanes])
    frames = Field((2, 6000), "uint8", stack=2)
    fields = {
        "obs": frames if kind == "stacks" else Field((9000,), "uint8"),
        "reward": "float32",
        "terminated": "bool",
    }
    if kind == "stacks":
        fields["next_obs"] = Field((2, 6000), "uint8", stack=2, next_of="obs")
    schema = Schema(fields, episode_end=("terminated",))
    make = PrioritizedReplayBuffer if kind == "priorities" else ReplayBuffer
    capacity = 600 * lanes
    whole = make(schema, capacity, num_envs=lanes, seed=3)
    least = plan._least_slots(whole.schema, lanes) * slot_bytes(whole)
    assert least < whole._plan.slot_count * slot_bytes(whole)
    small = make(schema, capacity, num_envs=lanes, seed=3, memory_limit=least)
    last = np.zeros((lanes, 2, 6000), np.uint8)
    with whole, small:
        owner = PoolOwner(small, tmp_path)
        for _ in range(40):
            for _ in range(int(rng.integers(1, 40))):
                reward = rng.random(lanes, np.float32)
                row = {"reward": reward, "terminated": rng.random(lanes) < 0.05}
                if kind == "stacks":
                    new = rng.integers(0, 256, (lanes, 1, 6000), np.uint8)
                    row |= {"obs": last.copy(), "next_obs": np.concatenate([last[:, 1:], new], 1)}
                    last = row["next_obs"]
                else:
                    row["obs"] = np.repeat((reward * 255).astype(np.uint8)[:, None], 9000, 1)
                mask = rng.random(lanes) < 0.8 if kind == "plain" else None
                for ring in (whole, small):
                    ring.add(row, mask=mask)
            owner.persist(int(rng.integers(0, 4)))
            if rng.random() < 0.3:
                small.storage.spill()
            same(whole, small, rng, kind)
        assert small.storage.core.mapped_segments > 0


def same(whole, small, rng, kind):
    try:
        expected, got = whole.sample(32), small.sample(32)
    except EmptyRingError:
        with pytest.raises(EmptyRingError):
            small.sample(32)
        return
    equal(expected, got)
    np.testing.assert_array_equal(expected.indices, got.indices)
    last = ("next_obs", "terminated") if kind == "stacks" else ("terminated",)
    steps = pyengine.NStep(3, 0.9, of_last=last)
    equal(whole.sample(16, n_step=steps), small.sample(16, n_step=steps))
    equal(whole.sample_sequences(4, 8, pad=True), small.sample_sequences(4, 8, pad=True))
    if kind == "priorities":
        np.testing.assert_array_equal(expected.weights, got.weights)
        errors = rng.random(32).astype(np.float32)
        for ring in (whole, small):
            ring.update_priorities(expected.indices, errors)
    if rng.random() < 0.2:
        np.testing.assert_array_equal(whole.refs(), small.refs())
        equal(whole.gather(whole.refs()), small.gather(small.refs()))
        for lane in range(whole.num_envs):
            assert whole.breaks(lane).tolist() == small.breaks(lane).tolist()


def equal(expected, got):
    for name in expected:
        np.testing.assert_array_equal(expected[name], got[name], strict=True)


@pytest.mark.parametrize(("lanes", "stack"), [(1, 1), (4, 1), (16, 1), (4, 2)])
def test_the_least_limit_is_named_and_is_enough(alone, tmp_path, lanes, stack):
    frames = {"obs": Field((2048,), "uint8")}
    if stack > 1:
        frames = {
            "obs": Field((stack, 1024), "uint8", stack=stack),
            "next_obs": Field((stack, 1024), "uint8", stack=stack, next_of="obs"),
        }
    with pytest.raises(ConfigError, match="at least") as caught:
        ReplayBuffer(frames, 2048 * lanes, num_envs=lanes, memory_limit=1)
    least = int(caught.value.expected.removeprefix("at least "))
    assert caught.value.field == "memory_limit"
    with pytest.raises(ConfigError):
        ReplayBuffer(frames, 2048 * lanes, num_envs=lanes, memory_limit=least - 1)
    with ReplayBuffer(frames, 2048 * lanes, num_envs=lanes, memory_limit=least) as ring:
        PoolOwner(ring, tmp_path)
        value = np.zeros((lanes, 2048), np.uint8)
        given = {"obs": value.reshape(lanes, *ring.schema["obs"].shape)}
        if stack > 1:
            given["next_obs"] = given["obs"]
        for _ in range(700):  # all lanes seal at once
            ring.add(given)
        assert ring.total_count.min() >= 700 if lanes > 1 else ring.total_count == 700


def test_a_limit_above_the_whole_ring_changes_nothing():
    with new_ring() as whole, new_ring(memory_limit=1 << 40) as same_ring:
        assert same_ring.whole_bytes == whole.whole_bytes
        same_ring.extend(**rows(np.arange(9000)))
        check(same_ring, 9000 - 4096, 9000)


@pytest.mark.parametrize("value", [-1, 0, 1.5, True, "8G"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        new_ring(memory_limit=value)
    assert caught.value.field == "memory_limit"


def test_more_files_than_a_process_may_map_are_refused(monkeypatch):
    monkeypatch.setattr(plan, "most_mappings", lambda: 4100)
    with pytest.raises(ConfigError, match="max_map_count"):
        limited()


def test_without_an_engine_the_limit_is_the_end_and_says_so(alone):
    with limited() as ring:
        with pytest.raises(SharedMemoryError, match=r"memory_limit=.*no engine tracks") as caught:
            ring.extend(**rows(np.arange(4096)))
        assert caught.value.needed_bytes == slot_bytes(ring)
        assert ring.total_count == 4 * R  # what came before is whole
        check(ring, 0, 4 * R)


def test_before_the_run_has_begun_it_says_that(alone, tmp_path):
    with limited() as ring:
        PoolOwner(ring, tmp_path, line=0)
        with pytest.raises(SharedMemoryError, match=r"engine\.restore\(\)"):
            ring.extend(**rows(np.arange(4096)))
        ring.set_line(7)
        ring.extend(**rows(np.arange(4 * R, 4096)))
        check(ring, 0, 4096)


def test_a_limited_ring_needs_a_file_system_whose_files_can_be_mapped():
    with limited() as ring, new_ring() as whole:
        with pytest.raises(ConfigError, match="FUSE"):
            ring.bind(object(), "replay")
        whole.bind(object(), "replay")


def test_an_engine_that_lets_go_leaves_the_rows_readable(alone, tmp_path):
    with limited() as ring:
        owner = PoolOwner(ring, tmp_path)
        ring.extend(**rows(np.arange(3 * R + 7 * R)))
        ring.unbind(owner)
        check(ring, 10 * R - 4096, 10 * R)
        with pytest.raises(SharedMemoryError, match="no engine tracks"):
            ring.extend(**rows(np.arange(10 * R, 20 * R)))


def test_a_pending_snapshot_keeps_the_files_of_spilled_rows_that_age_out(alone, tmp_path):
    with Arena.create(4096, "words") as arena, limited(5) as ring:
        PoolOwner(ring, tmp_path)
        words = Words(arena.mapping, 0, 1)
        words.store(0, pack_word(1, SnapshotState.PENDING))
        ring.extend(**rows(np.arange(4096)))
        with ring.freeze():
            ring.cut(arena.mapping, 0, 1)
        ring.extend(**rows(np.arange(4096, 5 * R + 4096)))
        check(ring, 5 * R, 13 * R)
        records = [ring.control.place(0, segment) for segment in range(5)]
        assert [record[2] for record in records] == [segment * R for segment in range(5)]
        assert all((0, segment) not in ring.storage.mapped for segment in range(5))
        words.store(0, pack_word(1, SnapshotState.COMMITTED))
        ring.extend(**rows(np.arange(13 * R, 29 * R)))
        assert ring.control.place(0, 4) is None
        ring.unbind(ring._owner)


def test_slots_that_a_snapshot_holds_cost_the_snapshot_not_the_window_its_memory(
    alone, tmp_path, monkeypatch
):
    monkeypatch.setattr(waiting, "time", Clock())
    with Arena.create(4096, "words") as arena, new_ring() as ring:
        owner = PoolOwner(ring, tmp_path)
        words = Words(arena.mapping, 0, 1)
        words.store(0, pack_word(1, SnapshotState.PENDING))
        ring.extend(**rows(np.arange(2 * R, 10 * R)))
        held = ring.control.slots_in(SlotState.SEALED)
        with ring.freeze():
            ring.cut(arena.mapping, 0, 1)
        owner.poll = lambda: [owner.persist_slot(*slot) for slot in new_slots(ring, held)]

        def cancel(reason):
            words.store(0, pack_word(1, SnapshotState.CANCELLED))
            return 1

        owner.cancel_holding = cancel
        ring.extend(**rows(np.arange(10 * R, 18 * R)))
        assert words.load(0) == pack_word(1, SnapshotState.CANCELLED)
        assert ring.storage.core.mapped_segments == 0
        ring.unbind(owner)


def new_slots(ring, held):
    """Sealed since: what a writer has done while it cannot write the rows of a snapshot."""
    return [slot for slot in ring.control.slots_in(SlotState.SEALED) if slot not in held]


def test_a_restore_into_a_limited_ring_takes_slots_for_open_rows_alone(alone, tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    with new_ring() as source:
        source.extend(**rows(np.arange(7 * R + 9)))
        snapshot = save(source, saved)
    with limited(3) as ring:
        PoolOwner(ring, tmp_path)
        snapshot.install(ring)
        assert len([s for s in range(8) if not is_file(ring, s)]) == 1
        check(ring, 0, 7 * R + 9)
        ring.extend(**rows(np.arange(7 * R + 9, 20 * R)))
        check(ring, 12 * R, 20 * R)


def test_spilled_rows_are_saved_as_the_files_that_they_are(alone, tmp_path):
    ring, _ = persisted(tmp_path, segments=5)
    again = tmp_path / "again"
    again.mkdir()
    with ring:
        ring.storage.spiller.spill(2)
        snapshot = save(ring, again)
        assert sum(file.path.startswith(str(again)) for file in snapshot.files.values()) == 3
        with new_ring() as other:
            snapshot.install(other)
            check(other, 0, 5 * R)
