"""A real file system on a loop device whose power can be cut; and the scenario on it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace

from crash.faulty_lives import Case, Stage, await_end, copy_tree, marked
from crash.lives import LIVES, Faults, Log, go_on, in_child, live
from crash.oracle import bad_snapshots, judge_all, left_over
from pyengine.fs import faults

KINDS = {"ext4": 64, "xfs": 400}
"""Kind of file system: size of its image in MiB (smaller ones mkfs.xfs refuses)."""


@functools.cache
def why_not(kind: str) -> str | None:
    """Return why no such disk can be made here, or None."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is missing"
    try:
        with LoopDisk(kind):
            return None
    except OSError as error:
        return str(error)


class LoopDisk:
    """An image on a loop device, mounted at `path`. A context manager."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._base = tempfile.mkdtemp(prefix="loop-disk-", dir="/dev/shm")
        self._image = f"{self._base}/image"
        self.path = f"{self._base}/disk"

    def __enter__(self) -> LoopDisk:
        os.mkdir(self.path)
        with open(self._image, "wb") as file:
            file.truncate(KINDS[self._kind] << 20)
        try:
            subprocess.run([f"mkfs.{self._kind}", "-q", self._image], check=True)
            self._mount()
        except BaseException:
            shutil.rmtree(self._base)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()
        shutil.rmtree(self._base)

    def remount(self) -> None:
        """Take the disk away and bring it back, as after a power cut: its journal is replayed.

        Again until it is really new: a mount namespace that somebody copied meanwhile holds on to
        the old one, which refuses everything.
        """
        deadline = time.monotonic() + 30
        while True:
            self._unmount()
            self._mount()
            try:
                os.listdir(self.path)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _unmount(self) -> None:
        """Again while it is busy: a process that was killed may take a moment to let go of it."""
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", self.path], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                subprocess.run(["umount", self.path], check=True)
            time.sleep(0.1)

    def _mount(self) -> None:
        command = ["mount", "-t", self._kind, "-o", "loop", self._image, self.path]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        if done.returncode != 0:
            raise OSError(f"no {self._kind} can be mounted here: {done.stderr.strip()}")


def cut_power(stage: Stage, disk: LoopDisk, case: Case) -> str | None:
    """Cut the power at a call, end both processes, remount, go on; what is wrong, or None."""
    place = f"{disk.path}/{case.nth}-{case.when}"
    logs = tempfile.mkdtemp(prefix="crash-tests-", dir="/dev/shm")
    try:
        copy_tree(stage.before(case.life), place)
        subprocess.run(["sync", "--file-system", place], check=True)  # and no other disk
        log = Log(f"{logs}/log")
        if case.life:
            shutil.copy(f"{place}/log", log.path)
        before = len(log.read())
        with marked() as token:
            life = LIVES[case.life]
            code = in_child(lambda: live(f"{place}/run", log, case.seed, life, _plan(case)))
            if code not in (0, -signal.SIGKILL):
                return f"the life ended with {code} before the power was cut"
            await_end(token)
            if code == 0:  # threads take fewer calls at times: it ends without the n-th
                faults.cut_power(disk.path)
            disk.remount()
            code = in_child(lambda: go_on(f"{place}/run", log, case.seed))
            await_end(token)
        if code != 0:
            return f"going on ended with {code}; {log.read()[-3:]}"
        run_dir = f"{place}/run"
        return judge_all(log.read(), before) or bad_snapshots(run_dir) or left_over(run_dir)
    finally:
        shutil.rmtree(logs)
        shutil.rmtree(place, ignore_errors=True)


def _plan(case: Case) -> Faults:
    faults = replace(case, victim="both").faults()
    (kill,) = faults.trainer + faults.writer
    rules = ({**kill, "action": "power_cut", "signal_pid": None}, kill)
    return Faults(trainer=rules) if faults.trainer else Faults(writer=rules)
