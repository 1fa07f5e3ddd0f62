"""A dead trainer loses nothing: its writer commits, persists, and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_side import WAIT_SECONDS, column, expected, rows_of, trainer_on

import pyengine
from pyengine.catalog.claim import claim_run
from pyengine.catalog.endings import told_of_losses
from pyengine.catalog.generation import read_records
from pyengine.catalog.run import open_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.format import names
from pyengine.fs.locks import OfdLock
from pyengine.shm.states import SlotState

HERE = str(Path(__file__).parent)
ROOT = str(Path(pyengine.__file__).parent.parent)

# argv: run directory, fault plan of the writer, code to run with `trainer` and `ring`.
TRAINER = f"""
import json, os, sys
sys.path[:0] = [{HERE!r}, {ROOT!r}]
from pathlib import Path
from trainer_side import TrainerSide
trainer = TrainerSide(Path(sys.argv[1]), plan=json.loads(sys.argv[2]))
ring = trainer.add_ring(capacity=256, lanes=2)
trainer.wait_for("ready")
exec(sys.argv[3])
print(trainer.process.pid, flush=True)
sys.stdin.read()
"""

Start = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a trainer in a process of its own; return it and its writer's pid."""
    children: list[subprocess.Popen[str]] = []

    def run(code: str, plan: list[Any] | None = None) -> tuple[subprocess.Popen[str], int]:
        child = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(tmp_path / "run"), json.dumps(plan or []), code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        return child, int(child.stdout.readline())

    yield run
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def wait_for_drain(run: Path) -> None:
    """Wait until generation 1's writer has ended."""
    path = run / "generations" / names.generation_name(1)
    OfdLock.acquire(str(path), names.WRITER_BYTE, timeout=WAIT_SECONDS).release()


def pooled_rows(run: Path) -> list[int]:
    """Return field "x" of all rows in the pool, full segments and parts."""
    pool = run / "segments/replay"
    return sorted(int(x) for name in os.listdir(pool) for x in column(pool / name))


ALL = sorted([*range(100), *range(1000, 1100)])


def test_every_published_row_of_a_killed_trainer_is_on_disk(tmp_path: Path, start: Start) -> None:
    child, _ = start("ring.add_all(100)")
    child.kill()
    wait_for_drain(tmp_path / "run")
    assert pooled_rows(tmp_path / "run") == ALL
    assert list((tmp_path / "run").rglob(".*")) == []


def test_a_staged_snapshot_of_a_killed_trainer_is_committed(tmp_path: Path, start: Start) -> None:
    plan = [{"op": "mkdir", "path": "*/.tmp-*", "action": "delay", "seconds": 0.5}]
    child, _ = start(
        "ring.add_all(50); trainer.stage(7, files={'a': b'x'}); ring.add_all(50)", plan
    )
    child.kill()
    wait_for_drain(tmp_path / "run")
    latest = open_run(str(tmp_path / "run")).latest
    assert latest.global_step == 7
    assert rows_of(Path(latest.path)) == [list(range(50)), list(range(1000, 1050))]
    assert verify_snapshot(latest.path) == []
    assert pooled_rows(tmp_path / "run") == ALL


def test_rows_that_a_snapshot_holds_already_are_not_written_again(
    tmp_path: Path, start: Start
) -> None:
    child, _ = start("ring.add_all(50); trainer.snapshot(1)")
    child.kill()
    wait_for_drain(tmp_path / "run")
    assert not [name for name in os.listdir(tmp_path / "run/segments/replay") if "part" in name]


def test_a_half_staged_snapshot_of_a_killed_trainer_is_dropped(
    tmp_path: Path, start: Start
) -> None:
    child, _ = start("trainer.control.entries[0].claim(1)")
    child.kill()
    wait_for_drain(tmp_path / "run")
    assert os.listdir(tmp_path / "run/snapshots") == []


