"""The late part of a snapshot: copied beside the learner's next pass, then published.

The cut is taken at the tick: rows, counts and everything that may change at any moment are of that
instant, the snapshot is PENDING, its descriptor lies in the slot. Only the slot's STAGED waits for
the copy of what the optimizers own. One thread of low priority works at it; who must not go on
before it is done (an optimizer's step, `wait`, the next snapshot, `close`) takes chunks as well,
and then publishes, or finds it published.

What ends otherwise ends by the words as they are: cancelled meanwhile, the slot goes from STAGING
to FREE once nobody copies into it; changed meanwhile, the snapshot FAILED before that. A trainer
that dies leaves STAGING behind, which its writer frees.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyengine.events import logger
from pyengine.fs.forking import register_for_child
from pyengine.shm.control import Entry
from pyengine.shm.states import SnapshotState, StagingState

if TYPE_CHECKING:
    from pyengine.capture.late import LateCopy


class LateStaging:
    """What is still to be copied of one snapshot, and its publication. Any thread.

    `on_settled` is called once, when the slot is STAGED or FREE. In a forked child it is settled:
    the copy is the parent's.
    """

    def __init__(
        self,
        copy: LateCopy,
        entry: Entry,
        sequence: int,
        on_settled: Callable[[], None],
    ) -> None:
        self._copy: LateCopy | None = copy
        self._entry = entry
        self._sequence = sequence
        self._on_settled = on_settled
        # Entered again where the collector, in here, lets go of an engine that nobody closed.
        self._lock = threading.RLock()
        register_for_child(self)

    @property
    def is_settled(self) -> bool:
        """Whether nobody copies into the slot any more, and its word says so."""
        return self._copy is None

    def stop(self) -> None:
        """Begin with nothing more where the snapshot was given up. Does not block."""
        copy = self._copy
        if copy is not None and not self._is_pending():
            copy.stop()

    def finish(self) -> None:
        """Copy what is left and publish; blocks for that copy at most. Idempotent.

        Not where a signal handler can interrupt it.
        """
        copy = self._copy
        if copy is None:
            return
        self.stop()
        copy.work()
        with self._lock:
            if self._copy is not None:
                self._settle(copy)
                self._copy = None
                self._on_settled()

    def _settle(self, copy: LateCopy) -> None:
        is_whole = copy.wait()
        entry, sequence = self._entry, self._sequence
        changed = copy.find_changed() if is_whole else None
        if changed is not None:
            text = (
                f"{changed.component!r}: {changed.name} was changed after the tick, before it was "
                "copied, and not by the step of a tracked optimizer: change it before the tick, or "
                "call engine.finish_staging() first"
            )
            record = {"type": "ChangedWhileStagedError", "message": text}
            record |= {"component": changed.component, "tensor": changed.name}
            entry.fail(sequence, record)
        elif not is_whole:
            entry.cancel(sequence)
        # Where it is cancelled after this look, the writer frees the slot.
        after = StagingState.STAGED if self._is_pending() else StagingState.FREE
        entry.move_staging(sequence, StagingState.STAGING, after)

    def _is_pending(self) -> bool:
        return self._entry.snapshot == (self._sequence, SnapshotState.PENDING)

    def _after_fork_in_child(self) -> None:
        self._copy = None


class BackgroundCopier:
    """One thread that works late copies off. Made at the first, ends at `close`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[LateStaging | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, late: LateStaging) -> None:
        """Have it finished in the background, or here where no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(
                target=_serve, args=(self._queue,), name="pyengine-late", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                late.finish()
                return
            self._thread = thread
        self._queue.put(late)

    def close(self) -> None:
        """End the thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)


def _serve(tasks: queue.SimpleQueue[LateStaging | None]) -> None:
    with contextlib.suppress(OSError):
        # Of this thread alone: what the learner wakes goes first.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    while (late := tasks.get()) is not None:
        try:
            late.finish()
        except Exception:  # whoever needs the snapshot tries again, and is told
            logger.exception("the late copy of a snapshot")
        del late


class StepGuards:
    """Hooks that call `finish`, a bound method, before the step of each optimizer they are put on.

    They hold its object weakly, and are inert in a forked child.
    """

    def __init__(self, finish: Callable[[], None]) -> None:
        self._hook = _step_hook(weakref.WeakMethod(finish))
        self._handles: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def put_on(self, optimizers: Iterable[Any]) -> None:
        """Guard these optimizers from now on; those that are guarded stay so."""
        for optimizer in optimizers:
            hooks = optimizer._optimizer_step_pre_hooks
            known = self._handles.get(id(optimizer))
            is_on = known is not None and known[1].id in hooks and known[0]() is optimizer
            if not is_on:
                handle = optimizer.register_step_pre_hook(self._hook)
                self._handles[id(optimizer)] = (weakref.ref(optimizer), handle)

    def take_off(self) -> None:
        """Take all hooks off. Idempotent."""
        while self._handles:
            _, (_, handle) = self._handles.popitem()
            handle.remove()


def _step_hook(finish: weakref.WeakMethod[Callable[[], None]]) -> Callable[..., None]:
    owner_pid = os.getpid()

    def before_step(*_: object) -> None:
        live = finish()
        if live is not None and os.getpid() == owner_pid:
            live()

    return before_step
