"""Claims: one living owner, dead writers waited for, frozen ones ended, nobody fooled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from pyengine.catalog import generation, scan
from pyengine.catalog.claim import claim_run
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.idle import idle_lock
from pyengine.catalog.run_record import read_run_id
from pyengine.errors import NoSpaceError, RunBusyError, RunDirectoryError, StaleGenerationError
from pyengine.format import names
from pyengine.format.sealed import record_bytes
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Rule
from pyengine.fs.locks import is_locked

_OWN = """
import sys
from pyengine.catalog.claim import claim_run
claim = claim_run(sys.argv[1])
print("owned", claim.generation, flush=True)
sys.stdin.read()
"""

_OWN_AND_FORK_IN_C = """
import ctypes, signal, sys
from pyengine.catalog.claim import claim_run
claim = claim_run(sys.argv[1])
print("owned", claim.generation, flush=True)
child = ctypes.PyDLL(None).fork()
if child == 0:
    signal.alarm(60)  # whatever becomes of the test
    signal.pause()
print(child, flush=True)
sys.stdin.read()
"""

_WRITE = """
import sys
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.generation import writer_lock
lock = writer_lock(sys.argv[1], int(sys.argv[2]))
if sys.argv[3:] == ["inside"]:
    inside = commit_lock(sys.argv[1], int(sys.argv[2]))
    inside.__enter__()
print("writing", flush=True)
sys.stdin.readline()
"""

_LOCK = """
import sys
from pyengine.fs.locks import OfdLock
lock = OfdLock.acquire(sys.argv[1] + "/lock", timeout=60)
print("locked", flush=True)
sys.stdin.readline()
"""

_CLAIM = """
import sys
from pyengine.catalog.claim import claim_run
from pyengine.errors import RunBusyError
try:
    claim = claim_run(sys.argv[1], wait_seconds=float(sys.argv[2]))
    print("owned", claim.generation, flush=True)
except RunBusyError as error:
    print("busy", error.pid, flush=True)
"""


@pytest.fixture
def run_dir(tmp_path):
    return str(tmp_path / "run")


def _own_and_die(run_dir):
    """Claim in a process that is then killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", _OWN, run_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline().startswith("owned")
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def _records(path):
    with open(path) as file:
        records = [json.loads(line) for line in file]
    return [{key: value for key, value in one.items() if key != "xxh3_64"} for one in records]


def test_generations_rise_and_are_recorded(run_dir):
    for number in (1, 2, 3):
        with claim_run(run_dir) as claim:
            assert claim.generation == number
            path = generation.generation_path(run_dir, number)
            record = _records(path)[0]
            assert (record["role"], record["pid"]) == ("owner", os.getpid())
        assert not is_locked(path)


def test_run_id_stays(run_dir):
    with claim_run(run_dir) as first:
        pass
    with claim_run(run_dir) as second:
        assert second.run_id == first.run_id == read_run_id(run_dir)


def test_second_claim_in_one_process_is_refused(run_dir, tmp_path):
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    with claim_run(run_dir):
        for path in (run_dir, str(tmp_path / "alias")):
            with pytest.raises(RunBusyError, match="this process") as caught:
                claim_run(path, wait_seconds=0)
            assert caught.value.pid == os.getpid()
    claim_run(run_dir).release()


def test_living_owner_in_another_process_is_named(run_dir, spawn):
    owner = spawn(_OWN, run_dir, expect="owned 1")
    with pytest.raises(RunBusyError) as caught:
        claim_run(run_dir, wait_seconds=0)
    assert caught.value.pid == owner.pid
    assert caught.value.host
    assert caught.value.since.startswith("20")
    assert scan.claimed_generation(run_dir) == 1


def test_a_fork_that_python_did_not_see_is_named_in_place_of_the_dead_owner(run_dir, spawn):
    owner = spawn(_OWN_AND_FORK_IN_C, run_dir, expect="owned 1")
    child = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    try:
        for attempt in (lambda: claim_run(run_dir, wait_seconds=0), lambda: _enter_idle(run_dir)):
            with pytest.raises(RunBusyError, match=f"pid {owner.pid}, which has ended") as caught:
                attempt()
            assert caught.value.pid == child
            assert f"pid {child} " in str(caught.value)
    finally:
        os.kill(child, signal.SIGKILL)


