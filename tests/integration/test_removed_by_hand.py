"""What people remove from a run directory by hand: survived, or an error that says what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from damaged_runs import STEPS, digests, entries, newest, original, three
from processes import await_writers_end, committed
from program import ROWS_PER_LANE, Training, tracking

import pyengine
from pyengine import errors

__all__ = ["digests", "original", "three"]


def go_on(run_dir: Path) -> tuple[pyengine.RestoreReport, dict[str, str], int]:
    """Restore, take one more snapshot and return the report, the digest and the generation."""
    with tracking(run_dir) as (engine, training):
        report = engine.restore()
        digest = training.digest()
        training.step(report.next_step)
        engine.snapshot(report.next_step).wait(60)
        generation = engine.generation
    with tracking(run_dir) as (engine, _training):
        assert engine.restore().global_step == report.next_step
    return report, digest, generation


def test_the_newest_snapshots_files_are_gone(three: Path, digests: dict[int, Any]) -> None:
    bad = newest(three)
    for path in bad.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "manifest.json":
            path.unlink()
    report, digest, _ = go_on(three)
    assert report.global_step == STEPS[1]
    assert digest == digests[STEPS[1]]
    record = json.loads((three / "quarantine" / f"{bad.name}.json").read_text())
    assert record["kind"] == "missing"


def test_the_newest_snapshot_is_gone(
    three: Path, digests: dict[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad = newest(three)
    shutil.rmtree(bad)
    report, digest, _ = go_on(three)
    assert report.global_step == STEPS[1]
    assert digest == digests[STEPS[1]]
    assert any(bad.name in note and "gone" in note for note in report.notes)
    assert bad.name in caplog.text


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_after_a_fall_back_latest_is_what_was_restored(three: Path, how: str) -> None:
    bad = newest(three)
    if how == "damaged":
        os.truncate(bad / "manifest.json", 9)
    else:
        shutil.rmtree(bad)
    with tracking(three) as (engine, _training):
        report = engine.restore()
        assert report.snapshot is not None
        assert report.global_step == STEPS[1]
        assert os.readlink(three / "latest") == f"snapshots/{report.snapshot.name}"
        assert (three / "latest" / "manifest.json").exists()


def test_the_newest_manifest_is_gone(three: Path, digests: dict[int, Any]) -> None:
    """`latest` proves that it was committed: what is left of it is kept, not swept away."""
    bad = newest(three)
    (bad / "manifest.json").unlink()
    report, digest, _ = go_on(three)
    assert report.global_step == STEPS[1]
    assert digest == digests[STEPS[1]]
    assert (three / "quarantine" / bad.name / "model" / "policy.safetensors").exists()
    record = json.loads((three / "quarantine" / f"{bad.name}.json").read_text())
    assert (record["file"], record["kind"]) == ("manifest.json", "missing")
    assert any(bad.name in note and "in quarantine" in note for note in report.notes)
    with tracking(three) as (engine, _training):
        notes = engine.restore().notes
        assert not any(bad.name in note for note in notes), "a newer one was committed since"


def test_the_newest_manifest_and_latest_are_gone(
    three: Path, digests: dict[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing outside of it needs to tell that it was committed: it is whole but for that."""
    bad = newest(three)
    (bad / "manifest.json").unlink()
    (three / "latest").unlink()
    for path in (three / "generations").iterdir():
        path.write_bytes(b"")  # not even a writer's last words
    report, digest, _ = go_on(three)
    assert digest == digests[STEPS[1]]
    assert (three / "quarantine" / bad.name / "model" / "policy.safetensors").exists()
    assert any(bad.name in note and "in quarantine" in note for note in report.notes)
    assert f"{bad} was committed" in caplog.text


