"""Imports and exports of whole files, as processes: killed ones leave nothing, memory is bounded,
and the command line says what a program can read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyengine
from pyengine import porting
from pyengine.catalog.verify import verify_snapshot
from pyengine.cli.main import main

ROWS, BYTES = 12_000, 16_000


def _child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def _save(path: Path, rows: int = ROWS) -> None:
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 255, (rows, BYTES), dtype=np.uint8)
    np.savez(path, obs=obs, reward=np.arange(rows, dtype=np.float32))


_MEASURED = """
import sys
from pyengine import porting
import pyengine.engine.engine, torch

def kilobytes(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))

for call, source, target in (
    (porting.import_npz, sys.argv[1], sys.argv[2]), (porting.export_npz, sys.argv[2], sys.argv[3])
):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = kilobytes("VmRSS:")
    call(source, target)
    print((kilobytes("VmHWM:") - before) // 1024)
"""


def test_memory_is_that_of_some_pieces(tmp_path: Path) -> None:
    _save(tmp_path / "rows.npz")
    size = (tmp_path / "rows.npz").stat().st_size >> 20
    done = _child(_MEASURED, tmp_path / "rows.npz", tmp_path / "run", tmp_path / "back.npz")
    assert done.returncode == 0, done.stderr
    imported, exported = map(int, done.stdout.split())
    # The ring of an import takes 64 MiB; what a process allocates besides, and pieces.
    assert imported < 120 < size
    assert exported < 60
    with np.load(tmp_path / "rows.npz") as there, np.load(tmp_path / "back.npz") as here:
        assert (there["obs"] == here["obs"]).all()
        assert (there["reward"] == here["reward"]).all()


_KILLED = """
import os, signal, sys
from pyengine import porting

def progress(done, in_all):
    if done > float(sys.argv[4]) * in_all:
        os.kill(os.getpid(), signal.SIGKILL)

getattr(porting, sys.argv[1])(sys.argv[2], sys.argv[3], progress=progress)
"""


def _killed(call: str, source: Path, target: Path, share: float) -> Any:
    """Run a call that is killed by SIGKILL after a share of its rows."""
    return _child(_KILLED, call, source, target, share)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_killed_import_leaves_nothing_under_the_name(tmp_path: Path, share: float) -> None:
    _save(tmp_path / "rows.npz", 6_000)
    done = _killed("import_npz", tmp_path / "rows.npz", tmp_path / "run", share)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "run").exists()
    # At once, while the writer of the killed call is at work.
    assert porting.import_npz(tmp_path / "rows.npz", tmp_path / "run").rows == 6_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.npz", "run"]
    assert verify_snapshot(str(tmp_path / "run" / "latest")) == []


def test_a_killed_export_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    _save(tmp_path / "rows.npz", 100)
    porting.import_npz(tmp_path / "rows.npz", tmp_path / "run")
    done = _killed("export_npz", tmp_path / "run", tmp_path / "back.npz", 0.5)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "back.npz").exists()
    assert porting.export_npz(tmp_path / "run", tmp_path / "back.npz").rows == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.npz", "rows.npz", "run"]


def _run_command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_line_brings_rows_in_and_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.zeros((5, 2)), action=np.arange(5))
    run, back = tmp_path / "run", tmp_path / "back.npz"
    options = ("--json", "--ring", "old", "--rename", "action=act", "--step", 3, "--capacity", 8)
    status, out, err = _run_command(capsys, "import", tmp_path / "rows.npz", run, *options)
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told["path"] == str(run)
    assert (told["rows"], told["lanes"], told["ring"]) == (5, 1, "old")
    assert told["fields"] == ["obs", "act"]
    status, out, _ = _run_command(capsys, "inspect", run / "latest")
    assert status == 0
    assert "imported from" in out
    assert "level partial" in out
    assert "because replay only" in out
    assert "nobody has declared" not in out
    status, out, _ = _run_command(capsys, "export", f"{run}@3", back)
    assert status == 0
    assert f"{back}: 5 rows in 1 lanes" in out
    assert (np.load(back)["act"] == np.arange(5)).all()
    status, out, _ = _run_command(capsys, "export", f"{run}@latest", back, "--force", "--json")
    assert (status, json.loads(out)["rows"]) == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["import", "rows.dat", "new"], 2, "its suffix does not tell"),
        (["import", "rows.npz", "run"], 2, "not empty"),
        (["import", "rows.npz", "new", "--rename", "obs"], 2, "expected OLD=NEW"),
        (["import", "rows.npz", "new", "--rename", "none=obs"], 2, "the arrays 'obs'"),
        (["import", "rows.npz", "new", "--ring", "a/../b"], 2, "expected a name"),
        (["import", "rows.npz", "new", "--capacity", "2"], 2, "capacity of at least 3"),
        (["import", "rows.npz", "new", "--from", "tianshou"], 2, "no HDF5 file"),
        (["import", "rows.npz", "new", "--from", "sb3"], 2, "runs code of whoever wrote it"),
        (["export", "run", "back"], 2, "--to npz or --to minari"),
        (["export", "run", "rows.npz"], 2, "--force"),
        (["export", "run", "back.npz", "--env", "CartPole-v1"], 2, "--to minari"),
        (["export", "run@first", "back.npz"], 2, "RUN@STEP"),
        (["export", "@8", "back.npz"], 2, "RUN@STEP"),
        (["export", "run@8", "back.npz"], 2, "no snapshot of step 8"),
        (["export", "nothing", "back.npz"], 2, "does not exist"),
    ],
)
def test_what_cannot_be_done_is_said_on_stderr(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", obs=np.zeros(3))
    porting.import_npz("rows.npz", "run")
    before = sorted(os.listdir())
    found, out, err = _run_command(capsys, *arguments)
    assert (found, out) == (status, "")
    assert words in err
    assert sorted(os.listdir()) == before


def test_the_page_shows_commands_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    shown = re.findall(r"^pyengine ((?:import|export) [^#\n]*)", page, re.MULTILINE)
    commands = [line.split() for line in shown if ".npz" in line]
    assert [command[0] for command in commands] == ["import", "export"]
    monkeypatch.chdir(tmp_path)
    np.savez("replay.npz", obs=np.zeros(3))
    porting.import_npz("replay.npz", "runs/hopper")
    for command in commands:
        assert main(command) == 0
        assert "3 rows" in capsys.readouterr().out


def test_damage_has_a_status_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.zeros((4096, 8)))
    porting.import_npz(tmp_path / "rows.npz", tmp_path / "run")
    info = pyengine.open_run(tmp_path / "run").latest
    assert info is not None
    path = next(Path(info.path, one.path) for one in info.files if one.covers == "segment")
    data = bytearray(path.read_bytes())
    data[8192] ^= 1
    path.write_bytes(data)
    status, out, err = _run_command(capsys, "export", tmp_path / "run", tmp_path / "back.npz")
    assert (status, out) == (1, "")
    assert "checksum" in err
    assert not (tmp_path / "back.npz").exists()
