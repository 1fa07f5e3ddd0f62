"""`pyengine run` with real trainers: deaths, hangs, crash loops, and what is on record of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import committed
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


def test_a_killed_trainer_goes_on_from_its_newest_snapshot(
    supervise: Supervise, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = supervise(*QUICK, *trainer(run, "kill_self"))
    out, err = child.communicate(timeout=100)
    assert child.returncode == 0, err
    assert [line for line in out.splitlines() if "start" in line] == [
        "start 0 0",
        "start 3 3",
        "start 6 6",
    ]
    deaths = events(run, "died")
    assert [(death["fault"], death["signal"], death["step"]) for death in deaths] == [
        ("signal", "SIGKILL", 2),
        ("signal", "SIGKILL", 5),
    ]
    assert all(death["has_new_snapshot"] for death in deaths)
    (end,) = events(run, "ended")
    assert (end["result"], end["restarts"], end["faults"]) == ("finished", 2, {"signal": 2})
    assert len(committed(run)) == 3


def test_a_hanging_trainer_is_ended_and_started_again(supervise: Supervise, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = supervise(
        *(*QUICK, "--hang-timeout", 2, "--grace", 0.5),
        *trainer(run, "hang_beside_a_lively_fork"),
    )
    out, err = child.communicate(timeout=110)
    assert child.returncode == 0, err
    assert "start 3 3" in out
    (death,) = events(run, "died")
    assert (death["fault"], death["step"]) == ("hang", 2)
    (hang,) = events(run, "hang")
    assert (hang["trainers"], hang["ticks"]) == (1, 3)
    assert 2 <= hang["silent_seconds"] < 4
    assert [event["signal"] for event in events(run, "signalled")] == ["SIGTERM", "SIGKILL"]


def test_silent_ticks_are_a_sign_of_life(supervise: Supervise, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = supervise("--hang-timeout", 2.5, *QUICK, *trainer(run, "tick_silently"))
    _, err = child.communicate(timeout=100)
    assert child.returncode == 0, err
    assert events(run, "hang") == []


def test_a_cleaned_environment_leaves_output_as_the_sign_of_life(
    supervise: Supervise, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ["env", "-u", "PYENGINE_LIFELINE", sys.executable, TRAINER, str(run), "hang_once"]
    bounds = ("--hang-timeout", 2, "--start-timeout", 6, "--grace", 0.5)
    child = supervise(*QUICK, *bounds, "--run", run, "--", *command)
    out, err = child.communicate(timeout=110)
    assert child.returncode == 0, err
    assert "start 3 3" in out
    assert "only output was seen" in err
    hang = events(run, "hang")[0]
    assert (hang["trainers"], hang["bound"]) == (0, "--start-timeout 6"), "no tick can be seen"


def test_starts_that_are_ended_before_their_first_tick_are_a_crash_loop_though_each_saves_a_step(
    supervise: Supervise, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    # Output lets the imports be as slow as they like; the silence after them is too long.
    marker = f"{run}.marker"
    script = (
        f"rm -f {marker}; (while [ ! -e {marker} ]; do echo .; sleep 0.1; done) & "
        f"exec {sys.executable} {TRAINER} {run} start_too_slowly"
    )
    bounds = ("--hang-timeout", 60, "--start-timeout", 1.2)
    child = supervise(*QUICK, "--crash-limit", 2, *bounds, "--", "sh", "-c", script)
    _, err = child.communicate(timeout=110)
    assert child.returncode == 70, err
    (end,) = events(run, "ended")
    assert end["result"] == "crash loop"
    assert "before its first tick" in end["reason"]
    assert "--start-timeout 1.2" in end["reason"]
    deaths = events(run, "died")
    assert [(death["fault"], death["has_new_snapshot"]) for death in deaths] == [("hang", True)] * 2
    assert len(committed(run)) == 2


def test_a_crash_loop_stops_with_a_reason_and_a_status_of_its_own(
    supervise: Supervise, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    child = supervise(
        *QUICK, "--crash-limit", 3, "--log", log, "--json", "--", "sh", "-c", "echo no; exit 5"
    )
    out, err = child.communicate(timeout=60)
    summary = json.loads(out)
    assert child.returncode == summary["exit_status"] == 70
    assert (summary["result"], summary["restarts"]) == ("crash loop", 2)
    assert "3 deaths within" in summary["reason"]
    assert "exit status 5" in summary["reason"]
    assert err.count("no\n") == 3, "with --json the command's stdout goes to stderr"
    with open(log) as file:
        pauses = [e["pause_seconds"] for e in map(json.loads, file) if e["event"] == "restarting"]
    assert pauses[0] < pauses[1]


def test_a_snapshot_that_the_dead_trainers_writer_still_commits_is_no_crash_loop(
    supervise: Supervise, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = supervise(*QUICK, "--crash-limit", 1, *trainer(run, "die_before_the_writer"))
    writer = int(await_line(child, "writer").split()[1])
    await_words(child, "to drain")
    os.kill(writer, signal.SIGCONT)
    out, err = rest_of(child)
    assert child.returncode == 0, err
    assert "start 3 3" in out
    (death,) = events(run, "died")
    assert death["has_new_snapshot"]


def test_used_up_restarts_end_with_the_commands_own_status(supervise: Supervise) -> None:
    child = supervise(*QUICK, "--max-restarts", 1, "--", "sh", "-c", "kill -SEGV $$")
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGSEGV
    assert "restarts used up" in err


@pytest.mark.parametrize(
    ("mode", "fault", "kind"),
    [("no_space", "storage", "NoSpaceError"), ("damage", "damage", "DamageError")],
)
def test_the_class_of_a_fault_and_its_exception_are_on_record(
    supervise: Supervise, tmp_path: Path, mode: str, fault: str, kind: str
) -> None:
    run = tmp_path / "run"
    child = supervise(*QUICK, "--max-restarts", 0, *trainer(run, mode))
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1, err
    (death,) = events(run, "died")
    assert (death["fault"], death["error"]["type"], death["step"]) == (fault, kind, 2)


def test_a_busy_run_is_a_class_of_its_own(supervise: Supervise, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pyengine.SnapshotEngine(run) as engine:
        child = supervise("--max-restarts", 0, "--run", run, *trainer(run, "fine"))
        child.communicate(timeout=60)
        assert engine.generation == 1
    (death,) = events(run, "died")
    assert (death["fault"], death["error"]["type"]) == ("busy", "RunBusyError")


def test_a_run_that_cannot_be_reached_any_more_is_lost_storage(
    supervise: Supervise, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    script = f"rm -rf {run}; exit 1"
    log = tmp_path / "log"
    child = supervise("--max-restarts", 0, "--run", run, "--log", log, "--", "sh", "-c", script)
    child.communicate(timeout=60)
    with open(log) as file:
        (death,) = [event for event in map(json.loads, file) if event["event"] == "died"]
    assert death["fault"] == "storage"
    assert str(run) in death["unreachable"]


def test_a_run_of_a_long_path_in_any_script_is_known(supervise: Supervise, tmp_path: Path) -> None:
    run = tmp_path.joinpath(*["运行目录实验" * 12] * 3)
    run.parent.mkdir(parents=True)
    child = supervise(*QUICK, "--crash-limit", 2, *trainer(run, "kill_self"))
    _, err = child.communicate(timeout=100)
    assert child.returncode == 0, err
    assert [death["has_new_snapshot"] for death in events(run, "died")] == [True, True]


def test_a_supervisor_under_a_supervisor_is_refused_and_says_why(
    supervise: Supervise, tmp_path: Path
) -> None:
    log, trace = tmp_path / "log", tmp_path / "trace"
    inner = [sys.executable, "-m", "pyengine", "run", "--", "touch", str(trace)]
    child = supervise("--crash-limit", 1, "--log", log, "--", *inner)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 70
    assert "leave one of the two out" in err
    with open(log) as file:
        (death,) = [event for event in map(json.loads, file) if event["event"] == "died"]
    assert (death["exit_status"], death["error"]["type"]) == (2, "ConfigError")
    assert not trace.exists()


def test_a_supervisor_without_room_for_its_memory_names_the_limit() -> None:
    run = f"ulimit -f 1; exec {sys.executable} -m pyengine run -- true"
    outcome = subprocess.run(["bash", "-c", run], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 126
    assert "RLIMIT_FSIZE" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_what_cannot_be_started_is_named(supervise: Supervise) -> None:
    child = supervise("--", "/nonexistent/command")
    assert "/nonexistent/command" in child.communicate(timeout=60)[1]
    assert child.returncode == 127
    assert supervise("--hang-timeout", "x", "--", "true").wait(60) == 2
    assert supervise("--").wait(60) == 2


def test_without_a_supervisor_there_is_neither_lifeline_nor_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        assert engine._lifeline is None
        assert signal.getsignal(signal.SIGTERM) == before
