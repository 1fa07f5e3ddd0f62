"""Twenty short starts end as one long run; what is restored is what is saved again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from sb3_models import MODELS
from sb3_runs import QUICK, STEPS, Start, digest, train
from stable_baselines3.common.callbacks import BaseCallback

from pyengine import open_run
from pyengine.integrations.sb3 import SnapshotCallback

STARTS = 20


class Interrupt(BaseCallback):
    """Ends the run from outside, once its first own snapshot is durable."""

    def _on_rollout_start(self) -> None:
        newest = self.locals["callback"].callbacks[0]._last
        if newest is not None:
            newest.wait(60)
            raise KeyboardInterrupt

    def _on_step(self) -> bool:
        return True


class Again(BaseCallback):
    """Takes a snapshot of what a run has just restored, before anything else is done."""

    def _on_rollout_start(self) -> None:
        own = self.locals["callback"].callbacks[0]
        if own.report and own._last is None:
            own._last = own._engine.snapshot(self.model.num_timesteps)
            own._last.wait(60)
            raise KeyboardInterrupt

    def _on_step(self) -> bool:
        return True


@pytest.mark.timeout(300)  # twenty starts
@pytest.mark.parametrize(
    ("name", "options"),
    [("DQN", {"every_steps": STEPS // STARTS}), ("HER", {"every_steps": 24}), ("PPO", {})],
)
def test_many_starts_end_as_one_run_without_snapshots(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    model, *_ = train(name, Start(tmp_path / "stock", is_stock=True))
    expected = digest(model, tmp_path / "stock")
    steps = []
    while True:
        try:
            start = Start(tmp_path / "run", options=options)
            model, own, _ = train(name, start, Interrupt())
        except KeyboardInterrupt:
            steps.append(open_run(tmp_path / "run" / "run").snapshots[-1].global_step)
            continue
        assert own.report
        break
    assert digest(model, tmp_path / "run") == expected
    assert steps == sorted(set(steps))
    assert len(steps) >= (STARTS - 1 if name == "DQN" else 5)


@pytest.mark.parametrize("name", ["DQN", "HER", "TD3", "A2C"])
def test_a_snapshot_of_what_was_restored_holds_the_same(tmp_path: Path, name: str) -> None:
    for steps in (120, STEPS):
        model = MODELS[name]()
        own = SnapshotCallback(tmp_path / "run", **QUICK)
        if steps == STEPS:
            with pytest.raises(KeyboardInterrupt):
                model.learn(steps, callback=[own, Again()])
        else:
            model.learn(steps, callback=[own, Again()])
    former, again = open_run(tmp_path / "run").snapshots[-2:]
    assert former.global_step == again.global_step
    contents = [
        {
            file.path: file.xxh3_64
            for file in snapshot.files
            if file.path.split("/")[0] in ("model", "optimizer", "rng", "state")
        }
        for snapshot in (former, again)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 5
