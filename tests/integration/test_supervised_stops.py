"""`pyengine run` is asked to end: one snapshot where the script ticks, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import silent_disk
from processes import await_end, await_writers_end, committed, marked_processes, writers
from silent_disk import SilentDisk
from supervision import (
    QUICK,
    TRAINER,
    Supervise,
    await_line,
    await_words,
    events,
    rest_of,
    trainer,
)

import pyengine
from pyengine.supervisor.journal import read_events
from pyengine.supervisor.settings import EXIT_STUCK

TERM, INT = signal.SIGTERM, signal.SIGINT


def test_a_trainer_whose_supervisor_was_killed_ends_in_one_snapshot(
    supervise: Supervise, token: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = supervise(*trainer(run, "tick_on_quietly"))
    await_line(child, "ticking")
    child.kill()
    for pid in marked_processes(token):
        await_end(pid)
    (name,) = committed(run)
    assert f"{name:.13}" > "step-00000003", "that of the tick that ended it"
    with pyengine.SnapshotEngine(run) as engine:
        assert engine.generation == 2, "the run is free again"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_in_one_committed_snapshot(
    supervise: Supervise, token: str, tmp_path: Path, number: int
) -> None:
    run = tmp_path / "run"
    child = supervise(*trainer(run, "forever"))
    await_line(child, "step 3")
    child.send_signal(number)
    out, err = rest_of(child)
    assert child.returncode == 128 + number, err
    last = int(["step 3", *out.splitlines()][-1].split()[1])
    (name,) = committed(run)
    assert f"step-{last + 1:08d}" in name, "that of the tick that ended it"
    (end,) = events(run, "ended")
    assert (end["result"], end["exit_status"]) == ("stopped", 128 + number)
    assert [event["to"] for event in events(run, "signalled")] == ["the trainers"]
    await_writers_end(token)
    assert marked_processes(token) == []


def test_a_wrapper_between_us_and_the_trainer_does_no_harm(
    supervise: Supervise, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    script = f"{sys.executable} {TRAINER} {run} forever; exit $?"
    child = supervise("--", "sh", "-c", script)
    await_line(child, "step 3")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert len(committed(run)) == 1


@pytest.mark.parametrize(
    "pair", [(TERM, TERM), (INT, INT), (TERM, INT), (INT, TERM)], ids=lambda pair: pair[0].name
)
def test_two_signals_before_a_slow_tick_end_in_one_committed_snapshot_too(
    supervise: Supervise, token: str, tmp_path: Path, pair: tuple[signal.Signals, ...]
) -> None:
    run = tmp_path / "run"
    child = supervise("--grace", 50, *trainer(run, "wait_for_word"))
    await_line(child, "step 2")
    for number, answer in zip(pair, ("is asked to end", "again: the next tick"), strict=True):
        child.send_signal(number)
        await_words(child, answer)
    Path(f"{run}.marker").touch()
    out, err = rest_of(child)
    assert child.returncode == 128 + pair[0], err
    last = int(["step 2", *out.splitlines()][-1].split()[1])
    (name,) = committed(run)
    assert f"step-{last + 1:08d}" in name, "that of the tick that ended it"
    assert "no snapshot" not in err
    assert [event["signal"] for event in events(run, "awaiting")] == [pair[1].name]
    assert [event["to"] for event in events(run, "signalled")] == ["the trainers"]
    await_writers_end(token)


def test_a_signal_to_every_process_of_a_job_is_one_request(
    supervise: Supervise, token: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    log = tmp_path / "log"
    child = supervise("--log", log, *trainer(run, "wait_for_word"))
    await_line(child, "step 2")
    os.kill(json.loads(log.read_text())["pid"], TERM)
    child.send_signal(TERM)
    await_words(child, "is asked to end")
    Path(f"{run}.marker").touch()
    _, err = rest_of(child)
    assert child.returncode == 128 + TERM, err
    assert len(committed(run)) == 1
    await_writers_end(token)


@pytest.mark.parametrize(("grace", "asks"), [("60", 3), ("0.5", 1)])
def test_a_trainer_that_ticks_no_more_is_ended_by_a_third_signal_or_after_the_grace(
    supervise: Supervise, token: str, tmp_path: Path, grace: str, asks: int
) -> None:
    run = tmp_path / "run"
    child = supervise("--grace", grace, *trainer(run, "deaf"))
    await_line(child, "deaf")
    for answer in ("is asked to end", "again: the next tick", "asked to end")[:asks]:
        child.send_signal(TERM)
        await_words(child, answer)
        if answer.startswith("again"):
            await_line(child, "still deaf")
    _, err = rest_of(child)
    ended_by = signal.SIGTERM if asks == 3 else signal.SIGKILL
    assert child.returncode == 128 + ended_by
    (end,) = events(run, "ended")
    assert end["result"] == "stopped"
    assert "no snapshot was taken: the run has none" in end["reason"]
    assert "no snapshot was taken" in err, "a line says so"
    await_writers_end(token)


def test_a_stop_of_a_run_that_nobody_has_told_is_not_one_without_snapshots(
    supervise: Supervise, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    command = ["env", "-u", "PYENGINE_LIFELINE", sys.executable, TRAINER, str(run), "save_on"]
    child = supervise("--log", log, "--", *command)
    await_line(child, "saved")
    child.send_signal(TERM)
    _, err = rest_of(child)
    assert child.returncode == 128 + TERM
    assert len(committed(run)) == 1
    reason = read_events(str(log))[-1]["reason"]
    assert "whether a snapshot of its last step was taken is not known" in reason
    assert "--run" in reason
    assert reason in err


def test_what_has_not_ticked_yet_is_told_by_a_second_signal(
    supervise: Supervise, tmp_path: Path
) -> None:
    script = "trap : INT; echo on; sleep 1000 & wait; wait"
    child = supervise("--grace", 1000, "--", "sh", "-c", script)
    await_line(child, "on")
    for _ in range(2):
        child.send_signal(INT)
        await_words(child, "asked to end")
    rest_of(child)
    assert child.returncode == 128 + TERM


def test_a_third_signal_kills_what_ignores_the_others(supervise: Supervise) -> None:
    script = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"
    child = supervise("--grace", 1000, "--", "sh", "-c", script)
    await_line(child, "deaf")
    assert child.stderr is not None
    for number in (1, 2, 3):
        child.send_signal(signal.SIGTERM)
        if number < 3:
            assert any("asked to end" in line for line in child.stderr)
    rest_of(child)
    assert child.returncode == 128 + signal.SIGKILL


def test_a_stop_during_the_pause_before_a_restart_ends_it(supervise: Supervise) -> None:
    child = supervise("--backoff", 1000, "--backoff-max", 1000, "--", "sh", "-c", "exit 4")
    assert child.stderr is not None
    assert any("restart 1 in" in line for line in child.stderr)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 4


def test_the_writer_of_a_killed_trainer_drains_before_the_supervisor_ends(
    supervise: Supervise, token: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    script = (
        "import os, signal, sys, numpy, pyengine\n"
        "ring = pyengine.ReplayBuffer({'x': ((1000,), 'float64')}, capacity=4096)\n"
        "engine = pyengine.SnapshotEngine(sys.argv[1]); engine.track(ring=ring); engine.restore()\n"
        "for i in range(2000): ring.add(x=numpy.full(1000, i))\n"
        "engine.snapshot(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = supervise("--max-restarts", 0, "--", sys.executable, "-c", script, run)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGKILL
    assert writers(token) == []
    assert len(committed(run)) == 1


def test_orphans_are_reaped_and_output_they_hold_open_does_not_keep_us(
    supervise: Supervise, token: str
) -> None:
    script = "(setsid sleep 300 & echo $! >&2); (sleep 0.1 &); exit 0"
    child = supervise("--", "sh", "-c", script)
    await_end(child.pid)
    assert child.wait(10) == 0
    for pid in marked_processes(token):
        os.kill(pid, signal.SIGKILL)
    assert "finished" in child.communicate(timeout=10)[1]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a namespace of process ids")
def test_as_pid_1_it_reaps_orphans_and_lets_the_writer_drain(token: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = f"(sh -c 'exit 0' &); exec {sys.executable} {TRAINER} {run} kill_self"
    inside = ["-m", "pyengine", "run", *QUICK, "--max-restarts", "1", "--", "sh", "-c", script]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, *inside],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert {event["supervisor"] for event in events(run)} == {1}
    assert [death["step"] for death in events(run, "died")] == [2, 5]
    assert len(committed(run)) == 2
    assert marked_processes(token) == []


@pytest.mark.root
@pytest.mark.skipif(silent_disk.why_not() is not None, reason=str(silent_disk.why_not()))
def test_what_not_even_sigkill_ends_is_left_with_a_status_of_its_own(
    token: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    script = (
        "import sys\n"
        "from pyengine.supervisor.settings import Settings\n"
        "from pyengine.supervisor.supervise import Supervisor\n"
        "settings = Settings(('stat', sys.argv[1]), start_timeout=1.0, grace=0.2, stuck=0.5,\n"
        "                    log=sys.argv[2])\n"
        "sys.exit(Supervisor(settings).run().exit_status)\n"
    )
    with SilentDisk(tmp_path / "disk") as disk:
        command = [sys.executable, "-c", script, str(disk.path / "run"), str(log)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert disk.asked.is_set()
        assert done.returncode == EXIT_STUCK == 72, done.stderr
        (pid,) = marked_processes(token)
        with open(f"/proc/{pid}/stat") as file:
            assert file.read().split()[2] == "D", "it waits in the kernel"
    await_end(pid)
    assert "still there" in done.stderr
    with open(log) as file:
        found = [json.loads(line) for line in file]
    assert [event["signal"] for event in found if event["event"] == "signalled"] == [
        "SIGTERM",
        "SIGKILL",
    ]
    assert (found[-1]["event"], found[-1]["result"]) == ("ended", "stuck")
