"""The disk of one chaos run: a small tmpfs where root allows, which can be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

TMPFS_MB = 64


class Disk:
    """What lies in `directory`/disk, and a file there that fills it."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / "disk" / "filler"

    def fill(self) -> int:
        """Write a file until the disk is full; return its bytes."""
        written = 0
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        written += os.write(fd, bytes(size))
        finally:
            os.close(fd)
        return written

    def empty(self) -> None:
        """Remove that file."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def disk(directory: Path) -> Iterator[str | None]:
    """Make `directory`/disk, on a small tmpfs where that is allowed; give the reason where not."""
    path = directory / "disk"
    path.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MB}m,mode=0700", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    reason = None if done.returncode == 0 else f"no tmpfs can be mounted: {done.stderr.strip()}"
    try:
        yield reason
    finally:
        if reason is None:
            subprocess.run(["umount", "-l", str(path)], check=False)
