"""A staged snapshot becomes a directory that restores by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from trainer_side import expected, rows_of, trainer_on

from pyengine.catalog.run import open_run
from pyengine.catalog.scan import read_manifest
from pyengine.catalog.verify import verify_snapshot
from pyengine.format.manifest import ComponentRecord
from pyengine.shm.states import SlotState, StagingState


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 16, 37, 85])
def test_a_snapshot_holds_exactly_the_rows_of_the_cut(
    tmp_path: Path, lanes: int, rows: int
) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring(capacity=64 * lanes, lanes=lanes)
        ring.add_all(rows)
        windows = [ring.window(lane) for lane in range(lanes)]
        staged = trainer.stage(1)
        ring.add_all(3)
        path = staged.committed()
        assert rows_of(path) == expected(ring, windows)
        assert verify_snapshot(str(path)) == []


def test_the_staged_files_are_there_bit_for_bit(tmp_path: Path) -> None:
    files = {
        "model/policy.safetensors": os.urandom(70_000),
        "optimizer/optimizer.safetensors": os.urandom(4096 * 3),
        "meta.json": b'{"state": {}}',
        "state/deep/er/empty.safetensors": b"",
    }
    component = ComponentRecord("policy", "module", "saved", None, ("model/policy.safetensors",), 9)
    with trainer_on(tmp_path / "run") as trainer:
        path = trainer.snapshot(5, files=files, components=(component,))
        for name, data in files.items():
            assert (path / name).read_bytes() == data
        manifest = read_manifest(str(path))
        assert {record.path for record in manifest.files} == set(files)
        assert component in manifest.components
        assert manifest.parent is None
        assert manifest.line == trainer.line.text
        assert manifest.run_id == trainer.claim.run_id
        assert verify_snapshot(str(path)) == []


def test_large_files_are_written_and_hashed_whole(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        from pyengine.shm.arena import Arena

        size = 9_000_001
        arena = Arena.create(16 << 20, "large")
        arena.reserve(0, arena.size_bytes)
        trainer.stagings[0].close()
        trainer.stagings[0] = arena
        trainer.channel.send("staging", fds=[arena.fd], index=0, version=1, size=arena.size_bytes)
        data = os.urandom(size)
        path = trainer.snapshot(5, files={"model/big.safetensors": data})
        assert (path / "model/big.safetensors").read_bytes() == data
        assert verify_snapshot(str(path)) == []


def test_a_ring_component_lists_its_files_and_bytes(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring()
        ring.add(40)
        path = trainer.snapshot(1)
        manifest = read_manifest(str(path))
        (component,) = manifest.components
        assert set(component.files) == {
            record.path for record in manifest.files if record.path.startswith("buffer/replay/")
        }
        assert component.bytes == sum(
            record.size_bytes for record in manifest.files if record.path in component.files
        )


def test_segments_are_links_and_a_second_snapshot_writes_only_new_rows(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring(capacity=1024)
        ring.add(800)
        first = trainer.stage(1)
        path = first.committed()
        linked = [name for name in os.listdir(path / "buffer/replay") if "part" not in name]
        for name in linked:
            if name.startswith("segment-"):
                assert os.stat(path / "buffer/replay" / name).st_nlink == 2
        ring.add(64)
        second = trainer.stage(2)
        second.committed()
        row_bytes = ring.schema.row_bytes
        outcome = second.entry.outcome
        # 64 new rows, and the open rows of the last segment once more.
        new_bytes = 64 * row_bytes
        assert new_bytes <= outcome.new_bytes < 1.1 * new_bytes
        assert outcome.bytes_written < new_bytes + 2.5 * ring.plan.layout.file_bytes
        assert outcome.persist_ns > 0


def test_snapshots_form_a_chain_and_the_oldest_go(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run", keep_last=2) as trainer:
        paths = [trainer.snapshot(step, files={"a": b"%d" % step}) for step in (10, 20, 30)]
        # The newest is told before the oldest is pruned.
        trainer.wait_until(lambda: not paths[0].exists())
        run = open_run(str(tmp_path / "run"))
        assert [info.global_step for info in run.snapshots] == [20, 30]
        assert run.snapshots[1].parent == paths[1].name
        assert run.snapshots[0].parent == paths[0].name
        assert os.readlink(tmp_path / "run/latest") == f"snapshots/{paths[2].name}"


def test_sealed_segments_are_persisted_without_a_snapshot(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring()
        ring.add(3 * ring.segment_rows)
        trainer.wait_until(lambda: ring.states().count(SlotState.PERSISTED) == 3)
        assert len(trainer.pool()) == 3
        assert SlotState.SEALED not in ring.states()


def test_the_staging_slots_take_turns_and_are_free_in_the_end(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        one = trainer.stage(1, files={"a": b"1"})
        two = trainer.stage(2, files={"a": b"2"})
        assert one.entry is not two.entry
        assert one.committed().joinpath("a").read_bytes() == b"1"
        assert two.committed().joinpath("a").read_bytes() == b"2"
        assert all(e.staging[1] == StagingState.FREE for e in trainer.control.entries)


def test_a_snapshot_without_meta_gets_one(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        path = trainer.snapshot(7)
        assert json.loads((path / "meta.json").read_text())["global_step"] == 7


def test_the_writer_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.add_ring().add(40)
        trainer.snapshot(1)
        maps = Path(f"/proc/{trainer.process.pid}/maps").read_text()
        assert "numpy" not in maps
        assert "torch" not in maps


def test_nothing_is_left_in_the_way_after_a_close(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.add_ring().add(40)
        trainer.snapshot(1)
        assert trainer.close_writer() == 0
        assert trainer.wait_for("drained")["complete"]
        assert list((tmp_path / "run").rglob(".*")) == []
