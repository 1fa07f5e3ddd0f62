"""The trainer as its writer sees it: a process that may die at any moment."""

from __future__ import annotations

import os
import select


class Trainer:
    """The parent process, watched through a pidfd, which this object owns."""

    def __init__(self) -> None:
        pid = os.getppid()
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.pidfd = _ended()
        else:
            # Had it died before, its number might be another process's by now, but then it is no
            # longer our parent.
            if os.getppid() != pid:
                os.close(self.pidfd)
                self.pidfd = _ended()

    def is_dead(self) -> bool:
        """Whether the trainer has ended."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Wait for the trainer's end; whether it came."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(int(seconds * 1000)))

    def close(self) -> None:
        """Stop watching."""
        os.close(self.pidfd)


def _ended() -> int:
    """Return a descriptor that is readable from the start, as a dead process's pidfd is."""
    return os.eventfd(1, os.EFD_CLOEXEC)
