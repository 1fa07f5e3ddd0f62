"""How the writer process runs: from where it imports, and beside the trainer it serves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyengine

_PROGRAM = """
import os, pyengine, sys
os.rmdir(os.getcwd())
with pyengine.SnapshotEngine(sys.argv[1]) as engine:
    engine.track(counters={"n": 1})
    engine.restore()
    os.kill(engine.writer_pid, 9)
    print(engine.snapshot(0).wait(60).name)
"""


def test_a_path_with_colons_and_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    place = tmp_path / "a:b"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(pyengine.__file__).parent, place / "pyengine", ignore=ignored)
    away = tmp_path / "away"
    away.mkdir()
    # PYTHONPATH cannot name it.
    code = f"import sys; sys.path.insert(0, {str(place)!r})\n{_PROGRAM}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    end = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        cwd=away,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "step-00000000" in end.stdout, end.stderr


def test_the_writer_takes_no_core_from_the_trainer_that_wakes_it(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(counters={"n": 1})
        engine.snapshot(0).wait(60)
        writer = engine.writer_pid
        assert writer is not None
        policies = {os.sched_getscheduler(int(t)) for t in os.listdir(f"/proc/{writer}/task")}
        assert policies == {os.SCHED_BATCH}
        assert os.getpriority(os.PRIO_PROCESS, writer) > os.getpriority(os.PRIO_PROCESS, 0)
