"""After a restore the writer reads and verifies mapped segments, and tells of damage."""

from __future__ import annotations

import os
from pathlib import Path

from trainer_side import Ring, TrainerSide, rows_of, trainer_on

from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.pool import adopt_files
from pyengine.catalog.scan import read_snapshot
from pyengine.format.buffer_header import BufferHeader
from pyengine.shm.states import SlotState


def restored(trainer: TrainerSide, snapshot: SnapshotInfo) -> Ring:
    """Give a fresh ring the segments of a snapshot as mapped files; the images are not needed."""
    ring = trainer.add_ring()
    path = Path(snapshot.path) / "buffer/replay/buffer_header.json"
    header = BufferHeader.from_bytes(path.read_bytes(), path=str(path))
    with commit_lock(trainer.claim.run_dir, trainer.claim.generation) as held:
        records = adopt_files(
            held,
            snapshot,
            header,
            line=trainer.line.id,
            next_sequence=ring.control.next_file_sequence,
        )
    for record in records.values():
        ring.core.map_segment(0, record[2] // ring.segment_rows, ring.arena.mapping.address, record)
    ring.core.set_lane(0, 0, len(records) * ring.segment_rows, True)
    return ring


def make_snapshot(run: Path) -> str:
    with trainer_on(run) as trainer:
        ring = trainer.add_ring()
        ring.add(5 * ring.segment_rows)
        path = trainer.snapshot(1)
        trainer.close_writer()
        return path.name


def verified_blocks(ring: Ring) -> int:
    blocks = range(ring.plan.layout.block_count)
    return sum(ring.control.is_verified(0, n, block) for n in range(5) for block in blocks)


def test_all_mapped_segments_are_verified_in_the_background(tmp_path: Path) -> None:
    name = make_snapshot(tmp_path / "run")
    with trainer_on(tmp_path / "run") as trainer:
        ring = restored(trainer, read_snapshot(str(tmp_path / "run"), name))
        assert verified_blocks(ring) == 0
        trainer.channel.send("warm", ring="replay")
        message = trainer.wait_for("warmed")
        assert (message["segments"], message["damaged"]) == (5, 0)
        assert verified_blocks(ring) == 5 * ring.plan.layout.block_count


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
        assert verified_blocks(ring) == 3 * ring.plan.layout.block_count
        texts = trainer.texts("warning")
        assert [any(name in text for text in texts) for name in damaged] == [True, True], texts
        assert all(f"snapshots/{name}/buffer/replay/segment-" in text for text in texts), texts


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


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
