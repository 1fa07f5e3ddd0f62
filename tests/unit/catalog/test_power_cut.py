"""A real power cut: an ext4 image is shut down without flushing anything, and mounted again."""

from __future__ import annotations

import fcntl
import os
import struct

import pytest
from crash.loop_disk import LoopDisk, why_not

from pyengine.catalog import commit, lines, scan
from pyengine.catalog.claim import claim_run
from pyengine.catalog.verify import verify_snapshot
from pyengine.fs import door

_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2

pytestmark = pytest.mark.root


@pytest.fixture
def disk():
    reason = why_not("ext4")
    if reason is not None:
        pytest.skip(reason)
    with LoopDisk("ext4") as disk:
        yield disk


def cut_power(disk):
    """Shut the file system down without flushing anything, and mount it again."""
    fd = os.open(disk.path, os.O_RDONLY)
    fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    os.close(fd)
    disk.remount()


class CutBefore(Exception):
    """Raised in place of a call, at the moment the power goes."""


class CuttingDoor(door.Door):
    """Count the calls that make things durable or visible, and stop before the n-th."""

    def __init__(self, nth):
        self.left = nth

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise CutBefore

    def fsync(self, fd):
        self._count()
        super().fsync(fd)

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def unlink(self, path, *, dir_fd=None):
        self._count()
        super().unlink(path, dir_fd=dir_fd)


def test_commit_that_returned_survives_and_one_that_did_not_is_whole_or_absent(
    disk, make, monkeypatch
):
    run_dir = os.path.join(disk.path, "run")
    with claim_run(run_dir) as claim:
        line = lines.open_line(run_dir, claim.generation, parent=None, start_rows={}).id
        old = make.publish(run_dir, sequence=1, line=line, keep_last=1)
    cut_power(disk)
    assert scan.newest_restorable(run_dir).name == old.name
    assert verify_snapshot(old.path) == []

    nth = 0
    is_done = False
    while not is_done:
        claim = claim_run(run_dir)
        number = claim.generation
        parent = scan.newest_restorable(run_dir)
        line = lines.open_line(run_dir, number, parent=parent, start_rows={}).id
        before = make.publish(run_dir, generation=number, sequence=1, line=line, keep_last=1)
        staged, manifest = make.stage(run_dir, generation=number, sequence=2, line=line)
        make_directories_durable(staged)
        monkeypatch.setattr(door, "active", CuttingDoor(nth))
        visible = []
        try:
            commit.publish_snapshot(
                run_dir,
                staged,
                manifest,
                begin=lambda: True,
                keep_last=1,
                visible=visible.append,
            )
            is_done = True
        except CutBefore:
            pass
        monkeypatch.undo()
        claim.release()
        cut_power(disk)
        newest = scan.newest_restorable(run_dir)
        assert newest.name == (manifest.name if visible else before.name)
        assert scan.scan_snapshots(run_dir).problems == ()
        assert verify_snapshot(newest.path) == []
        nth += 1
    assert nth > 12


def make_directories_durable(staged):
    """fsync every directory of a staged snapshot, as a writer does before it commits."""
    for base, _, _ in os.walk(staged, topdown=False):
        fd = os.open(base, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    fd = os.open(os.path.dirname(staged), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