def _enter_idle(run_dir):
    with idle_lock(run_dir, timeout=0):
        pytest.fail("entered")


def test_killed_owner_frees_the_run(run_dir):
    _own_and_die(run_dir)
    with claim_run(run_dir, wait_seconds=0) as claim:
        assert claim.generation == 2


def test_release_is_idempotent_and_leaves_a_later_claim_alone(run_dir):
    first = claim_run(run_dir)
    first.release()
    with claim_run(run_dir) as second:
        first.release()
        assert second.is_held
        with pytest.raises(RunBusyError):
            claim_run(run_dir, wait_seconds=0)


def test_other_code_that_copies_the_run_does_not_free_it(run_dir, tmp_path, spawn):
    with claim_run(run_dir):
        shutil.copytree(run_dir, tmp_path / "copy", symlinks=True)
        claimant = spawn(_CLAIM, run_dir, 0)
        assert claimant.stdout.readline() == f"busy {os.getpid()}\n"
        with claim_run(str(tmp_path / "copy"), wait_seconds=0) as copy:
            assert copy.generation == 2


def test_forked_child_neither_owns_nor_keeps_the_run(run_dir):
    claim = claim_run(run_dir)
    reader, writer = os.pipe()
    ready_reader, ready_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        claim.release()
        os.write(ready_writer, b"0" if claim.is_held else b"1")
        os.read(reader, 1)
        os._exit(0)
    assert os.read(ready_reader, 1) == b"1"
    with pytest.raises(RunBusyError):
        claim_run(run_dir, wait_seconds=0)
    claim.release()
    with claim_run(run_dir, wait_seconds=0) as again:
        assert again.generation == 2
    for fd in (reader, writer, ready_reader, ready_writer):
        os.close(fd)
    os.waitpid(child, 0)


def test_forked_child_may_claim_another_run(run_dir, tmp_path):
    with claim_run(run_dir):
        child = os.fork()
        if child == 0:
            claim_run(str(tmp_path / "other"))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_draining_writer_is_waited_for(run_dir, spawn):
    _own_and_die(run_dir)
    writer = spawn(_WRITE, run_dir, 1, expect="writing")
    claimant = spawn(_CLAIM, run_dir, 60)
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert claimant.stdout.readline() == "owned 2\n"
    assert writer.wait() == 0


@pytest.mark.parametrize("where", [[], ["inside"]], ids=["before the lock", "inside the lock"])
def test_stopped_writer_is_ended(run_dir, spawn, where):
    _own_and_die(run_dir)
    writer = spawn(_WRITE, run_dir, 1, *where, expect="writing")
    writer.send_signal(signal.SIGSTOP)
    with claim_run(run_dir, wait_seconds=0.1) as claim:
        assert claim.generation == 2
    assert writer.wait() == -signal.SIGKILL


def test_writer_of_another_host_is_never_ended(run_dir, spawn):
    _own_and_die(run_dir)
    writer = spawn(_WRITE, run_dir, 1, expect="writing")
    writer.send_signal(signal.SIGSTOP)
    path = generation.generation_path(run_dir, 1)
    lines = _records(path)
    lines[-1]["host"] = "elsewhere"
    with open(path, "r+b") as file:  # the same inode: its locks stay
        file.truncate()
        file.write(b"".join(map(record_bytes, lines)))
    with pytest.raises(RunBusyError) as caught:
        claim_run(run_dir, wait_seconds=0.1)
    assert caught.value.host == "elsewhere"
    assert writer.poll() is None


def test_pid_that_was_reused_is_never_ended(run_dir, spawn):
    _own_and_die(run_dir)
    writer = spawn(_WRITE, run_dir, 1, expect="writing")
    bystander = spawn("print('up', flush=True); input()", expect="up")
    writer.send_signal(signal.SIGSTOP)
    path = generation.generation_path(run_dir, 1)
    record = {**_records(path)[-1], "pid": bystander.pid}
    with open(path, "ab") as file:
        file.write(record_bytes(record))
    with pytest.raises(RunBusyError):
        claim_run(run_dir, wait_seconds=0.1)
    assert bystander.poll() is None
    assert writer.poll() is None


