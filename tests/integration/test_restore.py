"""What a restore refuses, what it leaves alone, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import committed
from program import Training, new_ring

import pyengine
from pyengine import errors


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A run with one snapshot at step 19, and its digest."""
    run_dir = tmp_path / "run"
    training = Training()
    with pyengine.SnapshotEngine(run_dir, algorithm="dqn", notes={"env": "toy"}) as engine:
        training.track(engine)
        engine.restore()
        for step in range(20):
            training.step(step)
        engine.snapshot(19).wait(60)
        digest = training.digest()
    return run_dir, digest


def fresh_objects() -> dict[str, Any]:
    training = Training(seed=5)
    return {
        "policy": training.net,
        "optimizer": training.optimizer,
        "scheduler": training.scheduler,
        "replay": training.ring,
        "counters": training.counters,
        "explorer": training.rng,
        "training": training,
    }


def test_a_fresh_run_gives_a_false_report_and_step_zero(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        report = engine.restore()
    assert not report
    assert report.next_step == 0
    assert report.global_step is None
    assert "fresh" in str(report)


def test_the_report_names_every_component_and_prints_as_a_table(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    training = Training(seed=5)
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        report = engine.restore()
        assert training.digest() == digest
    assert report
    assert report.next_step == 20
    assert {component.name for component in report.components} == {
        "policy", "optimizer", "scheduler", "replay", "counters", "explorer", "process_rng",
    }  # fmt: skip
    assert all(component.found == "restored" for component in report.components)
    assert report.component("replay").rows == report.rows == 80
    assert report.component("policy").bytes > 0
    table = str(report).splitlines()
    assert any(line.split()[:3] == ["replay", "ring", "restored"] for line in table)
    assert report.snapshot is not None
    assert report.snapshot.algorithm == "dqn"
    assert report.snapshot.notes == {"env": "toy"}


def test_training_on_an_unrestored_run_is_refused(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, digest = saved
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        for call in (lambda: engine.tick(0), lambda: engine.snapshot(0)):
            with pytest.raises(errors.UnrestoredRunError, match="fresh=True"):
                call()
        engine.restore()
        assert training.digest() == digest
        engine.tick(20)


def test_fresh_begins_anew_and_keeps_the_old_line(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    old = committed(run_dir)
    with pyengine.SnapshotEngine(run_dir, fresh=True, keep_last=1) as engine:
        training = Training()
        training.track(engine)
        assert engine.restore().next_step == 0
        for step in range(3):
            training.step(step)
            engine.snapshot(step).wait(60)
    assert committed(run_dir) == [*old, "step-00000002.g0002.s0003"]


@pytest.mark.parametrize("without", ["policy", "counters", "replay"])
def test_a_saved_component_that_is_not_tracked_is_refused(
    saved: tuple[Path, dict[str, str]], without: str
) -> None:
    run_dir, _ = saved
    objects = fresh_objects()
    training = objects.pop("training")
    del objects[without]
    if without == "policy":
        del objects["optimizer"], objects["scheduler"]
    before = training.digest()
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(**objects)
        with pytest.raises(errors.ComponentMismatchError, match=without) as caught:
            engine.restore()
        assert without in caught.value.not_tracked
        assert training.digest() == before, "nothing live changed"
        report = engine.restore(allow=caught.value.not_tracked)
        assert report.component(without).found == "not tracked"


def test_a_tracked_component_that_was_not_saved_is_refused(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    training = Training(seed=5)
    extra = {"x": 1}
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.track(extra=extra)
        with pytest.raises(errors.ComponentMismatchError) as caught:
            engine.restore()
        assert caught.value.not_saved == ("extra",)
        report = engine.restore(allow=["extra"])
        assert report.component("extra").found == "not saved"
        assert training.digest() == digest
    assert extra == {"x": 1}


def test_an_exclusion_is_visible_in_snapshot_and_report(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pyengine.SnapshotEngine(run_dir, track_rng=False) as engine:
        engine.track(counters={"n": 1})
        engine.exclude("teacher", "frozen, comes from the hub")
        info = engine.snapshot(0).wait(60)
    status = {record.name: (record.status, record.reason) for record in info.components}
    assert status["teacher"] == ("excluded", "frozen, comes from the hub")
    assert status["process_rng"] == ("excluded", "track_rng=False")
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(counters={"n": 0})
        with pytest.raises(errors.ComponentMismatchError, match="process_rng"):
            engine.restore()
        report = engine.restore(allow=["process_rng"])
    assert "track_rng=False" in report.component("process_rng").note


def test_state_that_does_not_fit_changes_nothing(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    training = Training(seed=5)
    training.ring = new_ring(5, rows_per_lane=16)
    before = training.digest()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        with pytest.raises(errors.StateMismatchError, match="capacity") as caught:
            engine.restore()
        assert caught.value.component == "replay"
        assert training.digest() == before
        # Not poisoned: nothing was touched. Another ring is wanted, or none.
        report = engine.restore(replay="skip")
        assert report.component("replay").found == "skipped"
        assert report.rows == 0
        assert len(training.ring) == 0


@pytest.mark.parametrize(
    "path",
    [
        "model/policy.safetensors",
        "optimizer/optimizer.msgpack",
        "meta.json",
        "buffer/replay/buffer_header.json",
        "buffer/replay/mutable.safetensors",
        "manifest.json",
    ],
)
def test_damage_is_an_error_that_names_the_file_and_changes_nothing(
    saved: tuple[Path, dict[str, str]], path: str
) -> None:
    run_dir, _ = saved
    file = run_dir / "snapshots" / committed(run_dir)[-1] / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    training = Training(seed=5)
    before = training.digest()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        with pytest.raises(errors.DamageError) as caught:
            engine.restore()
        assert caught.value.path == str(file)
        assert training.digest() == before
        with pytest.raises(errors.UnrestoredRunError):
            engine.tick(0)


def test_a_truncated_file_is_told_from_a_changed_one(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    file = run_dir / "snapshots" / committed(run_dir)[-1] / "model" / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pyengine.SnapshotEngine(run_dir) as engine:
        Training().track(engine)
        with pytest.raises(errors.TruncatedFileError, match=r"policy\.safetensors"):
            engine.restore()


@pytest.mark.parametrize("eager", [False, True])
def test_a_damaged_segment_never_reaches_the_user(
    saved: tuple[Path, dict[str, str]], eager: bool
) -> None:
    run_dir, _ = saved
    directory = run_dir / "snapshots" / committed(run_dir)[-1] / "buffer" / "replay"
    file = sorted(directory.glob("segment-*-0-0-8-*.seg"))[0]
    data = bytearray(file.read_bytes())
    data[4096 + 40] ^= 1  # a row of the first field
    file.write_bytes(data)
    ring = new_ring()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training = Training(ring=ring)
        training.track(engine)

        def read_everything() -> None:
            engine.restore(eager=eager)
            assert not eager, "eager means that damage is found at once"
            ring.gather(ring.refs())

        with pytest.raises(errors.DamageError) as caught:
            read_everything()
        assert caught.value.path.endswith(".seg")
        assert caught.value.offset is not None


def test_only_the_newest_rows_come_back_where_that_is_asked_for(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    training = Training(seed=5)
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        report = engine.restore(replay_last=12)
        assert report.component("replay").rows == 12
        assert "replay_last=12" in report.component("replay").note
        numbers = training.ring[training.ring.refs()]["number"]
        assert np.unique(numbers).tolist() == [17, 18, 19]
        for step in range(20, 60):
            training.step(step)
        engine.snapshot(59).wait(60)
        digest = training.digest()
    again = Training(seed=6)
    with pyengine.SnapshotEngine(run_dir) as engine:
        again.track(engine)
        engine.restore()
        assert again.digest() == digest


class Breaks:
    """An object whose set_state raises the first times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.value = 0

    def get_state(self) -> dict[str, int]:
        return {"value": self.value}

    def set_state(self, state: dict[str, int]) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("no")
        self.value = state["value"]


def test_an_interrupted_restore_poisons_until_one_succeeds(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pyengine.SnapshotEngine(run_dir) as engine:
        source = Breaks(0)
        source.value = 7
        engine.track(thing=source, counters={"n": 3})
        engine.snapshot(4).wait(60)
    thing, counters = Breaks(1), {"n": 0}
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(thing=thing, counters=counters)
        with pytest.raises(RuntimeError, match="no"):
            engine.restore()
        with pytest.raises(errors.PoisonedEngineError):
            engine.tick(5)
        with pytest.raises(errors.PoisonedEngineError):
            engine.snapshot(5)
        assert engine.restore().next_step == 5
        assert (thing.value, counters) == (7, {"n": 3})
        engine.snapshot(5).wait(60)
    assert not list((run_dir / "recovery").glob("restoring.*"))


def test_generators_are_set_after_every_user_callable(tmp_path: Path) -> None:
    class Draws(Breaks):
        def set_state(self, state: dict[str, int]) -> None:
            torch.rand(3)
            np.random.rand(3)
            self.explorer.random()
            self.ring.sample(4)

    def make(seed: int) -> tuple[Training, Draws]:
        training, draws = Training(seed), Draws(0)
        draws.explorer, draws.ring = training.rng, training.ring
        return training, draws

    training, draws = make(0)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.track(draws=draws)
        engine.restore()
        for step in range(10):
            training.step(step)
        engine.snapshot(9).wait(60)
        expected = training.digest()
    training, draws = make(3)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        training.track(engine)
        engine.track(draws=draws)
        engine.restore()
        assert training.digest() == expected


def test_environment_state_keeps_episodes_whole_and_its_absence_breaks_them(
    tmp_path: Path,
) -> None:
    state = {"frame": 3}
    environment = pyengine.EnvironmentState(get=lambda: dict(state), set=state.update)
    for name, tracked in (("with", {"environment": environment}), ("without", {})):
        run_dir = tmp_path / name
        ring = new_ring()
        with pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(replay=ring, **tracked)
            engine.restore()
            Training(ring=ring).insert(0)
            engine.snapshot(0).wait(60)
        ring = new_ring()
        with pyengine.SnapshotEngine(run_dir) as engine:
            engine.track(replay=ring, **tracked)
            engine.restore()
            Training(ring=ring).insert(1)
        assert ring.breaks(0).tolist() == ([0] if tracked else [0, 1])


def test_restoring_twice_in_one_process_gives_the_snapshot_again(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, digest = saved
    training = Training(seed=5)
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.restore()
        for step in range(20, 45):
            training.step(step)
        later = training.digest()
        engine.restore()
        assert training.digest() == digest
        for step in range(20, 45):
            training.step(step)
        assert training.digest() == later
        engine.snapshot(44).wait(60)
    again = Training(seed=6)
    with pyengine.SnapshotEngine(run_dir) as engine:
        again.track(engine)
        engine.restore()
        assert again.digest() == later


def test_a_restored_run_may_lose_the_snapshot_that_it_came_from(
    saved: tuple[Path, dict[str, str]],
) -> None:
    run_dir, _ = saved
    for begin, end in ((20, 24), (24, 29)):
        training = Training(seed=begin)
        with pyengine.SnapshotEngine(run_dir, keep_last=1) as engine:
            training.track(engine)
            engine.restore()
            for step in range(begin, end):
                training.step(step)
            engine.snapshot(end - 1).wait(60)
            expected = training.digest()
    assert "step-00000019.g0001.s0001" not in committed(run_dir)
    training = Training(seed=1)
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.restore(eager=True)
        assert training.digest() == expected


@pytest.mark.parametrize("replay_last", [0, 1])
def test_a_ring_restored_without_rows_in_mid_segment_takes_rows_again(
    saved: tuple[Path, dict[str, str]], replay_last: int
) -> None:
    """Restored, saved and restored while empty, then filled until it wraps."""
    run_dir, _ = saved
    for step in (20, 21):
        training = Training()
        assert int(training.ring.total_count[0]) == 0
        with pyengine.SnapshotEngine(run_dir) as engine:
            training.track(engine)
            report = engine.restore(replay_last=replay_last)
            assert (report.rows, len(training.ring)) == (0, 0)
            assert training.ring.total_count.tolist() == [20] * training.ring.num_envs
            engine.snapshot(step).wait(60)
    for count in (3, 40):
        training = Training()
        with pyengine.SnapshotEngine(run_dir) as engine:
            training.track(engine)
            engine.restore(eager=count == 40)
            first = int(training.ring.total_count[0])
            for number in range(first, first + count):
                training.insert(number)
            engine.snapshot(first + count).wait(60)
            rows = training.ring[training.ring.refs()]
            kept = min(first + count - 20, training.ring.capacity // training.ring.num_envs)
            assert rows["number"][-1] == first + count - 1
            assert len(rows["number"]) == kept * training.ring.num_envs
            assert np.array_equal(rows["check"], rows["number"] * 3 + 1)
