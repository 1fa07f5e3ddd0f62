"""How much of the processors the writer takes: the gaps of a trainer, and its share without one.

Two weights decide. nice counts among the threads of one scheduling group; where the kernel makes
each session a group (CONFIG_SCHED_AUTOGROUP, as on most desktops and servers outside of
containers), the writer is one for itself, and what counts is the nice of the group, which
/proc/<pid>/autogroup takes. So both are set. Nothing here can fail a writer: where the kernel has
no such file, or refuses, it runs as it is.
"""

from __future__ import annotations

import contextlib
import os
import time

from pyengine import config

_LOWEST_NICE = 19
_ATTEMPTS = 10
_PAUSE_SECONDS = 0.11
"""Who is not root can make one change in a tenth of a second, in the whole machine."""


class Priority:
    """The priority of this process, which leads its own session. Main thread only."""

    def __init__(self) -> None:
        self._nice: int | None = None
        self._group_nice: int | None = None

    def yield_to_trainer(self) -> None:
        """Take what the trainer, this process's parent, leaves. Before any thread is made."""
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        with contextlib.suppress(OSError):
            os.nice(config.WRITER_NICE)
        with contextlib.suppress(OSError):
            # Woken by the trainer, it does not take that one's core at once: that was 1 ms of every
            # seventh tick (2026-11-30).
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if os.getsid(0) != os.getpid():
            return  # a group of others too
        self._group_nice = _read_group_nice(os.getppid())
        if self._group_nice is not None:
            _write_group_nice(min(self._group_nice + config.WRITER_NICE, _LOWEST_NICE))

    def yield_to_nobody(self) -> None:
        """Take the share that the trainer had: it has ended, or waits for this process to end.

        nice goes back only for who may do that; the group's may always.
        """
        if self._group_nice is not None:
            _write_group_nice(self._group_nice)
        if self._nice is None:
            return
        with contextlib.suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), self._nice)


def _read_group_nice(pid: int) -> int | None:
    """Return the nice of a process's group ("/autogroup-25 nice 0"), None where there is none:
    the file of a process outside of any, such as that which adopts orphans, is empty."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/autogroup") as file:
        words = file.read().split()
        return int(words[-1]) if words else None
    return None


def _write_group_nice(nice: int) -> None:
    """Set the nice of this process's group; below 0 only where the process may."""
    for _ in range(_ATTEMPTS):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(nice))
            return
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:
            return
