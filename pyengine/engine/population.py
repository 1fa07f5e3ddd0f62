"""What an engine does for populations: one member takes another's place."""

from __future__ import annotations

import os
from collections.abc import Collection

from pyengine.catalog.run import choose_snapshot
from pyengine.engine import settings
from pyengine.engine.lifetime import Lifetime
from pyengine.engine.members import MemberReport, restore_member


class Population(Lifetime):
    """The part of SnapshotEngine that knows members: names with a common beginning."""

    def restore_member(
        self,
        source: str,
        into: str,
        *,
        path: str | os.PathLike[str] | None = None,
        only: Collection[str] | None = None,
    ) -> MemberReport:
        """Put the saved state of member `source` into the live objects of member `into`.

            for i in range(8):
                engine.track({f"member{i}": {"policy": nets[i], "optimizer": opts[i]}})
            ...
            engine.snapshot(step).wait()
            engine.restore_member("member3", "member7")  # 7 goes on as 3 was

        State is that of the newest committed snapshot to go on from, of this run or of the one at
        `path` (a run or a snapshot). `only` names parts ("policy"). Both members must have the
        same parts, of the same kinds and shapes. Generators are parts too: two members with one
        generator's state draw alike. Rows of rings stay each member's own, and the step is the
        run's. Blocks until it is done; call it with the learner at rest, between two ticks.

        Raises ConfigError where nothing is tracked below `into`, ComponentMismatchError and
        StateMismatchError that name both sides, RunDirectoryError where there is no snapshot,
        DamageError, FormatVersionError, OSError: nothing live has changed then. An exception of a
        tracked object's own method while it is changed comes through; the engine refuses to go on
        then until a restore succeeds.
        """
        session = self._live()
        source, into = settings.check_text("source", source), settings.check_text("into", into)
        names = None if only is None else settings.check_names("only", only)
        self._check_restored(session)
        with self._turn(session):
            session.buffers.finish_late()
            info = choose_snapshot(session.run_dir if path is None else path)
            return restore_member(self._tracked, info, source, into, names, self._applying)
