"""A branch is a whole run with one snapshot; its source only lends it links."""

from __future__ import annotations

import json
import os
import shutil
import tempfile

import pytest
from faulty_fork import DONE, RAISED, killed_at_each_call, run_faulty

from pyengine.catalog import branch as branch_module
from pyengine.catalog import commit
from pyengine.catalog.branch import branch_run
from pyengine.catalog.claim import claim_run
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.lines import open_line
from pyengine.catalog.run import open_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.errors import DamageError, RunBusyError, RunDirectoryError
from pyengine.format import names
from pyengine.fs import door, durable
from pyengine.fs.locks import OfdLock


@pytest.fixture
def three(run, make):
    """A living run with snapshots of the steps 100, 200 and, once more, 200."""
    steps = (100, 200, 200)
    infos = [make.publish(run.run_dir, sequence=i + 1, step=step) for i, step in enumerate(steps)]
    return run, infos


def _tree(root):
    """Return every name below a directory with size, time of change and content's identity."""
    found = {}
    for base, directories, files in os.walk(root):
        for name in directories + files:
            status = os.lstat(os.path.join(base, name))
            found[os.path.relpath(os.path.join(base, name), root)] = (
                status.st_ino,
                status.st_size,
                status.st_mtime_ns,
            )
    return found


def test_a_branch_holds_that_one_snapshot_whole_and_has_an_id_of_its_own(three, tmp_path):
    run, infos = three
    new = str(tmp_path / "new")
    made = branch_run(f"{run.run_dir}@100", new)
    found = open_run(new)
    assert [info.name for info in found.snapshots] == [infos[0].name]
    assert verify_snapshot(found.snapshots[0].path) == []
    assert found.run_id == made.run_id != run.run_id
    assert os.readlink(os.path.join(new, "latest")) == f"snapshots/{infos[0].name}"
    with open(os.path.join(new, "run.json")) as file:
        origin = json.load(file)["branched_from"]
    assert (origin["run_id"], origin["snapshot"]) == (infos[0].run_id, infos[0].name)
    assert origin["path"] == infos[0].path


def test_files_are_shared_and_the_manifest_is_not(three, tmp_path):
    run, infos = three
    made = branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
    assert (made.linked_bytes, made.copied_bytes) == (infos[0].size_bytes, 0)
    branched = os.path.join(made.path, "snapshots", infos[0].name)
    for record in infos[0].files:
        assert os.path.samefile(
            os.path.join(branched, record.path), os.path.join(infos[0].path, record.path)
        )
    assert not os.path.samefile(
        os.path.join(branched, "manifest.json"), os.path.join(infos[0].path, "manifest.json")
    )


def test_a_reader_of_the_branch_does_not_keep_the_source_from_pruning(three, tmp_path):
    run, infos = three
    made = branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
    line = open_line(run.run_dir, 1, parent=infos[-1], start_rows={})
    with commit.hold_snapshot(os.path.join(made.path, "snapshots", infos[0].name)):
        with commit_lock(run.run_dir, 1) as held:
            trash = commit.prune(held, keep_last=1)
        commit.empty_trash(trash)
        assert not os.path.exists(infos[0].path)
        assert verify_snapshot(os.path.join(made.path, "snapshots", infos[0].name)) == []
    assert line.parent == infos[-1].name


def test_the_source_is_not_changed(three, tmp_path):
    run, _ = three
    before = _tree(run.run_dir)
    branch_run(f"{run.run_dir}@latest", str(tmp_path / "new"))
    assert _tree(run.run_dir) == before


def test_the_source_is_held_against_pruning_meanwhile(three, tmp_path):
    run, infos = three
    manifest = os.path.join(infos[0].path, "manifest.json")
    seen = []
    branch_run(
        f"{run.run_dir}@100",
        str(tmp_path / "new"),
        progress=lambda *_: seen.append(OfdLock.try_acquire(manifest)),
    )
    assert seen
    assert set(seen) == {None}
    assert OfdLock.try_acquire(manifest) is not None


def test_of_several_snapshots_of_a_step_the_newest_is_taken_and_the_others_are_named(
    three, tmp_path
):
    run, infos = three
    made = branch_run(f"{run.run_dir}@200", str(tmp_path / "new"))
    assert (made.snapshot, made.passed_over) == (infos[2].name, (infos[1].name,))


def test_latest_is_the_newest_by_order_and_a_directory_is_itself(three, tmp_path):
    run, infos = three
    assert branch_run(f"{run.run_dir}@latest", str(tmp_path / "a")).snapshot == infos[2].name
    assert branch_run(infos[0].path, str(tmp_path / "b")).snapshot == infos[0].name