def test_the_newest_snapshot_and_latest_are_gone(
    three: Path, digests: dict[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad = newest(three)
    shutil.rmtree(bad)
    (three / "latest").unlink()
    report, digest, _ = go_on(three)
    assert digest == digests[STEPS[1]]
    assert any(bad.name in note and "gone" in note for note in report.notes)
    assert bad.name in caplog.text


@pytest.mark.parametrize("what", ["manifest", "all of it"])
def test_the_only_snapshot_and_latest_are_gone(three: Path, what: str) -> None:
    *old, bad = (three / "snapshots" / name for name in committed(three))
    for path in old:
        shutil.rmtree(path)
    (three / "latest").unlink()
    if what == "manifest":
        (bad / "manifest.json").unlink()
    else:
        shutil.rmtree(bad)
    for _ in range(2):
        with (
            tracking(three) as (engine, _training),
            pytest.raises(errors.NothingRestorableError, match=bad.name),
        ):
            engine.restore()
    assert (three / "quarantine" / bad.name / "meta.json").exists() == (what == "manifest")


def test_a_whole_snapshot_that_was_not_committed_is_swept(
    three: Path, digests: dict[int, Any]
) -> None:
    """As a writer leaves it that died between the rename of the directory and the manifest."""
    unfinished = three / "snapshots" / "step-00000021.g0001.s0009"
    shutil.copytree(newest(three), unfinished)
    (unfinished / "manifest.json").rename(unfinished / "manifest.json.tmp")
    with tracking(three) as (engine, training):
        report = engine.restore()
        assert report.global_step == STEPS[2]
        assert not any(unfinished.name in note for note in report.notes)
        assert training.digest() == digests[STEPS[2]]
    assert not unfinished.exists()
    assert entries(three, "quarantine") == []


def test_the_manifest_of_the_only_snapshot_is_gone(three: Path) -> None:
    *old, bad = (three / "snapshots" / name for name in committed(three))
    for path in old:
        shutil.rmtree(path)
    (bad / "manifest.json").unlink()
    with tracking(three) as (engine, _training):
        with pytest.raises(errors.NothingRestorableError, match="quarantine"):
            engine.restore()
        with pytest.raises(errors.UnrestoredRunError):
            engine.tick(0)
        with pytest.raises(errors.UnrestoredRunError):
            engine.record_evaluation(0, mean_return=1.0)


def test_all_snapshots_are_gone(three: Path) -> None:
    shutil.rmtree(three / "snapshots")
    with (
        tracking(three) as (engine, _training),
        pytest.raises(errors.NothingRestorableError, match="latest"),
    ):
        engine.restore()
    with tracking(three, fresh=True) as (engine, _training):
        assert not engine.restore()


def test_an_unfinished_directory_is_swept_and_no_reason_to_stop(tmp_path: Path) -> None:
    """What a writer did not finish was never committed: nothing names it, and a run begins."""
    run_dir = tmp_path / "run"
    with tracking(run_dir) as (engine, _training):
        engine.restore()
    unfinished = run_dir / "snapshots" / "step-00000001.g0001.s0001"
    (unfinished / "model").mkdir(parents=True)
    with tracking(run_dir) as (engine, _training):
        assert not engine.restore()
    assert not unfinished.exists()
    assert entries(run_dir, "quarantine") == []


@pytest.mark.parametrize("how", ["removed", "dangling", "elsewhere", "a file"])
def test_the_link_latest_is_never_trusted(three: Path, digests: dict[int, Any], how: str) -> None:
    latest = three / "latest"
    latest.unlink()
    if how == "a file":
        latest.write_text("x")
    elif how != "removed":
        latest.symlink_to("nowhere" if how == "dangling" else f"snapshots/{committed(three)[0]}")
    report, digest, _ = go_on(three)
    assert report.global_step == STEPS[2]
    assert digest == digests[STEPS[2]]
    assert os.readlink(latest) == f"snapshots/{committed(three)[-1]}", "the next commit sets it"


def test_generations_are_gone(three: Path, digests: dict[int, Any]) -> None:
    """The next one is 1 + the highest that anything still tells of."""
    with tracking(three) as (engine, _training):
        engine.restore()  # generation 2: only its line, marker and log tell of it
        assert engine.generation == 2
    shutil.rmtree(three / "generations")
    shutil.rmtree(three / "recovery")
    report, digest, generation = go_on(three)
    assert digest == digests[STEPS[2]]
    assert report.global_step == STEPS[2]
    assert generation == 3


def test_generations_are_removed_from_a_living_run(three: Path) -> None:
    with tracking(three) as (engine, training):
        step = engine.restore().next_step
        engine.snapshot(step).wait(60)  # its writer is at work
        shutil.rmtree(three / "generations")
        training.step(step + 1)
        with pytest.raises(errors.StaleGenerationError, match="start the script again"):
            engine.snapshot(step + 1).wait(60)
    report, _, _ = go_on(three)
    assert report.global_step == step


def test_lines_are_gone(three: Path, digests: dict[int, Any]) -> None:
    shutil.rmtree(three / "lines")
    report, digest, _ = go_on(three)
    assert report.global_step == STEPS[2]
    assert digest == digests[STEPS[2]]


def test_where_lines_are_gone_ancestors_are_pruned_all_the_same(three: Path) -> None:
    old = committed(three)
    for _ in range(4):
        with tracking(three) as (engine, training):
            step = engine.restore().next_step
            shutil.rmtree(three / "lines")
            training.step(step)
            last = engine.snapshot(step).wait(60)
    kept = committed(three)
    assert kept[-1] == last.name
    assert not set(kept) & set(old)
    # The last three, and one to tell from what the line before them grew.
    assert len(kept) <= 4
    used = {f"{info.line}" for info in pyengine.open_run(three).snapshots}
    pooled = {name.partition("-")[0] for name in entries(three, "segments/replay")}
    assert pooled <= used, "files of lines whose snapshots are gone went with them"


def test_run_json_is_gone_and_made_again_with_the_id_of_the_snapshots(
    three: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = json.loads((three / "run.json").read_text())["run_id"]
    (three / "run.json").unlink()
    report, _, _ = go_on(three)
    assert report.global_step == STEPS[2]
    assert json.loads((three / "run.json").read_text())["run_id"] == run_id
    assert "run.json: made again" in caplog.text
    assert {info.run_id for info in pyengine.open_run(three).snapshots} == {run_id}


def test_run_json_is_damaged(three: Path) -> None:
    (three / "run.json").write_bytes(b"{")
    with pytest.raises(errors.RunDirectoryError, match=r"remove run\.json"):
        pyengine.SnapshotEngine(three)
    (three / "run.json").unlink()
    assert go_on(three)[0].global_step == STEPS[2]


def test_segments_are_gone(three: Path, digests: dict[int, Any]) -> None:
    shutil.rmtree(three / "segments")
    report, digest, _ = go_on(three)
    assert report.global_step == STEPS[2]
    assert digest == digests[STEPS[2]]


@pytest.mark.parametrize("name", ["quarantine", "recovery", "lock"])
def test_other_parts_are_gone(three: Path, name: str) -> None:
    path = three / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    assert go_on(three)[0].global_step == STEPS[2]


def train(engine: pyengine.SnapshotEngine, training: Training, first: int, count: int) -> int:
    """Make some steps and wait for a snapshot after the last; return that step."""
    for step in range(first, first + count):
        training.step(step)
        engine.tick(step)
    last = first + count - 1
    engine.snapshot(last).wait(60)
    return last


def lose_and_die(send: Any, run_dir: str, what: str) -> None:
    """Restore, lose pool files between snapshots, commit one more, and die by SIGKILL."""
    with tracking(run_dir) as (engine, training):
        last = train(engine, training, engine.restore().next_step, 10)
        pool = Path(run_dir) / "segments/replay"
        if what == "a file":
            # Files of the line before may still be there, which nobody needs.
            (link,) = (newest(Path(run_dir)) / "buffer/replay").glob("segment-*-0-0-8-*.seg")
            (pool / link.name.removeprefix("segment-")).unlink()
        else:
            shutil.rmtree(pool, ignore_errors=True)  # the writer removes some of them too
        last = train(engine, training, last + 1, 3)
        send(("snapshot", last, training.digest()))
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("what", ["a file", "all of a ring"])
@pytest.mark.parametrize("has_mapped", [True, False])
def test_pool_files_are_removed_from_a_living_run(
    start: Any, token: str, three: Path, tmp_path: Path, what: str, has_mapped: bool
) -> None:
    """They are made again from memory and from snapshots: what is restored is bit-equal."""
    run_dir = three if has_mapped else tmp_path / "fresh"
    child = start(lose_and_die, str(run_dir), what)
    _, step, digest = child.receive("snapshot")
    assert child.join() == -signal.SIGKILL
    await_writers_end(token)
    log = max((run_dir / "generations").glob("*.log")).read_text()
    assert "made again" in log
    assert ("0 from snapshots" not in log) == has_mapped
    with tracking(run_dir) as (engine, training):
        assert engine.restore().global_step == step
        assert training.digest() == digest
    assert [*run_dir.rglob(".*")] == []


def test_a_pool_file_is_removed_that_nobody_has_any_more(three: Path) -> None:
    """Snapshots fail and name the file, until its rows have left the window."""
    with tracking(three) as (engine, training):
        step = engine.restore().next_step
        inode = min((three / "segments/replay").iterdir()).stat().st_ino
        lost = [path for path in three.rglob("*.seg") if path.stat().st_ino == inode]
        for path in lost:
            path.unlink()
        with pytest.raises(errors.SnapshotFailedError, match="start the script again") as failed:
            engine.snapshot(step).wait(60)
        assert any(str(path) in str(failed.value) for path in lost)
        last = train(engine, training, step, ROWS_PER_LANE)
        digest = training.digest()
    with tracking(three) as (engine, training):
        assert engine.restore().global_step == last
        assert training.digest() == digest
