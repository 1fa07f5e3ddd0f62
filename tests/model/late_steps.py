"""The late copy: a thread of the trainer fills a staging slot after the cut, and publishes it."""

from __future__ import annotations

from collections.abc import Iterator

from words import CANCELLED, FAILED, FREE, IDLE, PENDING, STAGED, STAGING, Broken, Machine, State


class LateSteps(Machine):
    """What the thread may do next, and how the trainer may disturb it, while the trainer lives."""

    def late_copy_steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the steps of a copy under way."""
        if state.late == IDLE:
            return
        step, sequence, sound = state.late
        assert isinstance(sequence, int)
        is_pending = state.snapshot == (sequence, PENDING)
        if step == "copy":
            yield from self._copy(state, sequence, bool(sound))
        elif step == "settle" and not sound and "versions" not in self.broken:
            snapshot = (sequence, FAILED) if is_pending else state.snapshot
            failed = state._replace(snapshot=snapshot, late=("free", sequence, False))
            yield "late copy: something has changed", failed
        elif step == "settle":
            after = ("publish" if is_pending else "free", sequence, sound)
            yield "late copy: looks at the snapshot", state._replace(late=after)
        elif state.staging != (sequence, STAGING) and "stopped first" not in self.broken:
            raise Broken("somebody else moved a slot that is being filled")
        else:
            # Cancelled since the look, it is STAGED all the same: the writer drops it.
            is_staged = step == "publish"
            staging = (sequence, STAGED if is_staged else FREE)
            name = "STAGED" if is_staged else "FREE"
            yield f"late copy: {name}", state._replace(staging=staging, late=IDLE)

    def _copy(self, state: State, sequence: int, sound: bool) -> Iterator[tuple[str, State]]:
        copied = state._replace(
            staged=(state.staged[0], sequence if sound else -sequence),
            late=("settle", sequence, sound),
        )
        yield "late copy: fills the second half", copied
        if state.changes < self.limits.changes:
            changed = state._replace(late=("copy", sequence, False), changes=state.changes + 1)
            yield "trainer: changes what is copied late", changed
        words = (state.snapshot, state.staging)
        given_up = ((sequence, CANCELLED), (sequence, STAGING))
        if "stopped first" in self.broken and words == given_up:
            freed = state._replace(staging=(sequence, FREE))
            yield "trainer: frees a slot that is copied into", freed
