"""A pickle in a snapshot is read by whoever named it, after its checksum; nothing else runs it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyengine
from pyengine import errors
from pyengine.cli.main import main

REPOSITORY = Path(__file__).parents[2]


class Curriculum:
    def __init__(self, level: int) -> None:
        self.level = level


class Bomb:
    """Makes a directory where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (self.mark,)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with one snapshot: a curriculum at level 3, counters, and a bomb."""
    bomb = pyengine.Pickled(get=lambda: Bomb(tmp_path / "exploded"), set=print)
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(curriculum=pyengine.Pickled(Curriculum(3)), bomb=bomb, counters={"updates": 1})
        engine.snapshot(1).wait(60)
    return tmp_path / "run"


def restore(run_dir: Path, objects: dict[str, Any], **options: Any) -> pyengine.RestoreReport:
    with pyengine.SnapshotEngine(run_dir) as engine:
        engine.track(**objects)
        return engine.restore(**options)


def test_a_pickled_object_is_restored_by_the_script_that_names_it(run_dir: Path) -> None:
    live, counters = Curriculum(0), {"updates": 0}
    objects = {"curriculum": pyengine.Pickled(live), "counters": counters}
    report = restore(run_dir, objects, allow=["bomb"])
    assert (live.level, counters["updates"]) == (3, 1)
    assert report.component("curriculum").kind == "pickle"
    assert report.component("bomb").found == "not tracked"
    assert not (run_dir.parent / "exploded").exists()


def test_tracked_as_anything_else_it_is_not_read(run_dir: Path) -> None:
    counters = {"updates": 0}
    with pytest.raises(errors.StateMismatchError, match=r"as pyengine\.Pickled, if you trust"):
        restore(run_dir, {"bomb": {}, "counters": counters}, allow=["curriculum"])
    with pytest.raises(errors.ComponentMismatchError):
        restore(run_dir, {"counters": counters})
    assert counters["updates"] == 0
    assert not (run_dir.parent / "exploded").exists()


def test_a_pickle_is_read_before_anything_changes(run_dir: Path) -> None:
    """The bomb goes off once; the second time its mkdir() raises, while reading."""
    (run_dir.parent / "exploded").mkdir()
    live, counters = Curriculum(0), {"updates": 0}
    objects = {
        "bomb": pyengine.Pickled(get=dict, set=print),
        "curriculum": pyengine.Pickled(live),
        "counters": counters,
    }
    with pytest.raises(errors.StateMismatchError, match="FileExistsError"):
        restore(run_dir, objects)
    assert (live.level, counters["updates"]) == (0, 0)


def test_a_pickle_whose_checksum_differs_is_never_read(run_dir: Path) -> None:
    snapshot = (run_dir / "latest").resolve()
    path = snapshot / "legacy" / "bomb.pkl"
    data = path.read_bytes()
    path.write_bytes(data + b".")  # still a pickle
    bomb = {"bomb": pyengine.Pickled(get=dict, set=print)}
    allow = ["curriculum", "counters"]
    with pytest.raises(errors.DamageError) as caught:
        restore(run_dir, bomb, allow=allow, fall_back=False)
    assert caught.value.path == str(path)
    with pytest.raises(errors.DamageError):
        pyengine.load(run_dir, only=["bomb"], allow_pickle=["bomb"])
    assert not (run_dir.parent / "exploded").exists()
    path.write_bytes(data)
    restore(run_dir, bomb, allow=allow)
    assert (run_dir.parent / "exploded").exists()


def test_load_leaves_pickles_out_and_says_so(
    run_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pyengine"), "propagate", True)
    values = pyengine.load(run_dir)
    assert values.keys() == {"counters", "process_rng"}
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(told) == 2
    assert "load(..., allow_pickle=['curriculum'])" in told[0]


def test_load_reads_the_pickles_that_its_caller_allows(run_dir: Path) -> None:
    values = pyengine.load(run_dir, allow_pickle=["curriculum"])
    assert values.keys() == {"counters", "process_rng", "curriculum"}
    assert values["curriculum"].level == 3
    with pytest.raises(errors.PickleRefusedError) as caught:
        pyengine.load(run_dir, only=["counters", "bomb"], allow_pickle=["curriculum"])
    assert caught.value.component == "bomb"
    with pytest.raises(errors.ComponentMismatchError, match="'curiculum'"):
        pyengine.load(run_dir, allow_pickle=["curiculum"])
    with pytest.raises(errors.ConfigError, match="list of names"):
        pyengine.load(run_dir, allow_pickle=True)  # type: ignore[arg-type]  # it is to be refused
    assert not (run_dir.parent / "exploded").exists()


def test_inspect_shows_what_is_pickle(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = str((run_dir / "latest").resolve())
    assert main(["inspect", snapshot]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "curriculum" in line]
    assert line.split()[:3] == ["curriculum", "pickle", "saved"]
    assert main(["inspect", snapshot, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["snapshots"]
    records = {record["name"]: record for record in shown["components"]}
    assert records["curriculum"]["files"] == ["legacy/curriculum.pkl"]
    assert main(["verify", snapshot]) == 0


READS = """
import contextlib, sys
import pyengine
from pyengine.cli.main import main

found = []
def hook(event, arguments):
    if event == "pickle.find_class":
        found.append(arguments)
sys.addaudithook(hook)
run, mark = sys.argv[1:]
refused = contextlib.suppress(pyengine.errors.PyengineError)
pyengine.load(run)
with refused:
    pyengine.load(run, only=["bomb"])
pyengine.open_run(run)
for command in ("inspect", "verify", "gc"):
    main([command, run])
main(["branch", run + "@latest", mark + "-branch"])
for tracked in ({}, {"bomb": {}, "counters": {}}, {"counters": {"updates": 0}}):
    with refused, pyengine.SnapshotEngine(run) as engine:
        engine.track(**tracked)
        engine.restore(allow=["bomb", "curriculum", "counters"])
assert found == [], found
pyengine.load(run, only=["bomb"], allow_pickle=["bomb"])
assert [name for _, name in found] == ["mkdir"], found
"""


def test_no_reader_looks_up_what_a_pickle_names_unless_it_is_allowed(run_dir: Path) -> None:
    line = [sys.executable, "-c", READS, run_dir, run_dir.parent / "exploded"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (run_dir.parent / "exploded").exists()
