"""The guide and the example of TorchRL run as they stand, and a second start goes on."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

import pyengine

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_guide_runs_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (EXAMPLES / "torchrl.md").read_text(), re.MULTILINE | re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    shorter = block.replace("total_frames=2_048", "total_frames=1_152")
    shorter = shorter.replace("every_steps=512", "every_steps=512, budget=None")
    scope: dict[str, Any] = {}
    exec(shorter, scope)
    assert scope["run"].level == "exact", scope["run"].reasons
    saved = pyengine.open_run(tmp_path / "runs/torchrl").snapshots
    assert [info.global_step for info in saved] == [512, 1024]
    again: dict[str, Any] = {}
    exec(shorter, again)
    assert len(again["rb"]) == 1_000
    for one, other in zip(
        scope["loss"].state_dict().values(), again["loss"].state_dict().values(), strict=True
    ):
        assert one.equal(other)


def test_the_example_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for frames, expected in ((640, "a fresh run"), (640, "go on with step 641")):
        words = ["--run", str(tmp_path / "run"), "--frames", str(frames), "--every", "128"]
        monkeypatch.setattr(sys, "argv", ["torchrl_dqn.py", *words])
        runpy.run_path(str(EXAMPLES / "torchrl_dqn.py"), run_name="__main__")
        assert expected in capsys.readouterr().out
