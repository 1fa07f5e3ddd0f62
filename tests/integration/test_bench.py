"""`pyengine bench` as a process: figures that fit together, and nothing left however it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Child, await_end, marked_processes, shm_names, writers

from pyengine.cli.main import main
from pyengine.cli.measure import hardware
from pyengine.cli.measure.scratch import scratch_directory
from pyengine.cli.measure.windows import Training

SMALL = ("--model-bytes", "100kB", "--every-steps", "30", "--capacity", "500", "--steps", "180")
VECTORS = ("--obs-shape", "5", "--action-shape", "2", *SMALL)

COUNTS = ("row_bytes", "capacity", "ring_bytes", "state_bytes", "every_steps", "rounds")
SPREADS = ("stall_seconds", "persist_seconds", "restore_seconds", "first_batch_seconds")
INTERVALS = ("lost_share", "lost_seconds_per_step", "lost_seconds_per_snapshot")
PROBE_BYTES = 8 * 1024 * 1024


@pytest.fixture(autouse=True)
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write little to see what the disk can do."""
    monkeypatch.setattr(hardware, "PROBE_BYTES", PROBE_BYTES)


def bench(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command; return its one JSON object, and see that there is nothing else."""
    status = main(["bench", "--json", *arguments])
    printed = capfd.readouterr()
    assert (status, printed.err) == (0, "")
    figures: dict[str, Any] = json.loads(printed.out, parse_constant=pytest.fail)
    return figures


def test_figures_are_one_json_object_and_fit_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures = bench(capfd, *VECTORS, "--dir", str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert (figures["every_steps"], figures["capacity"]) == (30, 500)
    assert figures["row_bytes"] == 4 * (5 + 2 + 1 + 5) + 3
    assert figures["state_bytes"] == pytest.approx(100_000, rel=0.1)
    assert all(figures[name] > 0 for name in COUNTS)
    assert figures["ring_bytes"] > 500 * figures["row_bytes"]
    assert figures["interval_steps"] >= figures["every_steps"]
    assert figures["rounds"] * figures["window_steps"] * 3 <= 180
    assert figures["rounds"] >= 6
    for name in SPREADS:
        assert 0 < figures[name]["p50"] <= figures[name]["p99"], name
    for name in INTERVALS:
        assert figures[name]["low"] <= figures[name]["median"] <= figures[name]["high"], name
    assert figures["stall_seconds"]["count"] == figures["rounds"]
    assert figures["restore_seconds"]["p50"] <= figures["first_batch_seconds"]["p50"]
    assert figures["new_rows"] >= 30
    assert figures["bytes_per_snapshot"] > figures["state_bytes"]
    assert figures["bytes_per_new_row"] >= figures["row_bytes"]
    for process in ("trainer", "writer"):
        memory = figures[process]
        assert memory["resident_bytes"] > memory["shared_bytes"] > 0, process
    assert figures["trainer"]["resident_bytes"] > figures["writer"]["resident_bytes"]
    assert all(value > 0 for value in figures["disk"].values())


def test_an_environment_gives_the_rows_and_prints_nothing_into_the_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    plain = gymnasium.make

    def make(env_id: str) -> Any:
        os.write(1, b"welcome\n")
        return plain(env_id)

    monkeypatch.setattr(gymnasium, "make", make)
    status = main(["bench", "--env", "CartPole-v1", *SMALL, "--dir", str(tmp_path), "--json"])
    printed = capfd.readouterr()
    assert (status, printed.err) == (0, "welcome\n")
    assert json.loads(printed.out)["row_bytes"] == 2 * 16 + 8 + 4 + 3


def test_people_get_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *VECTORS, "--dir", str(tmp_path)]) == 0
    shown = capfd.readouterr().out
    for words in ("stall of a snapshot", "training time lost", "restore, cold", "the disk"):
        assert words in shown


@pytest.mark.parametrize(
    "arguments",
    [("--every-steps", "10"), (*VECTORS, "--dir", "/nowhere"), (*VECTORS, "--model-bytes", "9TB")],
)
def test_what_cannot_work_is_status_two_before_anything_starts(
    arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyengine.cli.measure.measurement.scratch_directory", pytest.fail)
    assert main(["bench", *arguments]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pyengine: ")
    assert "Traceback" not in printed.err


def run_until_told(send: Callable[[Any], None], directory: str, moment: str) -> None:
    """Run the command, tell when it is at `moment`, and go on until a signal ends it."""
    hardware.PROBE_BYTES = PROBE_BYTES
    measure, noted = Training.measure, Training._note

    def at_rounds(*arguments: Any) -> Any:
        send(("there",))
        return measure(*arguments)

    def in_flight(*arguments: Any) -> None:
        send(("there",))
        return noted(*arguments)

    # In a process of its own, which ends here: nothing is to be put back.
    if moment == "rounds":
        Training.measure = at_rounds  # type: ignore[method-assign]
    else:
        Training._note = in_flight  # type: ignore[method-assign]
    raise SystemExit(main(["bench", *VECTORS[:-2], "--dir", directory]))


@pytest.mark.parametrize("moment", ["rounds", "in_flight"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_nothing_left(
    start: Callable[..., Child], token: str, tmp_path: Path, number: int, moment: str
) -> None:
    before = shm_names()
    child = start(run_until_told, str(tmp_path), moment)
    child.receive("there")
    assert len(os.listdir(tmp_path)) == 1
    child.signal(number)
    with pytest.raises(SystemExit) as end:
        child.receive("an end of its own")
    assert end.value.code == 128 + number
    child.join()
    assert os.listdir(tmp_path) == []
    assert marked_processes(token) == []
    assert shm_names() == before


def test_what_a_killed_one_left_is_removed_by_the_next(
    start: Callable[..., Child], token: str, tmp_path: Path
) -> None:
    child = start(run_until_told, str(tmp_path), "rounds")
    child.receive("there")
    child.signal(signal.SIGKILL)
    child.join()
    left = os.listdir(tmp_path)
    assert len(left) == 1
    with scratch_directory(str(tmp_path)) as place:
        assert os.listdir(tmp_path) == [os.path.basename(place)]
    for pid in writers(token):
        await_end(pid)
    assert os.listdir(tmp_path) == []
