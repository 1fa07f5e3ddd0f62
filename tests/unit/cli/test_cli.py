"""The command line, as a process: exit status, JSON on stdout, nothing else there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.markers import mark_restored
from pyengine.catalog.quarantine import move_unfinished


def _pyengine(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "pyengine", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def two(run, make):
    return run, [make.publish(run.run_dir, sequence=sequence) for sequence in (1, 2)]


def test_inspect_lists_snapshots_as_json(two):
    run, infos = two
    done = _pyengine("inspect", run.run_dir, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [item["name"] for item in report["snapshots"]] == [info.name for info in infos]
    assert report["latest"] == infos[1].name
    assert report["snapshots"][0]["metrics"] == {"return": "nan"}


def test_inspect_prints_tables_for_people(two):
    run, infos = two
    done = _pyengine("inspect", run.run_dir)
    assert done.returncode == 0
    assert infos[0].name in done.stdout
    done = _pyengine("inspect", infos[0].path)
    assert "policy" in done.stdout


def test_verify_whole_run(two):
    run, _ = two
    done = _pyengine("verify", run.run_dir, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], len(report["snapshots"])) == (0, True, 2)
    done = _pyengine("verify", run.run_dir)
    assert done.returncode == 0
    assert done.stdout.count("whole") == 2


def test_verify_names_what_there_was_where_no_snapshot_is_left(two):
    run, infos = two
    shutil.rmtree(infos[0].path)
    with commit_lock(run.run_dir, run.generation) as held:
        move_unfinished(held, infos[1].name, "for the test")
    done = _pyengine("verify", run.run_dir)
    assert done.returncode == 1
    assert f"quarantine/{infos[1].name}: in quarantine" in done.stdout
    report = json.loads(_pyengine("verify", run.run_dir, "--json").stdout)
    assert not report["ok"]
    assert [problem["kind"] for problem in report["problems"]] == ["missing"]


def test_verify_names_damage(two):
    run, infos = two
    os.truncate(os.path.join(infos[1].path, "model/policy.safetensors"), 5)
    done = _pyengine("verify", run.run_dir, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (1, False)
    (problem,) = report["snapshots"][1]["problems"]
    assert (problem["kind"], problem["offset"]) == ("truncated", 5)
    assert problem["path"] == os.path.join(infos[1].path, "model/policy.safetensors")
    assert _pyengine("verify", infos[0].path).returncode == 0
    assert "truncated" in _pyengine("verify", infos[1].path).stdout


def test_damaged_manifest_is_damage(two):
    run, infos = two
    os.truncate(os.path.join(infos[1].path, "manifest.json"), 50)
    assert _pyengine("inspect", run.run_dir).returncode == 1
    assert _pyengine("verify", run.run_dir, "--json").returncode == 1
    done = _pyengine("verify", infos[1].path)
    assert done.returncode == 1
    assert "manifest.json" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("inspect", "/nonexistent"), ("verify", "/nonexistent"), (), ("fly",)]
)
def test_trouble_is_status_two(arguments):
    done = _pyengine(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr


def test_command_line_loads_neither_torch_nor_numpy():
    loaded = "print({'torch', 'numpy'} & set(sys.modules))"
    code = f"import sys, pyengine.cli.main, pyengine.supervisor.supervise; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_restored_snapshot_that_stays_is_explained(two):
    run, infos = two
    mark_restored(run.run_dir, 1, infos[0].name)
    done = _pyengine("inspect", run.run_dir)
    assert "yes" in done.stdout.splitlines()[2]
    assert "the newest that was restored stays" in done.stdout
    report = json.loads(_pyengine("inspect", run.run_dir, "--json").stdout)
    assert report["restored"] == [infos[0].name]


def test_a_run_without_snapshots_is_no_empty_table(run):
    os.makedirs(os.path.join(run.run_dir, "snapshots"), exist_ok=True)
    for command in ("inspect", "verify"):
        assert "no snapshots" in _pyengine(command, run.run_dir).stdout


def test_a_missing_directory_is_named(tmp_path):
    done = _pyengine("verify", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr


def test_branch_makes_a_run_that_inspect_knows_the_origin_of(two, tmp_path):
    run, infos = two
    done = _pyengine("branch", f"{run.run_dir}@100", tmp_path / "new", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (report["snapshot"], report["linked_bytes"]) == (infos[0].name, infos[0].size_bytes)
    shown = json.loads(_pyengine("inspect", tmp_path / "new", "--json").stdout)
    assert shown["branched_from"]["snapshot"] == infos[0].name
    assert shown["run_id"] == report["run_id"] != run.run_id
    assert f"branched from {infos[0].name}" in _pyengine("inspect", tmp_path / "new").stdout
    again = _pyengine("branch", f"{run.run_dir}@100", tmp_path / "new")
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_branch_says_which_of_several_snapshots_it_took(two, make, tmp_path):
    run, infos = two
    newest = make.publish(run.run_dir, sequence=3, step=200)
    done = _pyengine("branch", f"{run.run_dir}@200", tmp_path / "new")
    assert done.returncode == 0
    assert newest.name in done.stdout
    assert f"more than once: the newest was taken, not {infos[1].name}" in done.stdout


def test_gc_lists_then_removes_and_never_a_living_run(two):
    run, infos = two
    unfinished = os.path.join(run.run_dir, "snapshots", "step-00000500.g0001.s0009")
    os.mkdir(unfinished)
    busy = _pyengine("gc", run.run_dir, "--delete")
    assert (busy.returncode, busy.stdout) == (2, "")
    assert f"pid {os.getpid()}" in busy.stderr
    run.release()
    listed = json.loads(_pyengine("gc", run.run_dir, "--json").stdout)
    assert [(item["kind"], item["path"]) for item in listed["items"]] == [
        ("unfinished", unfinished)
    ]
    assert "unfinished" in _pyengine("gc", run.run_dir).stdout
    assert os.path.isdir(unfinished)
    done = _pyengine("gc", run.run_dir, "--delete")
    assert (done.returncode, done.stderr) == (0, "")
    assert not os.path.exists(unfinished)
    assert "nothing is left" in _pyengine("gc", run.run_dir).stdout
    assert _pyengine("verify", infos[1].path).returncode == 0