def test_writer_that_works_is_not_ended(run_dir, spawn):
    _own_and_die(run_dir)
    busy = _WRITE.replace("sys.stdin.readline()", "while True: pass")
    writer = spawn(busy, run_dir, 1, expect="writing")
    with pytest.raises(RunBusyError, match="drained"):
        claim_run(run_dir, wait_seconds=1)
    assert writer.poll() is None


def test_writer_that_a_disk_keeps_waiting_is_not_ended(run_dir, spawn):
    """It looks idle: no processor time, no bytes. Here it sleeps, as in a delayed fsync."""
    _own_and_die(run_dir)
    writer = spawn(_WRITE, run_dir, 1, expect="writing")
    said = r"drained by the writer.*in state S.*drain_wait="
    with pytest.raises(RunBusyError, match=said) as told:
        claim_run(run_dir, wait_seconds=0.3)
    assert told.value.pid == writer.pid
    assert writer.poll() is None


@pytest.mark.parametrize("takeover", [False, True])
def test_a_stranger_in_the_commit_lock_is_named_and_nobody_is_ended(run_dir, spawn, takeover):
    _own_and_die(run_dir)
    writer = spawn(_WRITE, run_dir, 1, expect="writing")
    stranger = spawn(_LOCK, run_dir, expect="locked")
    stranger.send_signal(signal.SIGSTOP)
    with pytest.raises(RunBusyError, match="no process of the run") as told:
        claim_run(run_dir, wait_seconds=0.1, takeover=takeover)
    assert told.value.pid == stranger.pid
    assert stranger.poll() is None
    assert writer.poll() is None
    with (
        pytest.raises(RunBusyError, match="commit lock") as told,
        commit_lock(run_dir, 1, timeout=0),
    ):
        pytest.fail("entered")
    assert told.value.pid == stranger.pid


def test_a_writer_of_an_older_generation_stopped_in_the_commit_lock_is_ended(run_dir, spawn):
    _own_and_die(run_dir)
    older = spawn(_WRITE, run_dir, 1, "inside", expect="writing")
    open(generation.generation_path(run_dir, 2), "w").close()
    newer = spawn(_WRITE, run_dir, 2, expect="writing")
    older.send_signal(signal.SIGSTOP)
    with pytest.raises(RunBusyError, match="drained") as told:
        claim_run(run_dir, wait_seconds=0.1)
    assert older.wait() == -signal.SIGKILL
    assert told.value.pid == newer.pid
    assert newer.poll() is None


def test_torn_generation_file_stops_nobody(run_dir):
    with claim_run(run_dir):
        pass
    with open(generation.generation_path(run_dir, 1), "r+b") as file:
        file.truncate(10)
    with claim_run(run_dir) as claim:
        assert claim.generation == 2


@pytest.mark.parametrize("left", [1, 40, -1], ids=["begun", "half", "all but its line break"])
def test_a_line_behind_a_torn_one_is_read(run_dir, left):
    with claim_run(run_dir):
        path = generation.generation_path(run_dir, 1)
        owned = os.path.getsize(path)
        generation.append_party(path, "writer")
        with open(path, "r+b") as file:
            file.truncate(owned + left if left > 0 else os.path.getsize(path) + left)
        generation.append_party(path, "writer")
        for role in ("owner", "writer"):
            assert generation.read_party(run_dir, 1, role).identity.pid == os.getpid()


@pytest.mark.parametrize(
    ("op", "path"), [("create", "*/generations/*"), ("write", "*/generations/*"), ("fsync", "*")]
)
def test_a_claim_on_a_full_disk_is_refused_in_numbers(run_dir, monkeypatch, op, path):
    claim_run(run_dir).release()
    rule = Rule(op=op, path=path, action="error", errno="ENOSPC", times=0)
    with monkeypatch.context() as patched:
        patched.setattr(door, "active", FaultDoor([rule]))
        with pytest.raises(NoSpaceError, match="generations") as caught:
            claim_run(run_dir, wait_seconds=0)
    assert caught.value.needed_bytes > 0
    assert caught.value.free_bytes > 0
    claim_run(run_dir, wait_seconds=0).release()


