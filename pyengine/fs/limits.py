"""The limits of this process (setrlimit) behind errors of the system, for messages to people."""

from __future__ import annotations

import errno
import os
import resource

_LIMITS = {
    errno.EFBIG: ("RLIMIT_FSIZE", resource.RLIMIT_FSIZE, "bytes a file", "ulimit -f unlimited"),
    errno.EMFILE: ("RLIMIT_NOFILE", resource.RLIMIT_NOFILE, "open files", "ulimit -n"),
}


def explain(error: OSError | int) -> str:
    """Return what an error says, and which limit it came from with the way out, if from one."""
    number = error if isinstance(error, int) else error.errno
    text = str(error) if number is None else os.strerror(number)
    if number not in _LIMITS:
        return text
    name, limit, unit, command = _LIMITS[number]
    soft = resource.getrlimit(limit)[0]
    if soft == resource.RLIM_INFINITY:
        return text
    return f"{text}: {name} allows {soft} {unit}; raise it before the start ({command})"
