"""What a writer must be given before it can work, kept for the next one.

A message each, with descriptors of its own: a ring that is closed or exchanged, or an arena that is
made anew, must not take away what a restarted writer needs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pyengine.shm.channel import close_all


class Parcel:
    """A message with duplicates of descriptors, which it owns: kept for the next writer.

    Their owner may close his own at any time, and the number may then be another file's.
    """

    def __init__(self, kind: str, body: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self.kind = kind
        self.body = body
        self.fds: tuple[int, ...] = ()
        try:
            for fd in fds:
                self.fds += (os.dup(fd),)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the duplicates. Idempotent."""
        fds, self.fds = self.fds, ()
        close_all(fds)


@dataclass(slots=True)
class Parcels:
    """What a writer must be given before it can work, in this order."""

    hello: Parcel
    rings: dict[str, Parcel] = field(default_factory=dict)
    stagings: dict[int, Parcel] = field(default_factory=dict)
    warming: dict[str, Parcel] = field(default_factory=dict)
    """By ring, until the writer has told that it is through."""

    def all(self) -> list[Parcel]:
        """Return them in that order."""
        rest = (self.rings.values(), self.stagings.values(), self.warming.values())
        return [self.hello, *chain.from_iterable(rest)]

    def close(self) -> None:
        """Close them all. Idempotent."""
        for parcel in self.all():
            parcel.close()