def test_a_new_run_on_a_full_disk_is_refused_in_numbers(run_dir, monkeypatch):
    rule = Rule(op="create", path="*/lock", action="error", errno="ENOSPC", times=0)
    with monkeypatch.context() as patched:
        patched.setattr(door, "active", FaultDoor([rule]))
        with pytest.raises(NoSpaceError):
            claim_run(run_dir)
    claim_run(run_dir).release()


def test_next_generation_is_above_everything_seen(run_dir, make):
    with claim_run(run_dir):
        pass
    snapshots = os.path.join(run_dir, names.SNAPSHOTS)
    os.mkdir(os.path.join(snapshots, names.snapshot_name(1, 7, 1)))
    os.mkdir(os.path.join(snapshots, names.temporary_name(9, "x")))
    with claim_run(run_dir) as claim:
        assert claim.generation == 10


def test_stale_owner_cannot_enter_the_commit_lock(run_dir):
    with claim_run(run_dir):
        generation_dir = os.path.join(run_dir, names.GENERATIONS)
        open(os.path.join(generation_dir, "0002"), "w").close()
        with pytest.raises(StaleGenerationError), commit_lock(run_dir, 1):
            pytest.fail("entered")


def test_second_writer_of_a_generation_waits(run_dir, spawn):
    with claim_run(run_dir):
        writer = spawn(_WRITE, run_dir, 1, expect="writing")
        with pytest.raises(TimeoutError):
            generation.writer_lock(run_dir, 1, timeout=0.05)
        writer.kill()
        writer.wait()
        with generation.writer_lock(run_dir, 1, timeout=10) as lock:
            assert lock.is_held
            assert generation.read_party(run_dir, 1, "writer").identity.pid == os.getpid()
            assert generation.read_party(run_dir, 1, "owner").identity.pid == os.getpid()


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_rank_is_refused_the_directory_of_another(run_dir, monkeypatch, is_alive):
    monkeypatch.setenv("RANK", "0")
    claim = claim_run(run_dir)
    if not is_alive:
        claim.release()
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(RunDirectoryError, match="rank 2"):
        claim_run(run_dir)
    claim.release()


def test_ranks_may_have_directories_of_their_own(tmp_path, monkeypatch):
    for _ in range(2):
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            claim_run(str(tmp_path / f"rank{rank}")).release()


def test_single_snapshot_is_not_a_run(run, make):
    info = make.publish(run.run_dir)
    with pytest.raises(RunDirectoryError, match="single snapshot"):
        claim_run(info.path)


def test_file_is_not_a_run(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunDirectoryError):
        claim_run(str(tmp_path / "file"))


def test_damaged_run_json_is_typed_and_claims_nothing(run_dir):
    claim_run(run_dir).release()
    with open(os.path.join(run_dir, "run.json"), "w") as file:
        file.write("{")
    with pytest.raises(RunDirectoryError):
        claim_run(run_dir)
    assert scan.claimed_generation(run_dir) == 1


def test_racing_claimants_get_one_owner(run_dir, spawn):
    claimants = [spawn(_CLAIM + "sys.stdin.read()", run_dir, 30) for _ in range(4)]
    answers = sorted(child.stdout.readline().split()[0] for child in claimants)
    assert answers == ["busy", "busy", "busy", "owned"]


def test_descriptors_do_not_pile_up(run_dir):
    claim_run(run_dir).release()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        claim_run(run_dir).release()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("where", ["", "snapshots", "segments", "generations"])
def test_a_directory_that_others_can_write_to_is_refused(run_dir, where):
    claim_run(run_dir).release()
    path = os.path.join(run_dir, where).rstrip("/")
    os.chmod(path, 0o777)
    with pytest.raises(RunDirectoryError, match="chmod o-w"):
        claim_run(run_dir)
    os.chmod(path, 0o775)
    claim_run(run_dir).release()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_directory_of_another_user_is_refused(run_dir):
    claim_run(run_dir).release()
    os.chown(os.path.join(run_dir, "snapshots"), 12345, -1)
    with pytest.raises(RunDirectoryError, match="belongs to user 12345"):
        claim_run(run_dir)


def test_no_umask_makes_a_run_that_is_refused(run_dir):
    before = os.umask(0)
    try:
        for _ in range(2):
            claim_run(run_dir).release()
    finally:
        os.umask(before)
