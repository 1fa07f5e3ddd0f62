"""The shared-memory protocol as a transition system, small enough to be explored completely.

One lane, segments of two rows, a window of two rows, two segment slots, one staging slot: a slot
is reused after three segments, a staging slot by the second snapshot. Three processes take their
steps in any order: the trainer (append, seal, age out, cut, cancel, die), the writer's segment job
and its snapshot job, which die together and are started again. A process that is slow or frozen is
one that takes no step. With `overlap` a cut may leave the second half of the staging slot for
later: a thread of the trainer copies it while the trainer goes on, and changes it where it should
not.

A step is what other processes can see as one: a swap, a store, the copy of one row or of one half
of a staging slot. Each swap has a name; a name in `broken` turns it into a plain store, which
succeeds whatever the word holds, and other names leave a rule out.
"""

from __future__ import annotations

from collections.abc import Iterator

from late_steps import LateSteps
from trainer_steps import TrainerSteps
from words import DEAD, IDLE, State
from writer_steps import WriterSteps


class Protocol(TrainerSteps, LateSteps, WriterSteps):
    """The steps that are possible in a state; `invariants` say what must hold in each."""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield (name, next state) of all steps."""
        if state.trainer != DEAD:
            yield from self.trainer_steps(state)
            yield from self.late_copy_steps(state)
            if self.limits.trainer_dies:
                yield "trainer: dies", state._replace(trainer=DEAD)
            if not state.writer_is_alive:
                yield "trainer: starts a writer", self.restart(state)
        if state.writer_is_alive:
            yield from self.segment_job_steps(state)
            yield from self.snapshot_job_steps(state)
            if state.trainer == DEAD:
                yield from self.drain_steps(state)
            if state.writer_deaths < self.limits.writer_deaths:
                yield (
                    "writer: dies",
                    state._replace(
                        writer_is_alive=False,
                        writer_deaths=state.writer_deaths + 1,
                        segment_job=IDLE,
                        snapshot_job=IDLE,
                    ),
                )
