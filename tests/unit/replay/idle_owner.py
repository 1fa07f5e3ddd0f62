"""A ring's owner that has nothing to do."""

from __future__ import annotations


class IdleOwner:
    """An engine without snapshots."""

    def poll(self):
        pass

    def cancel_holding(self, reason):
        return 0

    def committing(self):
        return ()
