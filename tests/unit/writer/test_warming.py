"""After a restore the writer reads and verifies mapped segments, and tells of damage."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from trainer_side import Ring, TrainerSide, rows_of, trainer_on

from pyengine._native.control import Words
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.pool import adopt_files, plan_adoption
from pyengine.catalog.scan import read_snapshot
from pyengine.format.buffer_header import BufferHeader
from pyengine.shm.states import SlotState

COLD_READS_WORD = 19
"""Of the control block (csrc/core/control.h)."""


def restored(trainer: TrainerSide, snapshot: SnapshotInfo) -> Ring:
    """Give a fresh ring the segments of a snapshot as mapped files; the images are not needed."""
    ring = trainer.add_ring()
    path = Path(snapshot.path) / "buffer/replay/buffer_header.json"
    header = BufferHeader.from_bytes(path.read_bytes(), path=str(path))
    run_dir, line = trainer.claim.run_dir, trainer.line.id
    number = ring.control.next_file_sequence()
    adopted = plan_adoption(run_dir, snapshot, header, line=line, first_sequence=number)
    with commit_lock(run_dir, trainer.claim.generation) as held:
        adopt_files(held, "replay", adopted)
    for record in (file.record for file in adopted.values()):
        ring.core.map_segment(0, record[2] // ring.segment_rows, ring.arena.mapping.address, record)
    ring.core.set_lane(0, 0, len(adopted) * ring.segment_rows, True)
    return ring


def make_snapshot(run: Path) -> str:
    with trainer_on(run) as trainer:
        ring = trainer.add_ring()
        ring.add(5 * ring.segment_rows)
        path = trainer.snapshot(1)
        trainer.close_writer()
        return path.name


def is_verified(ring: Ring, segment: int) -> bool:
    return ring.control.is_verified(0, segment, 0, ring.plan.layout.block_count)


def count_verified(ring: Ring) -> int:
    return sum(is_verified(ring, segment) for segment in range(5))


def test_all_mapped_segments_are_verified_in_the_background(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run") as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        assert count_verified(ring) == 0
        trainer.channel.send("warm", ring="replay")
        message = trainer.wait_for("warmed")
        assert (message["segments"], message["damaged"]) == (5, 0)
        assert count_verified(ring) == 5


def test_damage_is_told_and_its_segment_stays_unverified(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run") as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        mine = trainer.line.text
        damaged = [name for name in trainer.pool() if name.startswith(mine)][:2]
        flip(tmp_path / "run/segments/replay" / damaged[0], 9000)
        os.truncate(tmp_path / "run/segments/replay" / damaged[1], 20000)
        trainer.channel.send("warm", ring="replay")
        message = trainer.wait_for("warmed")
        assert (message["segments"], message["damaged"]) == (3, 2)
        assert [n for n in range(5) if not is_verified(ring, n)] == [0, 1]
        texts = trainer.texts("warning")
        assert [any(name in text for text in texts) for name in damaged] == [True, True], texts
        assert all(f"snapshots/{name}/buffer/replay/segment-" in text for text in texts), texts


def reads(action: str, **rule: Any) -> list[Any]:
    """A plan for reads of the pool: each segment has three, header, block table and rows."""
    return [{"op": "pread_into", "path": "*/segments/*.seg", "action": action, **rule}]


def test_blocks_are_marked_while_it_goes(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run", plan=reads("stop", nth=11)) as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        trainer.channel.send("warm", ring="replay")
        trainer.wait_until(lambda: process_state(trainer.process.pid) == "T")
        assert 2 <= count_verified(ring) < 5
        trainer.process.send_signal(signal.SIGCONT)
        assert trainer.wait_for("warmed")["segments"] == 5
        assert count_verified(ring) == 5


@pytest.mark.parametrize("nth", [1, 2, 3, 8])
def test_a_writer_that_is_killed_while_it_reads_leaves_the_rest_to_the_next(
    tmp_path: Path, nth: int
) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run", plan=reads("kill", nth=nth)) as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        trainer.channel.send("warm", ring="replay")
        assert trainer.process.wait(60) == -signal.SIGKILL
        before = count_verified(ring)
        assert before < 5
        trainer.channel.close()
        trainer.start_writer()
        trainer.channel.send("warm", ring="replay")
        assert trainer.wait_for("warmed")["segments"] == 5 - before
        assert count_verified(ring) == 5


def test_an_end_does_not_wait_for_what_is_left(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run", plan=reads("delay", seconds=0.3, times=0)) as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        trainer.channel.send("warm", ring="replay")
        trainer.wait_until(lambda: is_verified(ring, 4))
        assert trainer.close_writer() == 0
        assert count_verified(ring) < 5


def test_a_gather_that_died_while_it_waited_does_not_hold_it_up(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run") as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        words = Words(ring.arena.mapping, 0, 32)
        words.store(COLD_READS_WORD, 1000)
        assert ring.control.cold_reads == 1000
        trainer.channel.send("warm", ring="replay")
        assert trainer.wait_for("warmed")["segments"] == 5
        words.release()


def test_restored_segments_are_linked_again_and_not_written(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run") as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        ring.add(3)
        staged = trainer.stage(2)
        assert rows_of(staged.committed()) == [list(range(5 * ring.segment_rows + 3))]
        outcome = staged.entry.outcome
        assert outcome.bytes_written < ring.plan.layout.file_bytes
        assert 3 * ring.schema.row_bytes <= outcome.new_bytes < 4 * ring.schema.row_bytes
        assert SlotState.PERSISTED not in ring.states()


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
