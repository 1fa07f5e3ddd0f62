"""What happens to our objects in a forked child: one registry, one at-fork hook.

A forked environment worker must neither pin shared memory nor keep the locks of a dead run. Each
object that owns such a thing registers itself, and in the child its `_after_fork_in_child` closes
what the child must not hold and makes the object inert. The parent is never touched.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object that lets go in a forked child."""

    def _after_fork_in_child(self) -> None:
        """Let go of everything that belongs to the parent. Must not block and not take locks."""


# A plain dict of weak references: a WeakSet that is iterated while another thread was changing it
# at the moment of the fork would raise in the child.
_registered: dict[int, weakref.ref[ForkAware]] = {}
_is_hooked = False


def register_for_child(item: ForkAware) -> None:
    """Have `item._after_fork_in_child()` called in every forked child. Holds it weakly."""
    global _is_hooked
    if not _is_hooked:
        os.register_at_fork(after_in_child=_let_go)
        _is_hooked = True
    key = id(item)
    _registered[key] = weakref.ref(item, lambda _: _registered.pop(key, None))


def _let_go() -> None:
    for reference in list(_registered.values()):
        item = reference()
        if item is not None:
            # One object that fails must not leave the others holding on.
            with contextlib.suppress(Exception):
                item._after_fork_in_child()
    _registered.clear()