def test_a_segment_filled_but_not_sealed_by_the_dead_trainer_is_sealed(
    tmp_path: Path, start: Start
) -> None:
    # The window between the publication of the last row and the seal, as a kill leaves it.
    code = (
        "ring.add_all(ring.segment_rows)\n"
        "trainer.wait_until(lambda: ring.states().count(5) == 2)\n"
        "for slot in range(2):\n"
        "    key, state = ring.control.slot_word(slot)\n"
        "    assert ring.control.move_slot(slot, key, state, 1)\n"
    )
    child, _ = start(code)
    child.kill()
    wait_for_drain(tmp_path / "run")
    log = (tmp_path / "run/generations/0001.log").read_text()
    assert "open rows" not in log
    # Written once by the seal that was undone, and once more by the drain.
    assert len(os.listdir(tmp_path / "run/segments/replay")) == 4


def test_the_next_claim_waits_for_the_drain(tmp_path: Path, start: Start) -> None:
    plan = [{"op": "fsync", "path": "*/segments/*", "action": "delay", "seconds": 0.3, "times": 0}]
    child, _ = start("ring.add_all(100)", plan)
    child.kill()
    child.wait()
    with claim_run(str(tmp_path / "run"), wait_seconds=WAIT_SECONDS) as claim:
        assert claim.generation == 2
        assert pooled_rows(tmp_path / "run") == ALL


