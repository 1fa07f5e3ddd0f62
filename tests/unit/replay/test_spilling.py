"""Rings that may take less memory than their rows need: segments live in files beyond the limit."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import threading

import numpy as np
import pytest
from mapped_rings import block_place, flip, new_ring, path_of, rows
from pool_owner import PoolOwner
from processes import interrupted_at
from saved_rings import save

import pyengine
from pyengine import Field, ReplayBuffer, Schema
from pyengine._native.control import Words
from pyengine.errors import (
    ConfigError,
    DamageError,
    DroppedRowError,
    EmptyRingError,
    SharedMemoryError,
)
from pyengine.replay import allowance, plan, reserving, waiting
from pyengine.replay.priorities import PrioritizedReplayBuffer
from pyengine.shm.arena import Arena
from pyengine.shm.states import SlotState, SnapshotState, pack_word

R = 512
"""Rows of a segment of `new_ring`, which has 8 of them."""


@pytest.fixture
def alone(monkeypatch):
    """Without the thread that keeps slots free: what happens, a call did."""
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 600)


def slot_bytes(ring):
    return ring._plan.layout.file_bytes


def limited(slots=4, capacity=4096):
    with new_ring(capacity) as whole:
        size = slot_bytes(whole)
    return new_ring(capacity, memory_limit=slots * size)


def is_file(ring, segment, lane=0):
    return isinstance(ring.control.place(lane, segment), tuple)


def check(ring, first, end):
    """Every row, by ref and by position, is the one that was added."""
    refs = ring.refs()
    assert refs.tolist() == list(range(first, end))
    expected = rows(refs)
    batch = ring.gather(refs)
    for name in ("id", "obs"):
        np.testing.assert_array_equal(batch[name], expected[name], strict=True)
    ids = np.asarray(ring.column("id"))
    assert sorted(ids[ids > 0].tolist()) == [ref for ref in refs if ref]


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


class Clock:
    """In place of the module `time`: a slice of waiting takes a second."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += 1.0


