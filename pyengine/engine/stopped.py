"""For how long a process has been stopped by a signal. Pure: clock and status are given.

Only looks tell: a process that ran between two of them has used processor time.
"""

from __future__ import annotations

from pyengine.fs.process import ProcessStatus

_STOPPED_BY_SIGNAL = "T"
"""Not "t": under a debugger."""


class StopWatch:
    """What was seen of one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._since: float | None = None
        self._cpu_ticks = -1

    def look(self, now: float, status: ProcessStatus | None) -> float:
        """Take note of a status; return for how many seconds the process was seen stopped."""
        if status is None or status.state != _STOPPED_BY_SIGNAL:
            self._since = None
            return 0.0
        if self._since is None or status.cpu_ticks != self._cpu_ticks:
            self._since = now
            self._cpu_ticks = status.cpu_ticks
        return now - self._since