def test_a_branch_is_claimed_beyond_the_generations_of_its_source(three, tmp_path):
    run, infos = three
    made = branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
    with claim_run(made.path) as claim:
        assert claim.generation == infos[0].generation + 1
        assert claim.run_id == made.run_id
        assert open_run(made.path).latest.name == infos[0].name


def test_retention_counts_from_the_branch(three, make, tmp_path):
    run, infos = three
    line = open_line(run.run_dir, 1, parent=None, start_rows={})
    first = make.publish(run.run_dir, sequence=9, step=300, line=line.id)
    made = branch_run(f"{run.run_dir}@300", str(tmp_path / "new"))
    with claim_run(made.path) as claim:
        grown = open_line(made.path, claim.generation, parent=first, start_rows={})
        for sequence in (1, 2, 3):
            make.publish(
                made.path,
                generation=claim.generation,
                sequence=sequence,
                step=300 + sequence,
                line=grown.id,
                parent=first.name,
                keep_last=3,
            )
            expected = [300, 301, 302, 303][: sequence + 1][-3:]
            assert [info.global_step for info in open_run(made.path).snapshots] == expected
    assert verify_snapshot(first.path) == []
    assert {info.name for info in open_run(run.run_dir).snapshots} >= {first.name, infos[2].name}


def test_where_links_are_refused_the_bytes_are_copied_and_named(three, tmp_path, monkeypatch):
    run, infos = three

    def refuse(source, target):
        raise OSError(18, os.strerror(18), source)

    monkeypatch.setattr(durable.door.active, "link", refuse, raising=False)
    steps = []
    made = branch_run(
        f"{run.run_dir}@100", str(tmp_path / "new"), progress=lambda *step: steps.append(step)
    )
    branched = os.path.join(made.path, "snapshots", infos[0].name)
    assert made.linked_bytes + made.copied_bytes == infos[0].size_bytes
    assert verify_snapshot(branched) == []
    policy = "model/policy.safetensors"
    assert not os.path.samefile(os.path.join(branched, policy), os.path.join(infos[0].path, policy))
    assert steps == sorted(steps)
    assert {total for _, total in steps} == {infos[0].size_bytes}


@pytest.mark.parametrize("kind", ["file", "full"])
def test_a_place_in_use_is_refused_and_stays(three, tmp_path, kind):
    run, _ = three
    new = tmp_path / "new"
    if kind == "file":
        new.write_text("mine")
    else:
        new.mkdir()
        (new / "notes").write_text("mine")
    with pytest.raises(RunDirectoryError, match="not empty"):
        branch_run(f"{run.run_dir}@latest", str(new))
    assert (new if kind == "file" else new / "notes").read_text() == "mine"


def test_an_empty_directory_will_do(three, tmp_path):
    run, _ = three
    (tmp_path / "new").mkdir()
    assert open_run(branch_run(f"{run.run_dir}@latest", str(tmp_path / "new")).path).latest


def test_a_place_inside_the_source_is_refused(three):
    run, _ = three
    for inside in ("snapshots/new", "new"):
        with pytest.raises(RunDirectoryError, match="inside"):
            branch_run(f"{run.run_dir}@latest", os.path.join(run.run_dir, inside))


@pytest.mark.parametrize(
    ("suffix", "words"),
    [("@150", "the newest steps are 100, 200"), ("", "say which"), ("@new", "say which")],
)
def test_what_is_not_there_is_named(three, tmp_path, suffix, words):
    run, _ = three
    with pytest.raises(RunDirectoryError, match=words):
        branch_run(f"{run.run_dir}{suffix}", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_missing_run_and_one_without_snapshots_are_named(run, tmp_path):
    with pytest.raises(RunDirectoryError, match="does not exist"):
        branch_run(str(tmp_path / "nowhere@5"), str(tmp_path / "new"))
    with pytest.raises(RunDirectoryError, match="holds no snapshot"):
        branch_run(f"{run.run_dir}@latest", str(tmp_path / "new"))


def test_a_damaged_source_leaves_nothing_behind(three, tmp_path):
    run, infos = three
    os.truncate(os.path.join(infos[0].path, "model/policy.safetensors"), 3)
    with pytest.raises(DamageError, match=r"policy\.safetensors"):
        branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_a_symbolic_link_in_place_of_a_file_is_not_followed(three, tmp_path):
    run, infos = three
    policy = os.path.join(infos[0].path, "model/policy.safetensors")
    shutil.copy(policy, tmp_path / "elsewhere")
    os.unlink(policy)
    os.symlink(tmp_path / "elsewhere", policy)
    with pytest.raises(DamageError):
        branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))


