"""What kind of file system a path lies on."""

from __future__ import annotations

import os

_REMOTE = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "beegfs", "gpfs")
)


def filesystem_type(path: str) -> str:
    """Return the type of the file system `path` lies on, as /proc names it ("" where unknown)."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(path)
    best, kind = "", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields = before.split()
            point = fields[4].replace("\\040", " ")
            covers = real == point or real.startswith(point.rstrip("/") + "/")
            if (fields[2] == wanted or covers) and len(point) >= len(best) and covers:
                best, kind = point, after.split()[0]
    return kind


def is_remote(path: str) -> bool:
    """Return whether the path lies on a network or FUSE file system, where maps may go stale."""
    kind = filesystem_type(path)
    return kind in _REMOTE or kind == "fuse" or kind.startswith("fuse.")
