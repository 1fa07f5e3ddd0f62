"""The guide and the example for Tianshou run as they stand, and go on."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tianshou")

import pyengine

EXAMPLES = Path(__file__).parents[2] / "examples"
GUIDE = (EXAMPLES / "tianshou.md").read_text("utf-8")
(CODE,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_guide_runs_as_shown_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = CODE.replace("epoch_num_steps=2_000", "epoch_num_steps=80, show_progress=False")
    quick = quick.replace("every_steps=1_000", "every_steps=40, budget=None")
    assert quick.count("80, show") == quick.count("40, budget") == 1
    scope: dict[str, Any] = {}
    exec(quick.replace("max_epochs=5", "max_epochs=1"), scope)
    exec(quick.replace("max_epochs=5", "max_epochs=2"), scope)
    assert scope["run"].report.global_step == 80
    assert scope["stats"].train_step == 160
    assert len(GUIDE.splitlines()) <= 60


def test_the_example_goes_on(tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / "tianshou_sac.py"))["main"]
    sizes = {
        "epoch-steps": 40, "snapshot-every": 20, "learning-starts": 20, "capacity": 200,
        "hidden": 8,
    }  # fmt: skip
    options = [text for key, value in sizes.items() for text in (f"--{key}", str(value))]
    for epochs in ("1", "2"):
        main(["--run-dir", str(tmp_path / "run"), "--epochs", epochs, *options])
    newest = pyengine.open_run(tmp_path / "run").snapshots[-1]
    assert newest.global_step == 80
    assert newest.generation == 2
