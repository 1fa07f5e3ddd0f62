"""A ring several times larger than its memory limit: real engine, writer and files."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Child, await_writers_end

import pyengine
from pyengine import errors
from pyengine.engine import link
from pyengine.replay import waiting

ROWS = 16_384
WORDS = 1_022
LIMIT_BYTES = 8 << 20
"""An eighth of the rows: 64 segments of 1 MiB."""


def new_ring(**options: Any) -> pyengine.ReplayBuffer:
    schema = pyengine.Schema({"number": "int64", "payload": ((WORDS,), "uint32")})
    return pyengine.ReplayBuffer(schema, ROWS, seed=3, memory_limit=LIMIT_BYTES, **options)


def add(ring: pyengine.ReplayBuffer, first: int, end: int) -> None:
    for begin in range(first, end, 500):
        numbers = np.arange(begin, min(begin + 500, end))
        ring.extend(number=numbers, payload=payload(numbers))


def payload(numbers: Any) -> Any:
    return numbers.astype(np.uint32)[:, None] * np.arange(1, WORDS + 1, dtype=np.uint32)


def check(ring: pyengine.ReplayBuffer, total: int) -> None:
    refs = ring.refs()
    assert refs.tolist() == list(range(max(0, total - ROWS), total))
    for begin in range(0, len(refs), 1000):
        wanted = refs[begin : begin + 1000]
        rows = ring[wanted]
        np.testing.assert_array_equal(rows["number"], wanted)
        np.testing.assert_array_equal(rows["payload"], payload(wanted))


def begin(run: Path, **options: Any) -> tuple[pyengine.SnapshotEngine, pyengine.ReplayBuffer]:
    ring = new_ring()
    engine = pyengine.SnapshotEngine(run, **options)
    engine.track(replay=ring)
    engine.restore()
    return engine, ring


def test_every_row_is_what_was_added_beyond_the_limit_and_around_the_end(
    token: str, tmp_path: Path
) -> None:
    engine, ring = begin(tmp_path / "run")
    with engine:
        for part in range(5):
            add(ring, part * ROWS // 2, (part + 1) * ROWS // 2)
            batch = ring.sample(256)
            np.testing.assert_array_equal(batch["payload"], payload(batch["number"]))
            pending = engine.snapshot(part)
            info = pending.wait(60)
            # Spilled rows are as new as those in memory.
            added_bytes = ROWS // 2 * ring.schema.row_bytes
            assert pending.outcome is not None
            assert added_bytes <= pending.outcome.new_bytes < added_bytes + (1 << 20)
        check(ring, 5 * ROWS // 2)
        assert ring.storage is not None
        assert ring.storage.core.mapped_segments > 40
        assert ring.storage.arena.taken_bytes < LIMIT_BYTES + (1 << 20)
        # Each row went to disk once, and the snapshot's segments are the pool's files.
        pool = {path.stat().st_ino for path in (tmp_path / "run" / "segments" / "replay").iterdir()}
        linked = list((Path(info.path) / "buffer" / "replay").glob("*-0-*.seg"))
        assert len(linked) >= 63
        assert {path.stat().st_ino for path in linked} <= pool
    ring.close()
    engine, ring = begin(tmp_path / "run")
    with engine:
        check(ring, 5 * ROWS // 2)
        add(ring, 5 * ROWS // 2, 4 * ROWS)
        check(ring, 4 * ROWS)
    ring.close()


def killed_in_training(send: Callable[[Any], None], run: Path) -> None:
    engine, ring = begin(run)
    add(ring, 0, ROWS + 5_000)
    engine.snapshot(1).wait(60)
    add(ring, ROWS + 5_000, ROWS + 7_777)
    send(("added", ROWS + 7_777))
    signal.pause()


@pytest.mark.parametrize("replay", ["exact", "latest"])
def test_a_killed_trainer_loses_no_row(
    start: Callable[..., Child], token: str, tmp_path: Path, replay: Any
) -> None:
    child = start(killed_in_training, tmp_path / "run")
    child.receive("added")
    child.signal(signal.SIGKILL)
    assert child.join() == -signal.SIGKILL
    await_writers_end(token)
    ring = new_ring()
    with pyengine.SnapshotEngine(tmp_path / "run") as engine, ring:
        engine.track(replay=ring)
        assert engine.restore(replay=replay).next_step == 2
        total = ROWS + (5_000 if replay == "exact" else 7_777)
        assert ring.storage is not None
        assert ring.storage.arena.taken_bytes < LIMIT_BYTES + (1 << 20)
        check(ring, total)
        add(ring, total, 2 * total)
        check(ring, 2 * total)


def test_damage_of_a_file_that_rows_live_in_is_an_error_of_their_first_touch(
    token: str, tmp_path: Path
) -> None:
    engine, ring = begin(tmp_path / "run")
    with engine, ring:
        add(ring, 0, ROWS)
        engine.snapshot(0).wait(60)
        assert ring.storage is not None
        path = ring.storage.paths[0, 3]
        with open(path, "r+b") as file:
            file.seek(500_000)
            byte = file.read(1)
            file.seek(500_000)
            file.write(bytes([byte[0] ^ 1]))
            os.fsync(file.fileno())
        with pytest.raises(errors.DamageError) as caught:
            ring[np.arange(3 * 256, 4 * 256)]
        assert caught.value.path == path
        assert caught.value.offset is not None
        assert caught.value.offset <= 500_000 < caught.value.offset + 65_536
        np.testing.assert_array_equal(ring[np.arange(4 * 256)[:768]]["number"], np.arange(768))


def test_a_writer_that_was_stopped_is_replaced_and_training_goes_on(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "STOPPED_SECONDS", 0.3)
    engine, ring = begin(tmp_path / "run")
    with engine, ring, caplog.at_level(logging.WARNING, logger="pyengine"):
        ring.slot_wait = 0.1
        add(ring, 0, 5_000)
        first = engine.writer_pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        add(ring, 5_000, ROWS + 5_000)
        assert engine.writer_pid not in (None, first)
        assert "was stopped by a signal" in caplog.text
        check(ring, ROWS + 5_000)
        assert engine.snapshot(1).wait(60)


def test_a_writer_that_never_gets_on_is_an_error_within_the_bound(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "STOPPED_SECONDS", 1e9)
    engine, ring = begin(tmp_path / "run")
    with engine, ring:
        add(ring, 0, 5_000)
        assert engine.writer_pid is not None
        os.kill(engine.writer_pid, signal.SIGSTOP)
        with monkeypatch.context() as impatient:
            impatient.setattr(waiting, "SPILL_WAIT_SECONDS", 0.2)
            impatient.setattr(ring, "slot_wait", 0.1)
            with pytest.raises(errors.SharedMemoryError, match="full segments none was written"):
                add(ring, 5_000, ROWS)
        total = ring.total_count
        check(ring, total)
        os.kill(engine.writer_pid, signal.SIGCONT)
        add(ring, total, total + ROWS)
        check(ring, total + ROWS)


def test_writers_that_die_in_between_cost_no_row(token: str, tmp_path: Path) -> None:
    engine, ring = begin(tmp_path / "run")
    with engine, ring:
        for part in range(8):
            add(ring, part * 4_000, (part + 1) * 4_000)
            engine.snapshot(part).wait(60)  # else four deaths in a row would be the end
            assert engine.writer_pid is not None
            os.kill(engine.writer_pid, signal.SIGKILL)
        check(ring, 32_000)


def test_where_maps_may_go_stale_a_limited_ring_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyengine.engine.engine.is_remote", lambda path: True)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine, new_ring() as ring:
        with pytest.raises(errors.ConfigError, match="FUSE"):
            engine.track(replay=ring)
        engine.track(counters={"n": 0})
        with pyengine.ReplayBuffer({"x": "float32"}, 8) as whole:
            engine.track(replay=whole)
