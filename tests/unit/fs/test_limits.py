"""Limits of the process: an error that comes from one names it and the way out."""

from __future__ import annotations

import errno
import subprocess
import sys

from pyengine.fs.limits import explain

_LIMITED = """
import os, resource, sys
from pyengine.errors import SharedMemoryError
from pyengine.fs import durable
from pyengine.shm.arena import Arena
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
try:
    durable.write_file(sys.argv[1], "file", [b"x" * 9000])
except OSError as error:
    print(error.errno, error)
try:
    Arena.create(9000, "test")
except SharedMemoryError as error:
    print(error.needed_bytes, error)
print(os.listdir(sys.argv[1]))
"""


def test_what_is_too_large_for_the_limit_names_it(tmp_path):
    command = [sys.executable, "-c", _LIMITED, str(tmp_path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    on_disk, in_memory, left = out.splitlines()
    assert on_disk.startswith(f"{errno.EFBIG} ")
    assert in_memory.startswith("9000 ")
    for line in (on_disk, in_memory):
        assert "RLIMIT_FSIZE allows 8192 bytes a file" in line
        assert "ulimit -f unlimited" in line
    assert str(tmp_path) in on_disk
    assert left == "[]"


def test_other_errors_are_what_the_system_says():
    assert explain(errno.ENOSPC) == explain(OSError(errno.ENOSPC, "x")) == "No space left on device"
    assert explain(TimeoutError("no answer")) == "no answer"
