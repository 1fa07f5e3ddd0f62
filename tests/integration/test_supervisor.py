"""`pyengine run` with real trainers: deaths, hangs, stops, crash loops, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import silent_disk
from processes import await_end, await_writers_end, committed, marked_processes, writers
from silent_disk import SilentDisk

import pyengine
from pyengine.supervisor.settings import EXIT_STUCK

TRAINER = str(Path(__file__).with_name("supervised_trainer.py"))
QUICK = ("--backoff", "0.05")
Supervise = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def supervise(token: str) -> Iterator[Supervise]:
    """Start `pyengine run OPTIONS -- COMMAND`; whatever is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: Any) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "pyengine", "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()
    for pid in marked_processes(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def trainer(run_dir: Path, mode: str) -> list[str]:
    return ["--", sys.executable, TRAINER, str(run_dir), mode]


def events(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    with open(run_dir / "supervisor.jsonl") as file:
        found = [json.loads(line) for line in file]
    return [event for event in found if kind in (None, event["event"])]


def await_line(child: subprocess.Popen[str], wanted: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(wanted):
            return
    raise AssertionError(f"the output ended before {wanted!r}")


def rest_of(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output after the lines that were read; communicate() would lose some of it."""
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = child.stdout.read(), child.stderr.read()
    child.wait(60)
    return out, err


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


@pytest.mark.parametrize(("grace", "repeats"), [("60", 2), ("0.5", 1)])
def test_a_trainer_that_does_not_tick_is_told_by_a_second_signal_or_killed_after_the_grace(
    supervise: Supervise, token: str, tmp_path: Path, grace: str, repeats: int
) -> None:
    run = tmp_path / "run"
    child = supervise("--grace", grace, *trainer(run, "deaf"))
    await_line(child, "deaf")
    for count in range(repeats):
        child.send_signal(signal.SIGTERM)
        if count + 1 < repeats:
            assert child.stderr is not None
            for line in child.stderr:
                if "asked to end" in line:
                    break
    child.communicate(timeout=60)
    ended_by = signal.SIGTERM if repeats == 2 else signal.SIGKILL
    assert child.returncode == 128 + ended_by
    (end,) = events(run, "ended")
    assert end["result"] == "stopped"
    await_writers_end(token)


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
