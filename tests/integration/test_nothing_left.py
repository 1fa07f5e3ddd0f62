"""Nothing is left anywhere, however a run ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from processes import (
    await_end,
    await_writers_end,
    interrupted_at,
    leftovers,
    marked_processes,
    shm_names,
    writers,
)
from program import Training

import pyengine
from pyengine.catalog.claim import claim_run


def shared_mappings() -> set[str]:
    """Return the shared memory that this process maps, by name (an inode each)."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}


def begin(run_dir: str) -> tuple[pyengine.SnapshotEngine, Training]:
    engine = pyengine.SnapshotEngine(run_dir)
    training = Training()
    training.track(engine)
    engine.restore()
    for step in range(10):
        training.step(step)
    engine.snapshot(9)
    return engine, training


def ends(send: Any, run_dir: str, how: str) -> None:
    engine, _training = begin(run_dir)
    send(("pids", os.getpid(), engine.writer_pid))
    if how == "close":
        engine.close()
    elif how == "exception":
        raise ValueError("in the loop")
    elif how == "exit":
        raise SystemExit(3)
    else:
        while True:  # a pause would sleep through a signal that comes just before it begins
            time.sleep(0.05)


KILLS: dict[str, tuple[int, ...]] = {
    "SIGTERM": (0,),
    "SIGINT": (0,),
    "SIGKILL of the trainer": (0,),
    "SIGKILL of the writer": (1,),
    "SIGKILL of both": (0, 1),
}


@pytest.mark.parametrize("how", ["close", "exception", "exit", *KILLS])
def test_no_process_no_memory_no_lock_no_temporary(
    start: Any, token: str, tmp_path: Path, how: str
) -> None:
    run_dir = str(tmp_path / "run")
    child = start(ends, run_dir, how)
    pids = child.receive("pids")[1:]
    number = getattr(signal, how.split()[0], None)
    for index in KILLS.get(how, ()):
        os.kill(pids[index], number)
    if KILLS.get(how) == (1,):
        child.signal(signal.SIGKILL)  # nobody ticks: the next look at the writer never comes
    child.join()
    await_writers_end(token)
    assert marked_processes(token) == []
    assert shm_names() == set()
    with claim_run(run_dir, wait_seconds=0):  # free at once; sweeps
        pass
    assert leftovers(run_dir) == []


def open_files() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return sorted(found)


def test_close_leaves_no_descriptor_and_no_mapping(token: str, tmp_path: Path) -> None:
    engine, training = begin(str(tmp_path / "warm-up"))
    engine.close()
    training.ring.close()
    del engine, training
    gc.collect()
    before, mapped_before = open_files(), shared_mappings()
    engine, training = begin(str(tmp_path / "run"))
    assert shared_mappings() - mapped_before
    engine.close()
    engine.close()
    training.ring.close()
    del engine, training
    gc.collect()
    assert open_files() == before
    assert shared_mappings() <= mapped_before
    assert writers(token) == []


BAD_SETTINGS: list[tuple[str, Any]] = [
    ("run_dir", ""),
    ("run_dir", 5),
    ("run_dir", b"run"),
    ("run_dir", "a\0b"),
    ("every_steps", 1.5),
    ("every_steps", 0),
    ("every_steps", -1),
    ("every_steps", True),
    ("every_seconds", -1),
    ("every_seconds", 0),
    ("every_seconds", float("nan")),
    ("every_seconds", "60"),
    ("keep_last", 1.5),
    ("keep_last", 0),
    ("keep_last", True),
    ("budget", 0),
    ("budget", 1.5),
    ("budget", float("nan")),
    ("budget", "much"),
    ("when_busy", "never"),
    ("on_error", 5),
    ("fresh", "no"),
    ("strict", 1),
    ("track_rng", None),
    ("algorithm", 5),
    ("notes", 5),
    ("notes", {3: "x"}),
    ("drain_wait", -1),
    ("drain_wait", float("inf")),
    ("drain_wait", None),
]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS, ids=str)
def test_a_bad_setting_is_named_and_leaves_nothing(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    before = open_files()
    with pytest.raises(pyengine.errors.ConfigError, match=f"^{name}: expected .*, got "):
        pyengine.SnapshotEngine(**{"run_dir": tmp_path / "run", name: value})
    assert os.listdir(tmp_path) == []
    assert open_files() == before
    assert writers(token) == []


def test_an_engine_that_is_dropped_lets_go(token: str, tmp_path: Path) -> None:
    engine, training = begin(str(tmp_path / "run"))
    writer = engine.writer_pid
    assert writer is not None
    del engine
    gc.collect()
    await_end(writer)
    with pyengine.SnapshotEngine(tmp_path / "run") as again:
        again.track(replay=training.ring)


def test_a_constructor_interrupted_at_any_instruction_leaves_nothing(
    token: str, tmp_path: Path
) -> None:
    pyengine.SnapshotEngine(tmp_path / "imported").close()
    gc.collect()
    before = open_files()
    place, reached = 0, True
    gc.disable()  # what is left must not wait for the collector
    try:
        while reached:
            place += 3
            run_dir = tmp_path / f"run-{place % 3}"
            reached, engine = interrupted_at(
                place, lambda d=run_dir: pyengine.SnapshotEngine(d), event="opcode"
            )
            if engine is not None:
                engine.close()
            del engine
            assert open_files() == before, f"instruction {place}"
    finally:
        gc.enable()
    assert place > 500
    # An interrupt after the very last instruction meets a whole engine, whose writer drains.
    await_writers_end(token)
    assert shm_names() == set()
    for number in range(3):
        pyengine.SnapshotEngine(tmp_path / f"run-{number}").close()
