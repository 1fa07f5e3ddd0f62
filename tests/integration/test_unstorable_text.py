"""A text that no file can hold is refused by type, where it is given, with its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyengine
from pyengine.errors import ConfigError

LONE = "\ud800"
SETTINGS: list[dict[str, Any]] = [
    {"notes": {"x": LONE}},
    {"notes": {LONE: 1}},
    {"notes": {"deep": [{"x": LONE}]}},
    {"algorithm": LONE},
    {"keep_best": LONE},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_lone_surrogate_in_a_setting_is_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        pyengine.SnapshotEngine(tmp_path / "run", **setting)
    assert not (tmp_path / "run").exists(), "before anything was made"


def test_a_lone_surrogate_in_a_name_or_reason_is_refused(tmp_path: Path) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(counters={"steps": 0})
        with pytest.raises(ConfigError, match="surrogate"):
            engine.exclude("environment", LONE)
        engine.restore()
        with pytest.raises(ConfigError, match="surrogate"):
            engine.snapshot(1, metrics={LONE: 1.0})
        with pytest.raises(ConfigError, match="surrogate"):
            engine.record_evaluation(1, **{LONE: 1.0})
        engine.snapshot(1, metrics={"good": 1.0}).wait(60)
