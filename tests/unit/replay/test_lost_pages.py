"""A page of a mapped segment file that cannot be had is an error of the call, never SIGBUS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from mapped_rings import block_place, forget_pages, mapped_ring, new_ring, path_of, rows, saved

from pyengine.errors import DamageError, TruncatedFileError

HERE = Path(__file__).parent


def cut(path, offset):
    """Cut a file while its pages are mapped and verified; they are gone from every mapping."""
    forget_pages(path)
    os.truncate(path, offset)


def test_a_file_cut_after_its_rows_were_verified_is_a_typed_error(tmp_path):
    with mapped_ring(tmp_path) as ring:
        assert ring.gather(ring.refs())["id"].tolist() == list(range(4096))
        path, (offset, _) = path_of(ring, 3), block_place(ring, "obs")
        cut(path, offset)
        per_segment = ring.storage.plan.segment_rows
        with pytest.raises(TruncatedFileError) as caught:
            ring.gather([3 * per_segment + 5])
        assert (caught.value.path, caught.value.got) == (str(path), offset)
        with pytest.raises(TruncatedFileError):
            ring.sample(20_000)
        with pytest.raises(TruncatedFileError):
            np.asarray(ring.column("obs"))
        others = np.delete(ring.refs(), np.s_[3 * per_segment : 4 * per_segment])
        assert ring.gather(others)["id"].tolist() == others.tolist()


def test_a_file_cut_before_its_rows_were_touched_is_a_typed_error(tmp_path):
    with mapped_ring(tmp_path) as ring:
        path = path_of(ring, 0)
        cut(path, 4096)
        with pytest.raises(DamageError) as caught:
            ring.gather([0])
        assert caught.value.path == str(path)


def test_threads_that_gather_at_once_each_get_their_error(tmp_path):
    with mapped_ring(tmp_path) as ring:
        ring.gather(ring.refs())
        per_segment = ring.storage.plan.segment_rows
        for segment in range(0, 8, 2):
            cut(path_of(ring, segment), 4096)
        outcomes = []
        barrier = threading.Barrier(4)

        def gather():
            barrier.wait()
            for i in range(200):
                segment = i % 8
                try:
                    batch = ring.gather(np.arange(3) + segment * per_segment)
                    outcomes.append((segment, batch["id"].tolist()[0] == segment * per_segment))
                except TruncatedFileError:
                    outcomes.append((segment, "cut"))

        threads = [threading.Thread(target=gather) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 800
        assert all(seen == ("cut" if n % 2 == 0 else True) for n, seen in outcomes)
        ring.add(**rows([4096]))  # no lock stayed behind
        assert ring[[4096]]["id"].tolist() == [4096]


def test_a_cut_file_can_be_mended_and_read_again(tmp_path):
    with mapped_ring(tmp_path) as ring:
        ring.gather(ring.refs())
        path = path_of(ring, 0)
        whole = path.read_bytes()
        cut(path, 4096)
        with pytest.raises(TruncatedFileError):
            ring.gather([0])
        path.write_bytes(whole)
        assert ring.gather([0])["id"].tolist() == [0]


def run_script(tmp_path, body):
    """Run lines in a process of their own, with a mapped ring that was read and the file cut."""
    script = textwrap.dedent(
        """
        import faulthandler, mmap, os, signal, sys
        from pathlib import Path
        from mapped_rings import mapped_ring, path_of
        from pyengine.errors import TruncatedFileError
        tmp = Path(sys.argv[1])

        def gather_lost(ring):
            try:
                ring.gather([0])
            except TruncatedFileError:
                print("typed", flush=True)

        def touch_foreign():
            with open(tmp / "foreign", "w+b") as file:
                file.truncate(8192)
                view = mmap.mmap(file.fileno(), 8192)
                file.truncate(0)
                return view[5000]
        """
    )
    (tmp_path / "script.py").write_text(script + textwrap.dedent(body))
    return subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


LOST_RING = """
    with mapped_ring(tmp) as ring:
        ring.gather(ring.refs())
        os.truncate(path_of(ring, 0), 4096)
        gather_lost(ring)
"""


def test_a_strangers_lost_page_still_kills(tmp_path):
    done = run_script(tmp_path, LOST_RING + "        touch_foreign()\n")
    assert (done.stdout, done.returncode) == ("typed\n", -signal.SIGBUS), done.stderr


def test_a_signal_that_was_sent_still_kills(tmp_path):
    done = run_script(tmp_path, LOST_RING + "        os.kill(os.getpid(), signal.SIGBUS)\n")
    assert (done.stdout, done.returncode) == ("typed\n", -signal.SIGBUS), done.stderr


@pytest.mark.parametrize("when", ["before", "after", "twice"])
def test_faulthandler_tells_of_a_strangers_page_and_of_no_other(tmp_path, when):
    body = """
    if when != "after":
        faulthandler.enable()
    with mapped_ring(tmp) as ring:
        ring.gather(ring.refs())
        if when == "twice":
            faulthandler.disable()
        if when != "before":
            faulthandler.enable()
        os.truncate(path_of(ring, 0), 4096)
        gather_lost(ring)
        gather_lost(ring)
        print("alive", file=sys.stderr, flush=True)
        touch_foreign()
    """
    done = run_script(tmp_path, f"when = {when!r}\n" + textwrap.dedent(body))
    assert (done.stdout, done.returncode) == ("typed\ntyped\n", -signal.SIGBUS), done.stderr
    before, after = done.stderr.split("alive\n")
    assert "Fatal Python error" not in before
    assert after.count("Fatal Python error: Bus error") == 1
    assert "touch_foreign" in after


def test_faulthandler_switched_off_again_does_not_hold_up_the_end(tmp_path):
    body = """
    with mapped_ring(tmp) as ring:
        ring.gather(ring.refs())
        faulthandler.enable()
        ring.gather(ring.refs())
        faulthandler.disable()
        touch_foreign()
    """
    assert run_script(tmp_path, body).returncode == -signal.SIGBUS


def test_a_forked_child_dies_of_a_strangers_page_and_the_parent_goes_on(tmp_path):
    body = """
    with mapped_ring(tmp) as ring:
        ring.gather(ring.refs())
        os.truncate(path_of(ring, 0), 4096)
        gather_lost(ring)
        child = os.fork()
        if child == 0:
            touch_foreign()
            os._exit(0)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
        gather_lost(ring)
    """
    done = run_script(tmp_path, body)
    expected = f"typed\n{int(signal.SIGBUS)}\ntyped\n"
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def test_a_forked_child_reads_files_of_its_own(tmp_path):
    body = """
    with mapped_ring(tmp) as ring:
        ring.gather(ring.refs())
        child = os.fork()
        if child == 0:
            (tmp / "child").mkdir()
            with mapped_ring(tmp / "child") as own:
                own.gather(own.refs())
                os.truncate(path_of(own, 0), 4096)
                gather_lost(own)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
    """
    done = run_script(tmp_path, body)
    assert (done.stdout, done.returncode) == ("typed\n0\n", 0), done.stderr


def test_a_file_cut_while_a_ring_is_restored_is_a_typed_error(tmp_path):
    """What is checked or copied then is read, not mapped."""
    with saved(tmp_path, 100) as files, new_ring() as ring:
        part = next(file for file in files.files.values() if file.record is None)
        os.truncate(part.path, os.path.getsize(part.path) - 8192)
        with pytest.raises(TruncatedFileError) as caught:
            files.install(ring)
        assert caught.value.path == part.path
        assert len(ring) == 0