def test_a_writer_that_stands_still_is_waited_for_and_then_told(alone, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    with limited() as ring:
        owner = PoolOwner(ring, tmp_path)
        owner.is_stopped = True
        with pytest.raises(SharedMemoryError, match="of 4 full segments none was written"):
            ring.extend(**rows(np.arange(4096)))
        assert ring.total_count == 4 * R
        assert ring.slot_wait + waiting.SPILL_WAIT_SECONDS < clock.now - 100 < 75
        owner.is_stopped = False
        ring.extend(**rows(np.arange(4 * R, 4096)))
        check(ring, 0, 4096)


def test_a_writer_that_is_slow_is_waited_for_as_long_as_it_gets_on(alone, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    with limited(3) as ring:
        owner = PoolOwner(ring, tmp_path)
        looks = 0

        def write_one_of_fifty():
            nonlocal looks
            looks += 1
            if looks % 50 == 0:
                owner.persist(1)

        owner.poll = write_one_of_fifty
        ring.extend(**rows(np.arange(8192)))
        assert clock.now > 100 + 10 * 50
        check(ring, 4096, 8192)


@pytest.mark.parametrize("refused", ["the cgroup", "/dev/shm"])
@pytest.mark.parametrize("steps", [1, 700])
def test_where_memory_ends_the_oldest_rows_leave_it(alone, tmp_path, monkeypatch, refused, steps):
    with new_ring() as ring:
        PoolOwner(ring, tmp_path)
        for i in range(3 * R):
            ring.add(**rows(i))
        kept = end_memory(ring, monkeypatch, refused)
        for first in range(3 * R, 9000 - steps, steps):
            ring.extend(**rows(np.arange(first, first + steps)))
        check(ring, max(0, ring.total_count - 4096), ring.total_count)
        assert ring.storage.core.slots()[1] <= 4
        assert ring.storage.core.mapped_segments >= 4
        give_back(ring, kept)


def end_memory(ring, monkeypatch, how):
    """From now on no slot gets memory; return what `give_back` needs."""
    if how == "the cgroup":
        ring.storage.core.allow_bytes(0)
        monkeypatch.setattr(allowance, "headroom", lambda **_: 1000)
        return None
    fd = ring.storage.arena.fd
    kept, null = os.dup(fd), os.open("/dev/null", os.O_RDWR)
    os.dup2(null, fd, inheritable=False)
    os.close(null)
    return kept


def give_back(ring, kept):
    if kept is not None:
        os.dup2(kept, ring.storage.arena.fd, inheritable=False)
        os.close(kept)


def test_where_memory_ends_before_there_is_anything_to_write_the_error_comes_at_once(
    alone, tmp_path, monkeypatch
):
    with new_ring() as ring:
        PoolOwner(ring, tmp_path)
        monkeypatch.setattr(allowance, "headroom", lambda **_: 1000)
        with pytest.raises(SharedMemoryError, match="Raise the memory limit"):
            ring.extend(**rows(np.arange(2 * R)))
        assert ring.total_count == 0
        assert ring.wait_count == 0


def test_where_memory_ends_and_nothing_is_written_both_causes_are_told(
    alone, tmp_path, monkeypatch
):
    monkeypatch.setattr(waiting, "time", Clock())
    with new_ring() as ring:
        PoolOwner(ring, tmp_path).is_stopped = True
        ring.extend(**rows(np.arange(3 * R)))
        end_memory(ring, monkeypatch, "the cgroup")
        with pytest.raises(SharedMemoryError, match=r"1000 are free.*none was written") as caught:
            ring.extend(**rows(np.arange(3 * R, 4096)))
        assert caught.value.free_bytes == 1000


def persisted(tmp_path, segments=3, **options):
    """A limited ring of six slots, `segments` of them PERSISTED, nothing spilled."""
    ring = limited(6)
    owner = PoolOwner(ring, tmp_path, **options)
    ring.extend(**rows(np.arange(segments * R)))
    owner.persist()
    return ring, owner


def files(tmp_path):
    return sorted(tmp_path.iterdir(), key=lambda path: int(path.name.split("-")[2]))


def spoil_header(path):
    flip(path, 100)


def spoil_table(path):
    flip(path, path.stat().st_size - 20)


def cut_short(path):
    os.truncate(path, 8192)


def remove(path):
    path.unlink()


def swap(path):
    path.write_bytes(files(path.parent)[0].read_bytes())


@pytest.mark.parametrize("spoil", [spoil_header, spoil_table, cut_short, remove, swap])
def test_a_segment_whose_file_is_not_what_was_written_stays_in_memory(
    alone, tmp_path, caplog, spoil
):
    ring, _ = persisted(tmp_path)
    with ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        path = files(tmp_path)[1]
        spoil(path)
        for _ in range(3):
            ring.storage.spiller.spill(10)
        assert [is_file(ring, segment) for segment in range(3)] == [True, False, True]
        assert caplog.text.count(str(path)) >= 1
        assert caplog.text.count("segment 1 of lane 0 stays in memory") == 1
        check(ring, 0, 3 * R)


def test_where_all_files_are_gone_the_error_names_one(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "time", Clock())
    ring, _ = persisted(tmp_path, segments=6)
    with ring:
        names = files(tmp_path)
        for path in names:
            path.unlink()
        with pytest.raises(SharedMemoryError, match="could not leave memory") as caught:
            ring.add(**rows(6 * R))
        assert any(str(path) in str(caught.value) for path in names)
        check(ring, 0, 6 * R)


def test_a_process_without_a_descriptor_left_is_told_and_tries_again(alone, tmp_path, caplog):
    ring, _ = persisted(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            assert ring.storage.spiller.spill(3) == 0
            assert ring.storage.spiller.spill(3) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caplog.text.count(os.strerror(errno.EMFILE)) == 1
        assert ring.storage.spiller.spill(3) == 3
        check(ring, 0, 3 * R)


def test_a_process_without_room_for_a_mapping_is_told_why(alone, tmp_path, caplog):
    ring, _ = persisted(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, limits[1]))
        try:
            freed = ring.storage.spiller.spill(3)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert freed == 0
        assert "vm.max_map_count" in ring.storage.spiller.cause
        check(ring, 0, 3 * R)


def test_a_damaged_block_is_met_at_its_first_touch(alone, tmp_path):
    ring, _ = persisted(tmp_path)
    with ring:
        assert ring.storage.spiller.spill(3) == 3
        path, (offset, _) = path_of(ring, 1), block_place(ring, "obs", 2)
        flip(path, offset + 7)
        with pytest.raises(DamageError) as caught:
            ring.gather([R + 300])
        assert (caught.value.path, caught.value.offset) == (str(path), offset)
        others = np.delete(ring.refs(), np.s_[R + 256 : R + 384])
        assert ring.gather(others)["id"].tolist() == others.tolist()


def test_damaged_rows_leave_the_ring_where_that_was_asked_for(alone, tmp_path):
    ring, _ = persisted(tmp_path, on_damage="drop")
    with ring:
        assert ring.may_drop
        ring.storage.spiller.spill(3)
        flip(path_of(ring, 1), block_place(ring, "obs", 2)[0] + 7)
        with pytest.raises(DroppedRowError):
            ring.gather([R + 300])
        assert [tuple(vars_of(run)) for run in ring.dropped] == [(0, R + 256, 128)]
        assert len(ring) == 3 * R - 128
        assert ring.sample(2000)["id"].size == 2000


def vars_of(run):
    return run.lane, run.first_row, run.row_count


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


def test_threads_that_spill_append_and_read_at_once_see_whole_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(reserving, "_POLL_SECONDS", 0)
    with limited(4) as ring:
        owner = PoolOwner(ring, tmp_path)
        writing = threading.Lock()

        def persist():
            with writing:
                owner.persist()

        owner.poll = persist
        ring.extend(**rows(np.arange(4096)))
        done, wrong = threading.Event(), []

        def read():
            while not done.is_set():
                batch = ring.sample(64)
                if not np.array_equal(batch["obs"], rows(batch["id"])["obs"]):
                    wrong.append(batch)

        def spill():
            while not done.is_set():
                persist()
                ring.storage.spill()

        threads = [threading.Thread(target=work) for work in (read, read, spill, spill)]
        for thread in threads:
            thread.start()
        try:
            for first in range(4096, 40 * R, 100):
                ring.extend(**rows(np.arange(first, first + 100)))
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        check(ring, ring.tail, ring.total_count)


SMALL = 16
"""Rows of a segment of `small_ring`, which has 4 of them."""


def small_ring(directory):
    """A limited ring of six slots, three of them PERSISTED."""
    directory.mkdir()
    with ReplayBuffer({"id": "int64"}, 4 * SMALL) as whole:
        size = slot_bytes(whole)
    ring = ReplayBuffer({"id": "int64"}, 4 * SMALL, memory_limit=6 * size)
    owner = PoolOwner(ring, directory)
    ring.extend(id=np.arange(3 * SMALL))
    owner.persist()
    return ring


def holds_all(ring):
    refs = ring.refs()
    assert refs.tolist() == list(range(max(0, ring.total_count - 4 * SMALL), ring.total_count))
    assert ring.gather(refs)["id"].tolist() == refs.tolist()


@pytest.mark.parametrize("work", ["spills", "appends"])
def test_a_signal_handler_may_come_at_any_point_of_a_spill(alone, tmp_path, work):
    place, reached = 0 if work == "spills" else 1, True
    while reached:
        place += 3
        with small_ring(tmp_path / str(place)) as ring:

            def handle(ring=ring):
                if work == "spills":
                    ring.storage.spiller.spill(1)
                else:
                    ring.extend(id=np.arange(3 * SMALL, 8 * SMALL))

            reached, _ = interrupted_at(
                place, lambda r=ring: r.storage.spiller.spill(1), act=handle
            )
            holds_all(ring)
            ring.extend(id=np.arange(ring.total_count, 20 * SMALL))
            holds_all(ring)
            assert ring.storage.mapped.keys() == ring.storage.paths.keys()
    assert place > 20


def test_an_interrupt_at_any_point_of_a_spill_leaves_every_row(alone, tmp_path):
    place, reached = 0, True
    while reached:
        place += 1
        with small_ring(tmp_path / str(place)) as ring:
            reached, _ = interrupted_at(place, lambda r=ring: r.storage.spiller.spill(1))
            holds_all(ring)
            ring.extend(id=np.arange(3 * SMALL, 20 * SMALL))
            holds_all(ring)
    assert place > 20


def test_a_forked_child_maps_nothing(tmp_path):
    ring, _ = persisted(tmp_path)
    with ring:
        ring.storage.spiller.spill(3)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            with ring:
                pass
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check(ring, 0, 3 * R)
