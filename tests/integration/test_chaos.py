"""A real agent under the supervisor, with faults at random: a small version of `make chaos`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import await_writers_end, marked_processes

CHAOS = Path(__file__).parents[2] / "tools" / "chaos.py"
KINDS = ("kill learner", "kill both", "flip a bit", "delete the manifest")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_agent_ends_its_training_whatever_breaks_and_no_promise_is_broken(
    token: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    directory = tmp_path / "chaos"
    command = [sys.executable, str(CHAOS), "--directory", str(directory), "--json"]
    sizes = {"seed": 2, "faults": 4, "fewer-faults": 1, "seeds": 1, "steps": 4000}
    options = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [*command, *options, "--hang-timeout", "60", "--kinds", *KINDS],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["broken"] == []
    chaos, exact = told["arms"]["chaos 2"], told["arms"]["exact 2"]
    assert [arm["status"] for arm in told["arms"].values()] == [0, 0, 0]
    assert (len(chaos["faults"]), chaos["restarts"]) == (4, 4)
    assert all(0 < fault["to_step"] <= fault["to_durable"] for fault in chaos["faults"])
    assert {fault["kind"] for fault in chaos["faults"]} <= set(KINDS)
    assert chaos["differs_at"] > 0
    assert (exact["restarts"], exact["differs_at"]) == (1, None)
    assert (directory / "chaos.png").read_bytes().startswith(b"\x89PNG")
    assert not any(os.path.ismount(disk) for disk in directory.glob("*/disk"))
    await_writers_end(token)
    assert marked_processes(token) == []
