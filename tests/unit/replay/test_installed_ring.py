"""A ring whose rows were put back: files mapped where they lie, numbers and counters as before."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from saved_rings import save

from pyengine import Field, ReplayBuffer
from pyengine.errors import DroppedRowError
from pyengine.format.buffer_header import DroppedRun
from pyengine.format.schema import MAX_FIELDS, MAX_NAME_BYTES

FIELDS = {"id": "int64", "mark": Field((), "int32", mutable=True, default=0)}


def new_ring(capacity=64, **options):
    return ReplayBuffer(FIELDS, capacity, seed=5, **options)


def filled(rows, capacity=64, **options):
    ring = new_ring(capacity, **options)
    ring.extend(id=np.arange(rows), mark=np.arange(rows) * 2)
    return ring


def test_rows_refs_and_draws_come_back(tmp_path):
    with filled(100) as ring, new_ring() as other:
        assert save(ring, tmp_path).install(other) == 64
        assert other.gather(other.refs())["id"].tolist() == list(range(36, 100))
        assert other.gather(other.refs())["mark"].tolist() == [2 * i for i in range(36, 100)]
        assert other.sample(50).indices.tolist() == ring.sample(50).indices.tolist()


def test_rows_of_as_many_fields_as_there_can_be_come_back(tmp_path):
    """A file holds one more field than the schema: where sequences start."""
    fields = {f"{i:04}".ljust(MAX_NAME_BYTES, "x"): "int64" for i in range(MAX_FIELDS - 1)}
    fields["mark"] = Field((), "int32", mutable=True)
    with ReplayBuffer(fields, 8) as ring, ReplayBuffer(fields, 8) as other:
        ring.extend({name: np.arange(5) * i for i, name in enumerate(fields)})
        assert save(ring, tmp_path).install(other) == 5
        batch = other.gather(other.refs())
        for i, name in enumerate(fields):
            assert batch[name].tolist() == [i * row for row in range(5)]


def test_lost_updates_are_counted_on(tmp_path):
    with filled(100) as ring, new_ring() as other:
        assert ring.update([0, 1, 99], mark=5) == 2
        save(ring, tmp_path).install(other)
        assert other.lost_updates == 2
        assert other.update([3], mark=5) == 1
        assert other.lost_updates == 3


def test_dropped_runs_are_holes_in_the_window(tmp_path):
    with filled(60) as ring, new_ring() as other:
        rows = ring.storage.plan.segment_rows
        gone = DroppedRun(0, rows, rows)
        kept = [*range(rows), *range(2 * rows, 60)]
        assert save(ring, tmp_path, dropped=[gone]).install(other) == len(kept)
        assert (len(other), other.tail, other.dropped) == (len(kept), 0, (gone,))
        assert other.refs().tolist() == kept
        assert other.gather(other.refs())["id"].tolist() == kept
        with pytest.raises(DroppedRowError):
            other.gather([rows])
        other.add(id=60)
        assert other[[60]]["id"].tolist() == [60]
        assert set(other.sample(4000).indices.tolist()) == {*kept, 60}


def test_a_lane_whose_rows_were_all_dropped_takes_rows_again(tmp_path):
    with filled(6) as ring, new_ring() as other:
        rows = ring.storage.plan.segment_rows
        gone = [DroppedRun(0, first, min(rows, 6 - first)) for first in range(0, 6, rows)]
        assert save(ring, tmp_path, dropped=gone).install(other) == 0
        other.add(id=6)
        assert other.refs().tolist() == [6]


def test_files_are_let_go_of_once_each_while_many_threads_add(tmp_path, frequent_switches):
    """Every add that ages a file out looks for it, and another thread may have been faster."""
    lanes, rows, fields = 4, 1024, {"id": ((512,), "int64")}
    new = np.zeros((rows, 512), np.int64)
    with ReplayBuffer(fields, lanes * rows, num_envs=lanes) as ring:
        for lane in range(lanes):
            ring.extend(id=new, lane=lane)
        saved = save(ring, tmp_path)
    errors = []
    for _ in range(10):
        with ReplayBuffer(fields, lanes * rows, num_envs=lanes) as ring:
            saved.install(ring)
            storage = ring.storage
            assert len(storage.mapped) == 64
            barrier = threading.Barrier(lanes)

            def age_out(lane, ring=ring, barrier=barrier):
                try:
                    barrier.wait()
                    for begin in range(0, rows, 8):
                        ring.extend(id=new[begin : begin + 8], lane=lane)
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=age_out, args=(lane,)) for lane in range(lanes)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            ring.add(id=new[:lanes])
            assert storage.core.mapped_segments == 0
            assert not storage.mapped
            assert not storage.paths
    assert errors == []


def test_a_file_that_another_thread_let_go_of_is_not_let_go_of_again(tmp_path):
    with filled(64) as ring, new_ring() as other:
        save(ring, tmp_path).install(other)
        storage = other.storage
        other.extend(id=np.arange(64))
        control, faster = storage.control, []

        class Slow:
            def tail(self, lane):
                if not faster:
                    faster.append(threading.Thread(target=storage.drop_retired))
                    faster[0].start()
                    faster[0].join()
                return control.tail(lane)

        assert storage.mapped == {}
        storage.mapped.update({(0, segment): io.BytesIO() for segment in range(3)})
        core, storage.core = storage.core, SimpleNamespace(take_retired=lambda: 3)
        storage.control = Slow()
        try:
            storage.drop_retired()
        finally:
            storage.core, storage.control = core, control
        assert faster
        assert storage.mapped == {}