def test_interrupt_and_hangup_do_not_touch_the_writer(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.wait_for("ready")
        trainer.process.send_signal(signal.SIGINT)
        trainer.process.send_signal(signal.SIGHUP)
        ring = trainer.add_ring()
        ring.add(40)
        assert rows_of(trainer.snapshot(1)) == expected(ring)


def test_sigterm_finishes_what_is_staged_and_ends(tmp_path: Path) -> None:
    plan = [{"op": "mkdir", "path": "*/.tmp-*", "action": "delay", "seconds": 0.5}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(40)
        trainer.wait_for("ready")
        staged = trainer.stage(1)
        trainer.process.send_signal(signal.SIGTERM)
        assert trainer.process.wait(WAIT_SECONDS) == 0
        assert rows_of(staged.committed()) == expected(ring)
        assert SlotState.SEALED not in ring.states()


def test_sigterm_to_both_drains(tmp_path: Path, start: Start) -> None:
    child, writer = start("ring.add_all(100)")
    os.kill(writer, signal.SIGTERM)
    child.terminate()
    wait_for_drain(tmp_path / "run")
    assert pooled_rows(tmp_path / "run") == ALL


def test_a_close_persists_open_rows_too(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring()
        ring.add(40)
        assert trainer.close_writer() == 0
        assert trainer.wait_for("drained")["complete"]
        assert pooled_rows(tmp_path / "run") == expected(ring)[0]


def test_a_part_that_fails_once_is_written_again(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": "*/segments/*part*", "action": "error"}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(3)
        assert trainer.close_writer() == 0
        assert trainer.wait_for("drained")["complete"]
        assert pooled_rows(tmp_path / "run") == expected(ring)[0]


@pytest.mark.parametrize(
    "rule",
    [
        {"op": "fsync", "path": "*/segments/*part*"},
        {"op": "rename", "path": "*/segments/*part*"},
        {"op": "fsync", "path": "*/segments/replay"},
    ],
    ids=["fsync", "rename", "fsync of the directory"],
)
def test_a_close_that_loses_open_rows_is_not_complete(tmp_path: Path, rule: dict[str, Any]) -> None:
    plan = [{**rule, "action": "error", "times": 0}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        trainer.add_ring().add(3)
        assert trainer.close_writer() == 1
        assert not trainer.wait_for("drained")["complete"]
        (warning,) = trainer.texts("warning")
        assert "open rows could not be persisted" in warning
        assert trainer.pool() == []


def test_a_close_ends_at_its_grace_whatever_hangs(tmp_path: Path) -> None:
    plan = [{"op": "fsync", "path": "*/segments/*", "action": "delay", "seconds": 3600}]
    with trainer_on(tmp_path / "run", plan=plan) as trainer:
        ring = trainer.add_ring()
        ring.add(40)
        trainer.wait_until(lambda: SlotState.PERSISTING in ring.states())
        assert trainer.close_writer(grace_seconds=0.1) == 1
        assert not trainer.wait_for("drained")["complete"]


def test_a_trainer_that_lets_go_of_the_channel_is_drained_too(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        ring = trainer.add_ring()
        trainer.wait_for("ready")
        ring.add(40)
        trainer.channel.close()
        assert trainer.process.wait(WAIT_SECONDS) == 0
        assert pooled_rows(tmp_path / "run") == expected(ring)[0]


def test_a_trainer_that_dies_before_its_writer_looks_is_drained_too(tmp_path: Path) -> None:
    """The channel stays open here, and the parent alive: only the pidfd tells."""
    with trainer_on(tmp_path / "run") as trainer:
        trainer.kill_writer()
        ring = trainer.add_ring()
        ring.add(40)
        dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        pidfd = os.pidfd_open(dead.pid)
        dead.communicate(b"\n")
        trainer.start_writer(pidfd=pidfd)
        assert trainer.process.wait(WAIT_SECONDS) == 0
        assert pooled_rows(tmp_path / "run") == expected(ring)[0]


def test_a_writer_without_a_trainer_ends(tmp_path: Path) -> None:
    end = subprocess.run(
        [sys.executable, "-m", "pyengine.writer", "0", "0"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ROOT},
        check=False,
        timeout=WAIT_SECONDS,
        capture_output=True,
    )
    assert end.returncode != 0
    assert tmp_path.exists()


def test_rows_that_a_drain_could_not_save_are_on_record(tmp_path: Path, start: Start) -> None:
    full = {"path": "*/segments/*", "action": "error", "errno": "ENOSPC"}
    plan = [{**full, "op": op, "times": 0} for op in ("write", "pwrite")]
    child, _ = start("ring.add_all(ring.segment_rows + 3)", plan)
    child.kill()
    wait_for_drain(tmp_path / "run")
    sealed, opened = told_of_losses(str(tmp_path / "run"), 1, 2)
    assert re.search(r"generation 1 .* 32 rows of ring replay .*No space left", sealed)
    assert re.search(r"generation 1 .* 6 rows of ring replay .*No space left", opened)
    assert told_of_losses(str(tmp_path / "run"), 2, 3) == []


def test_a_writer_that_could_not_even_leave_word_is_told_of(tmp_path: Path, start: Start) -> None:
    rule = {"op": "write", "path": "*/generations/0001", "action": "error", "errno": "ENOSPC"}
    child, writer = start("ring.add_all(3)", [{**rule, "nth": 2, "times": 0}])
    (told,) = told_of_losses(str(tmp_path / "run"), 1, 2)
    assert "taken over while it lived" in told, "a later claim was made while it is at work"
    child.kill()
    wait_for_drain(tmp_path / "run")
    (told,) = told_of_losses(str(tmp_path / "run"), 1, 2)
    assert f"(pid {writer}) was ended, or the disk was full" in told


def test_a_drain_that_saved_all_has_nothing_to_tell(tmp_path: Path, start: Start) -> None:
    child, _ = start("ring.add_all(100)")
    child.kill()
    wait_for_drain(tmp_path / "run")
    assert told_of_losses(str(tmp_path / "run"), 1, 2) == []
    records = list(read_records(str(tmp_path / "run"), 1))
    assert [record["role"] for record in records] == ["owner", "writer", "end"]
    assert records[-1]["lost"] == []


def test_a_killed_writer_is_told_of_until_its_successor_has_drained(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run") as trainer:
        trainer.add_ring(capacity=256).add_all(3)
        trainer.wait_for("ready")
        trainer.kill_writer()
        assert len(told_of_losses(str(trainer.run_dir), 1, 2)) == 1
        trainer.start_writer()
        assert trainer.close_writer() == 0
        assert told_of_losses(str(trainer.run_dir), 1, 2) == []
