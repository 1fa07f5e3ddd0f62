"""Memory is reserved with signals held back: a fast interval timer cannot keep it from ending."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

# Stands for a kernel that gives up at every signal, with a timer that is always faster.
INTERRUPTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/types.h>
static int reserve(const char *name, int fd, off_t offset, off_t bytes) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  if (!sigismember(&blocked, SIGALRM)) return EINTR;
  return ((int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, name))(fd, offset, bytes);
}
int posix_fallocate(int fd, off_t o, off_t n) { return reserve("posix_fallocate", fd, o, n); }
int posix_fallocate64(int fd, off_t o, off_t n) { return reserve("posix_fallocate64", fd, o, n); }
"""

PROGRAM = """
import signal
import pyengine
from pyengine.shm.arena import Arena
with Arena.create(1 << 20, "test") as arena:
    arena.reserve(0, 1 << 20)
with pyengine.ReplayBuffer({"id": "int64"}, 1 << 16) as ring:
    for number in range(100):
        ring.add(id=number)
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_timer_cannot_interrupt_a_reservation_for_ever(tmp_path):
    source, library = tmp_path / "interrupted.c", tmp_path / "interrupted.so"
    source.write_text(INTERRUPTED)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library)},
        check=True,
        timeout=60,
    )
