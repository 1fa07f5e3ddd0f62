"""What a SnapshotEngine is told, checked in one place, before anything is made or changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyengine.engine import settings
from pyengine.engine.cut import Staging
from pyengine.engine.describe import Identity
from pyengine.engine.milestones import Milestones
from pyengine.engine.notes import Notes
from pyengine.engine.trigger import Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The arguments of SnapshotEngine, in the forms in which it uses them."""

    path: str
    trigger: Trigger
    staging: Staging
    identity: Identity
    keep_last: int
    keep_best: str | None
    keep_best_mode: str
    milestones: Milestones
    waits: bool
    raises: bool
    fresh: bool
    strict: bool
    track_rng: bool
    drain_wait: float
    takeover: bool

    @classmethod
    def check(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        every_steps: int | None,
        every_seconds: float | None,
        keep_last: int,
        keep_best: str | None,
        keep_best_mode: str,
        milestone_every: int | None,
        milestones: str,
        budget: float | None,
        when_busy: str,
        on_error: str,
        on_damage: str,
        fresh: bool,
        strict: bool,
        track_rng: bool,
        overlap: bool,
        debug_staging: bool,
        algorithm: str | None,
        notes: Mapping[str, Any] | None,
        drain_wait: float,
        takeover: bool,
    ) -> EngineOptions:
        """Return the options; ConfigError names the first that cannot be."""
        settings.check_choice("when_busy", when_busy, ("skip", "wait"))
        settings.check_choice("on_error", on_error, ("raise", "warn"))
        settings.check_choice("keep_best_mode", keep_best_mode, ("max", "min"))
        settings.check_choice("milestones", milestones, ("weights", "full"))
        settings.check_choice("on_damage", on_damage, ("raise", "drop"))
        identity = Identity(
            None if algorithm is None else settings.check_text("algorithm", algorithm),
            Notes(settings.check_mapping("notes", notes)),
        )
        return cls(
            path=settings.check_path("run_dir", run_dir),
            trigger=Trigger(every_steps=every_steps, every_seconds=every_seconds, budget=budget),
            staging=Staging(
                overlap=settings.check_flag("overlap", overlap),
                debug=settings.check_flag("debug_staging", debug_staging),
            ),
            identity=identity,
            keep_last=settings.check_count("keep_last", keep_last, low=1),
            keep_best=None if keep_best is None else settings.check_text("keep_best", keep_best),
            keep_best_mode=keep_best_mode,
            milestones=Milestones(milestone_every, is_full=milestones == "full"),
            waits=when_busy == "wait",
            raises=on_error == "raise",
            fresh=settings.check_flag("fresh", fresh),
            strict=settings.check_flag("strict", strict),
            track_rng=settings.check_flag("track_rng", track_rng),
            drain_wait=settings.check_seconds("drain_wait", drain_wait, may_be_zero=True),
            takeover=settings.check_flag("takeover", takeover),
        )
