"""What goes out as npz is what plain numpy.load sees, and comes in again bit by bit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from porting_rings import assert_same_rows, fill, lane_rows, make_ring, restored, save

import pyengine
from pyengine import porting
from pyengine.errors import (
    ComponentMismatchError,
    ConfigError,
    DamageError,
    RunDirectoryError,
    TargetExistsError,
    UnportableError,
)
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Rule
from pyengine.porting import pieces

KINDS = [pyengine.ReplayBuffer, pyengine.PrioritizedReplayBuffer]


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [29, 200])
def test_rows_come_back_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked: bool, kind: Any, steps: int
) -> None:
    # So small that sequences, stacks and episode ends lie across pieces.
    monkeypatch.setattr(pieces, "PIECE_BYTES", 700)
    ring = make_ring(kind, stacked=stacked)
    fill(ring, steps)
    save(ring, tmp_path / "run")
    told = porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
    assert (told.rows, told.lanes) == (len(ring), 2)
    back = porting.import_npz(tmp_path / "rows.npz", tmp_path / "new")
    assert back.rows == len(ring)
    assert_same_rows(restored(tmp_path / "new", make_ring(kind, stacked=stacked)), ring)


@pytest.mark.parametrize("stacked", [False, True])
def test_numpy_reads_every_field(tmp_path: Path, stacked: bool) -> None:
    ring = make_ring(stacked=stacked)
    fill(ring, 200)
    save(ring, tmp_path / "run")
    porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
    wanted = lane_rows(ring)
    with np.load(tmp_path / "rows.npz") as found:
        assert set(found) == {*ring.schema, "@lane", "@end", "@pyengine"}
        for lane, rows in enumerate(wanted):
            own = found["@lane"] == lane
            for name in ring.schema:
                assert found[name][own].tobytes() == rows[name].tobytes(), name
            assert (found["@end"][own][:-1] == rows["@starts"][1:]).all()
        about = json.loads(str(found["@pyengine"]))
    assert (about["global_step"], about["capacity"]) == (5, 64)


def test_an_export_changes_nothing_in_the_run(tmp_path: Path) -> None:
    ring = make_ring()
    fill(ring, 40)
    save(ring, tmp_path / "run")

    def state() -> dict[str, tuple[int, int]]:
        found = {}
        for directory, _, files in os.walk(tmp_path / "run"):
            for name in files:
                status = os.stat(os.path.join(directory, name))
                found[os.path.join(directory, name)] = (status.st_mtime_ns, status.st_size)
        return found

    before = state()
    with pyengine.SnapshotEngine(tmp_path / "run", track_rng=False):  # a living owner is no matter
        claimed = state()
        porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
        assert state() == claimed
    assert before.items() <= state().items()


def test_a_step_and_a_ring_are_chosen_by_name(tmp_path: Path) -> None:
    one, two = make_ring(), make_ring()
    with pyengine.SnapshotEngine(tmp_path / "run", track_rng=False) as engine:
        engine.track(one=one, two=two)
        engine.restore()
        fill(one, 3)
        fill(two, 5)
        engine.snapshot(1).wait(60)
        fill(two, 2)
        engine.snapshot(2).wait(60)
    with pytest.raises(ConfigError, match="'one', 'two'"):
        porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
    with pytest.raises(ComponentMismatchError, match=r"no ring 'three'.*'one', 'two'"):
        porting.export_npz(tmp_path / "run", tmp_path / "rows.npz", ring="three")
    with pytest.raises(RunDirectoryError, match="step 7"):
        porting.export_npz(tmp_path / "run", tmp_path / "rows.npz", ring="two", step=7)
    assert not list(tmp_path.glob("*rows*"))
    first = porting.export_npz(tmp_path / "run", tmp_path / "a.npz", ring="two", step=1)
    newest = porting.export_npz(tmp_path / "run", tmp_path / "b.npz", ring="two")
    assert (first.rows, newest.rows) == (10, 14)


def test_a_step_is_of_the_run_that_was_named(tmp_path: Path) -> None:
    ring, other = make_ring(), make_ring()
    fill(ring, 3)
    save(ring, tmp_path / "run")
    fill(other, 5)
    save(other, tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "latest", tmp_path / "run@5")
    told = porting.export_npz(tmp_path / "run", tmp_path / "rows.npz", step=5)
    assert told.rows == len(ring)


def test_a_ring_with_a_nested_name_goes_out(tmp_path: Path) -> None:
    rings = {name: make_ring() for name in ("member0", "member1")}
    with pyengine.SnapshotEngine(tmp_path / "run", track_rng=False) as engine:
        engine.track(**{name: {"replay": ring} for name, ring in rings.items()})
        engine.restore()
        for steps, ring in enumerate(rings.values(), 20):
            fill(ring, steps)
        engine.snapshot(5).wait(60)
    for name, ring in rings.items():
        told = porting.export_npz(tmp_path / "run", tmp_path / f"{name}.npz", ring=f"{name}/replay")
        assert told.ring == f"{name}/replay"
        other = make_ring()
        porting.import_npz(tmp_path / f"{name}.npz", into=other)
        assert_same_rows(other, ring)


def test_a_file_is_replaced_by_force_alone(tmp_path: Path) -> None:
    ring = make_ring()
    fill(ring, 3)
    save(ring, tmp_path / "run")
    target = tmp_path / "rows.npz"
    target.write_bytes(b"mine")
    with pytest.raises(TargetExistsError, match="--force"):
        porting.export_npz(tmp_path / "run", target)
    assert target.read_bytes() == b"mine"
    porting.export_npz(tmp_path / "run", target, force=True)
    assert np.load(target)["action"].shape == (6,)
    (tmp_path / "directory").mkdir()
    with pytest.raises(TargetExistsError, match="is a directory"):
        porting.export_npz(tmp_path / "run", tmp_path / "directory", force=True)


@pytest.mark.parametrize("stacked", [False, True])
def test_damaged_rows_are_not_exported(tmp_path: Path, stacked: bool) -> None:
    ring = make_ring(stacked=stacked)
    fill(ring, 200)
    save(ring, tmp_path / "run")
    (snapshot,) = (tmp_path / "run" / "snapshots").iterdir()
    files = sorted((snapshot / "buffer" / "replay").glob("*.seg"))
    data = bytearray(files[0].read_bytes())
    data[4096 + 5] ^= 1
    files[0].write_bytes(data)
    with pytest.raises(DamageError, match=f"{files[0].name}: block 0"):
        porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
    assert not list(tmp_path.glob("*rows*"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    ring = make_ring()
    fill(ring, 200)
    save(ring, tmp_path / "run")
    (snapshot,) = (tmp_path / "run" / "snapshots").iterdir()
    gone = sorted((snapshot / "buffer" / "replay").glob("*.seg"))[0]
    gone.unlink()
    with pytest.raises(DamageError, match=gone.name):
        porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")


def test_a_copied_snapshot_is_exported_alone(tmp_path: Path) -> None:
    ring = make_ring()
    fill(ring, 20)
    save(ring, tmp_path / "run")
    (snapshot,) = (tmp_path / "run" / "snapshots").iterdir()
    shutil.copytree(snapshot, tmp_path / "copy")
    assert porting.export_npz(tmp_path / "copy", tmp_path / "rows.npz").rows == 40


def test_rows_go_into_a_ring_that_is_there(tmp_path: Path) -> None:
    ring, other = make_ring(), make_ring()
    fill(ring, 20)
    save(ring, tmp_path / "run")
    porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
    (tmp_path / "link").symlink_to(tmp_path / "rows.npz")
    told = porting.import_npz(tmp_path / "link", into=other)
    assert (told.path, told.rows) == (None, 40)
    assert_same_rows(other, ring)


def test_another_programs_arrays_are_fields(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "obs": rng.random((50, 3), dtype=np.float32),
        "action": rng.integers(0, 4, 50),
        "terminated": rng.random(50) < 0.2,
    }
    for save_arrays in (np.savez, np.savez_compressed):
        path = tmp_path / f"{save_arrays.__name__}.npz"
        save_arrays(path, **arrays)
        run = tmp_path / save_arrays.__name__
        told = porting.import_npz(path, run, ring="old", step=9, rename={"action": "act"})
        assert told.fields == ("obs", "act", "terminated")
        ring = pyengine.ReplayBuffer(
            pyengine.Schema(
                {"obs": ((3,), "float32"), "act": "int64", "terminated": "bool"},
                episode_end=("terminated",),
            ),
            50,
        )
        assert pyengine.open_run(run).latest.global_step == 9
        (rows,) = lane_rows(restored(run, ring, "old"))
        assert (rows["obs"] == arrays["obs"]).all()
        assert (rows["act"] == arrays["action"]).all()
        assert (rows["@starts"][1:] == arrays["terminated"][:-1]).all()


def test_a_script_takes_the_ring_and_goes_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.arange(8, dtype=np.float32))
    porting.import_npz(tmp_path / "rows.npz", tmp_path / "run")
    ring = pyengine.ReplayBuffer({"obs": "float32"}, 8)
    counters = {"episodes": 3}
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(replay=ring, counters=counters)
        report = engine.restore(allow=["counters", "process_rng"])
        assert (report.next_step, len(ring), counters) == (1, 8, {"episodes": 3})
        ring.add(obs=8.0)
        engine.snapshot(1).wait(60)
        assert report.level.name == "partial"
        assert report.level.reasons[0].startswith("replay only")
    assert pyengine.load(tmp_path / "run", only=["counters"]) == {"counters": counters}


def test_a_ring_that_does_not_fit_is_refused_and_unchanged(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.zeros((9, 3), np.float32), extra=np.zeros(9))
    wrong = {
        "lanes, the ring 2": pyengine.ReplayBuffer({"obs": "float32"}, 20, num_envs=2),
        "capacity of at least 9": pyengine.ReplayBuffer({"obs": "float32"}, 8),
        r"'extra' is float64\[\] there, not here; 'obs' is float32\[3\] there, float32\[\] here": (
            pyengine.ReplayBuffer({"obs": "float32"}, 20)
        ),
    }
    for words, ring in wrong.items():
        with pytest.raises(UnportableError, match=words):
            porting.import_npz(tmp_path / "rows.npz", into=ring)
        assert len(ring) == 0
    small = pyengine.ReplayBuffer({"obs": ((3,), "int8"), "extra": "float64"}, 20)
    with pytest.raises(UnportableError, match=r"rows 0 to 8.*'obs'"):
        porting.import_npz(tmp_path / "rows.npz", into=small)


def test_no_row_is_left_out_in_silence(tmp_path: Path) -> None:
    ring = make_ring(stacked=True, capacity=256)
    fill(ring, 100)
    save(ring, tmp_path / "run")
    porting.export_npz(tmp_path / "run", tmp_path / "rows.npz")
    with pytest.raises(UnportableError, match="beside the opening rows of its stacks"):
        porting.import_npz(tmp_path / "rows.npz", tmp_path / "new", capacity=len(ring))
    assert not (tmp_path / "new").exists()
    small = make_ring(stacked=True, capacity=len(ring))
    told = porting.import_npz(tmp_path / "rows.npz", into=small)
    lost = len(ring) - len(small)
    assert told.notes == (f"{lost} of the rows have left the ring for opening rows of its stacks",)


def test_a_run_is_there_though_its_place_beside_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.zeros(3, np.float32))
    rule = Rule(op="rmdir", path="*/.tmp-g0000-run", action="error", times=0)
    with monkeypatch.context() as patch:
        patch.setattr(door, "active", FaultDoor([rule]))
        assert porting.import_npz(tmp_path / "rows.npz", tmp_path / "run").rows == 3
    assert "could not be removed" in caplog.text
    assert pyengine.open_run(tmp_path / "run").latest is not None
    shutil.rmtree(tmp_path / "run")
    porting.import_npz(tmp_path / "rows.npz", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.npz", "run"]


def test_a_run_that_is_there_is_left_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.zeros(3, np.float32))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(RunDirectoryError, match="not empty"):
        porting.import_npz(tmp_path / "rows.npz", tmp_path / "run")
    with pytest.raises(ConfigError, match="one of the two"):
        porting.import_npz(tmp_path / "rows.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.npz", "run"]
