"""The tool: numbers for programs, a failure that is found again by its word, an honest exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from crash.power_loss import record, sweep

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "torture.py"


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(TOOL.parent.parent))
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_numbers_of_each_sweep_are_there_for_programs(tmp_path: Path) -> None:
    few = ("--states", "30", "--kills", "2", "--errors", "2", "--workers", "1", "--seed", "7")
    sweeps = ("--sweeps", "power", "kill", "error")
    done = torture(*few, *sweeps, "--json", "--journals", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["seed"] == 7
    tried = {result["sweep"]: result["tried"] for result in results["sweeps"]}
    assert tried["power"] >= 30
    assert (tried["kill"], tried["error"]) == (2, 2)
    assert all(result["wrong"] == [] for result in results["sweeps"])
    assert list(tmp_path.iterdir()) == [], "a journal stays only where something was wrong"


@pytest.mark.slow
def test_a_failure_is_found_again_exactly_by_its_word(tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    journal = record(3, str(tmp_path / "recorded"))
    files = [note["inode"] for note in journal.notes if note["op"] == "create"]
    notes = [note for note in journal.notes if note["op"] != "sync" or note["inode"] not in files]
    forgetful = replace(journal, notes=notes)
    forgetful.save(str(tmp_path / "journal-3"))
    word, _ = sweep(forgetful, 60).wrong[0]
    first, second = (
        torture("--only", f"power/{word}", "--json", "--journals", str(tmp_path)) for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (1, 1)
    (found,) = json.loads(first.stdout)["sweeps"]
    assert found["wrong"][0][0] == f"power/{word}"
