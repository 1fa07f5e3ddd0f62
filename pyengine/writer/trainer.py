"""The trainer as its writer sees it: a process that may die at any moment."""

from __future__ import annotations

import os
import select


class Trainer:
    """The process that started this one, watched through its pidfd, which this object owns.

    The descriptor is inherited: a parent that died before anybody here looked has no process id by
    which it could be told from the one that took its children over.
    """

    def __init__(self, pidfd: int) -> None:
        os.set_inheritable(pidfd, False)
        self.pidfd = pidfd

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
