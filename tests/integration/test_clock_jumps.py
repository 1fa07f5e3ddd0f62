"""Clocks that jump an hour either way change nothing: no time orders anything."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest
from processes import committed
from program import tracking

from pyengine.format import manifest


def jumped(hours: int) -> type[datetime.datetime]:
    """Return a datetime class whose clock is wrong by so many hours."""

    class Jumped(datetime.datetime):
        # A plain datetime, not one of this class: what it is added to counts, not its type.
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + datetime.timedelta(hours=hours)

    return Jumped


def test_the_newest_snapshot_and_line_are_found_whatever_the_clock_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    step, expected, times = 0, None, []
    for hours in (0, -1, 1, -1, 0):
        monkeypatch.setattr(manifest, "datetime", jumped(hours))
        with tracking(run_dir, keep_last=2, seed=step) as (engine, training):
            report = engine.restore(replay="latest")
            assert report.next_step == step
            assert expected in (None, training.digest())
            for _ in range(3):
                training.step(step)
                info = engine.snapshot(step).wait(60)
                times.append(info.created_at)
                step += 1
            expected = training.digest()
        names = committed(run_dir)
        assert names[-1] == info.name
        assert len(names) <= 3
        assert os.path.basename(os.readlink(run_dir / "latest")) == info.name
    assert times != sorted(times), "the clock did jump"