class OverlayDoor(door.Door):
    """Links as an overlay does a file of its lower layer: it becomes another file first."""

    def link(self, source, target):
        shutil.copy2(source, f"{source}.up")
        os.rename(f"{source}.up", source)
        super().link(source, target)


def test_what_is_another_file_once_it_is_linked_is_copied_as_it_was(three, tmp_path, monkeypatch):
    run, infos = three
    monkeypatch.setattr(door, "active", OverlayDoor())
    made = branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
    assert (made.linked_bytes, made.copied_bytes) == (0, infos[0].size_bytes)
    assert verify_snapshot(os.path.join(made.path, "snapshots", infos[0].name)) == []


def test_what_a_killed_call_left_is_used_up(three, tmp_path, spawn):
    run, infos = three
    code = (
        "import os, signal, sys\n"
        "from pyengine.catalog.branch import branch_run\n"
        "branch_run(sys.argv[1], sys.argv[2], "
        "progress=lambda done, _: done and os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    child = spawn(code, f"{run.run_dir}@100", tmp_path / "new")
    assert child.wait(60) == -9
    assert sorted(os.listdir(tmp_path)) == [names.temporary_name(0, "new"), "run"]
    made = branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
    assert verify_snapshot(os.path.join(made.path, "snapshots", infos[0].name)) == []
    assert sorted(os.listdir(tmp_path)) == ["new", "run"]


def test_two_calls_for_one_place_are_told_apart(three, tmp_path):
    run, _ = three
    refused = []

    def second(*_):
        with pytest.raises(RunBusyError):
            branch_run(f"{run.run_dir}@100", str(tmp_path / "new"))
        refused.append(True)

    branch_run(f"{run.run_dir}@latest", str(tmp_path / "new"), progress=second)
    assert refused
    assert open_run(tmp_path / "new").latest.global_step == 200


def test_a_snapshot_pruned_under_our_eyes_is_chosen_anew(three, tmp_path, monkeypatch):
    run, infos = three
    asked = []

    def hold(path):
        asked.append(path)
        if len(asked) == 1:
            shutil.rmtree(infos[2].path)
            raise FileNotFoundError(path)
        return commit.hold_snapshot(path)

    monkeypatch.setattr(branch_module, "hold_snapshot", hold)
    made = branch_run(f"{run.run_dir}@latest", str(tmp_path / "new"))
    assert made.snapshot == infos[1].name


@pytest.mark.slow
def test_killed_at_any_call_there_is_no_branch_or_a_whole_one(three, tmp_path):
    run, infos = three
    new = str(tmp_path / "new")
    kills = 0
    for nth in killed_at_each_call(lambda: branch_run(f"{run.run_dir}@100", new)):
        kills = nth
        if os.path.exists(new):
            assert verify_snapshot(os.path.join(new, "snapshots", infos[0].name)) == []
            shutil.rmtree(new)
    assert kills > 40
    assert sorted(os.listdir(tmp_path)) == ["new", "run"], "the last one has used up what was left"
    assert verify_snapshot(os.path.join(new, "snapshots", infos[0].name)) == []
    assert verify_snapshot(infos[0].path) == []


@pytest.mark.slow
def test_an_error_at_any_call_leaves_no_branch_or_a_whole_one(three, tmp_path):
    run, infos = three
    new = str(tmp_path / "new")
    outcomes = []
    for nth in range(1, 200):
        outcomes.append(run_faulty(lambda: branch_run(f"{run.run_dir}@100", new), nth, "error"))
        if os.path.exists(new):
            assert verify_snapshot(os.path.join(new, "snapshots", infos[0].name)) == []
            shutil.rmtree(new)
        else:
            assert outcomes[-1] == RAISED
    assert outcomes.count(RAISED) > 40
    assert outcomes[-1] == DONE
    assert branch_run(f"{run.run_dir}@100", new).snapshot == infos[0].name


def test_on_another_file_system_the_bytes_are_copied(three):
    run, infos = three
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == os.stat(run.run_dir).st_dev:
            pytest.skip("one file system")
        made = branch_run(f"{run.run_dir}@100", os.path.join(other, "new"))
        assert (made.linked_bytes, made.copied_bytes) == (0, infos[0].size_bytes)
        assert verify_snapshot(os.path.join(made.path, "snapshots", infos[0].name)) == []
