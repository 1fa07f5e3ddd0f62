"""What the kernel sees of a real run is what the door saw: nothing else changes the directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.lives import LIVES

_RUN = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from crash.lives import LIVES, Faults, Log, live
rule = ({"op": "changes", "action": "record", "file": sys.argv[3]},)
log = Log(sys.argv[4])
live(sys.argv[2], log, 1, LIVES[int(sys.argv[5])], Faults(rule, rule, every_writer=True))
"""

_OPS = {
    "pwrite64": "pwrite",
    "pwritev": "pwrite",
    "pwritev2": "pwrite",
    "write": "write",
    "writev": "write",
    "sendfile": "sendfile",
    "copy_file_range": "copy_file_range",
    "splice": "splice",
    "fsync": "fsync",
    "fdatasync": "fdatasync",
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "link": "link",
    "linkat": "link",
    "unlink": "unlink",
    "mkdir": "mkdir",
    "mkdirat": "mkdir",
    "rmdir": "rmdir",
    "symlink": "symlink",
    "symlinkat": "symlink",
    "ftruncate": "ftruncate",
    "truncate": "truncate",
    "fallocate": "fallocate",
    "mmap": "mmap",
}
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+)")


def _whole_lines(trace: Path) -> Iterator[str]:
    """Yield the calls of a trace, those too that another thread's came in between."""
    begun: dict[str, str] = {}
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        pid = line.split(" ", 1)[0]
        head, unfinished, _ = line.partition(" <unfinished ...>")
        resumed = re.match(r"\d+ +<\.\.\. \w+ resumed>(.*)", line)
        if unfinished:
            begun[pid] = head
        elif resumed is not None:
            yield begun.pop(pid, "") + resumed[1]
        else:
            yield line


def _traced(trace: Path, run_dir: str) -> Counter[str]:
    """Count the successful calls that changed something below the run directory."""
    counts: Counter[str] = Counter()
    for line in _whole_lines(trace):
        match = _CALL.match(line)
        if match is None or match[3].startswith("-") or run_dir not in match[2]:
            continue
        name, arguments = match[1], match[2]
        # The writer's log: words to people, no part of any snapshot.
        if re.search(r"/generations/\d+\.log", arguments):
            continue
        if name in ("open", "openat"):
            counts["create"] += "O_CREAT" in arguments
        elif name == "unlinkat":
            counts["rmdir" if "AT_REMOVEDIR" in arguments else "unlink"] += 1
        elif name == "ioctl":
            counts["clone"] += "FICLONE" in arguments
        elif name == "mmap":
            counts["writable map"] += "PROT_WRITE" in arguments and "MAP_SHARED" in arguments
        elif name in _OPS:
            counts[_OPS[name]] += 1
    return +counts


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
def test_the_kernel_sees_no_change_that_the_door_did_not_make(tmp_path: Path) -> None:
    run_dir = os.path.realpath(tmp_path / "run")
    record, trace = tmp_path / "record", tmp_path / "trace"
    tests = str(Path(__file__).resolve().parent.parent)
    calls = ",".join(("open", "openat", "unlinkat", "ioctl", *_OPS))
    for life in ("0", "1"):  # the second one is restored, wraps, prunes and drains
        script = [
            sys.executable,
            "-c",
            _RUN,
            tests,
            run_dir,
            str(record),
            str(tmp_path / "log"),
            life,
        ]
        command = ["strace", "-f", "-y", "-s", "0", "-qq", "-A", "-o", str(trace)]
        done = subprocess.run(
            [*command, "-e", f"trace={calls}", *script], capture_output=True, text=True, check=False
        )
        if "ptrace" in done.stderr:
            pytest.skip("strace may not trace here")
        ended = -signal.SIGKILL if LIVES[int(life)].end == "kill" else 0
        assert done.returncode == ended, done.stderr
    lines = map(json.loads, record.read_text(encoding="utf-8").splitlines())
    seen = Counter(line["op"] for line in lines if line["paths"][0].startswith(run_dir))
    traced = _traced(trace, run_dir)
    # A call that failed is recorded all the same: a directory or the lock that exists already, a
    # write that O_DIRECT refuses. No write is cut short here, so that each takes one call.
    assert traced.keys() <= seen.keys(), traced - seen
    assert traced["write"]
    assert traced["pwrite"]
    for op in traced:
        assert traced[op] <= seen[op], op
    for op in ("fsync", "rename", "link", "symlink"):
        assert traced[op] == seen[op], op
