"""What saving costs a training loop: pairs that hold a whole save, and who is judged by them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from benchmarks import overhead
from benchmarks.contest import Pool
from benchmarks.figure import Setting
from benchmarks.judgement import Verdict
from benchmarks.learners import Dqn, Learner, Sac
from benchmarks.overhead import measure_overhead
from benchmarks.pending import Pending
from benchmarks.race import Race, near
from benchmarks.rivals import OUR_TRAINED, Rival, arrays, ours
from benchmarks.rows import STACKED_FRAMES, VECTORS
from benchmarks.training import ReplayTraining, Workload
from pyengine.catalog.run import open_run

ABSENT = Rival("absent", "arrays:Npz", ("no-such-distribution-of-anybody",))


class Small(Learner):
    """A learner that costs nothing, and counts."""

    batch_size = 8

    def __init__(self):
        self.learned = 0
        super().__init__(network=torch.nn.Linear(2, 1))

    def act(self, obs):
        assert obs.shape == (1, 17)

    def learn(self, columns):
        assert columns["obs"].shape == (8, 17)
        self.learned += 1


WORKLOAD = Workload("vectors", Small, learn_every=2)


def test_our_blocks_hold_one_snapshot_each_of_all_rows_and_the_learner(tmp_path):
    training = ReplayTraining(WORKLOAD, ours.Trained(VECTORS, 2_000, tmp_path), steps=4)
    training.find_window(500, 4, tmp_path / "first")
    answers = [training.pair(500, bool(n % 2), tmp_path / "place") for n in range(3)]
    training.close()
    run = open_run(str(tmp_path / "run"))
    # Two to find the window, one of each pair.
    assert run.latest.global_step % 500 == 0
    assert run.latest.sequence == 5
    saved = Path(run.latest.path)
    assert (saved / "model" / "network.safetensors").is_file()
    assert (saved / "buffer" / "replay").is_dir()
    assert all(answer["in_flight_steps"] >= 1 and answer["step_s"] > 0 for answer in answers)
    assert not (tmp_path / "place").exists()


def test_blocks_with_and_without_a_save_learn_equally_often(tmp_path):
    training = ReplayTraining(WORKLOAD, arrays.Npz(VECTORS, 2_000, tmp_path), steps=4)
    learner = training._learner
    training.pair(500, True, tmp_path / "place")
    assert learner.learned == 2 * 4 // WORKLOAD.learn_every


class Slow(arrays.Replay):
    """Saves that are complete when the test says so."""

    def __init__(self, directory):
        super().__init__(VECTORS, 2_000, directory)
        self.asked = 0
        self.waited = threading.Event()

    def save(self, place):
        def is_done():
            self.asked += 1
            return self.asked > 6

        self.asked = 0
        return Pending(self.waited.set, is_done)


def test_blocks_become_as_long_as_a_save_takes_and_what_outlasts_them_is_waited_for(tmp_path):
    subject = Slow(tmp_path)
    training = ReplayTraining(WORKLOAD, subject, steps=2)
    assert training.find_window(500, 100, tmp_path / "first")["steps"] > 2
    training.steps = 1
    subject.waited.clear()
    assert training.pair(500, True, tmp_path / "place")["in_flight_steps"] == 1
    assert subject.waited.is_set()


@pytest.mark.parametrize(("learner", "rows"), [(Sac, VECTORS), (Dqn, STACKED_FRAMES)])
def test_an_update_changes_what_is_saved(learner, rows):
    one = learner()
    one.batch_size = 2
    before = {name: value.clone() for name, value in arrays._tensors(one.state_dict())}
    (columns,) = rows.chunks(0, 2)
    one.act(columns["obs"][:1])
    one.learn(columns)
    after = dict(arrays._tensors(one.state_dict()))
    changed = {name.split(".")[1] for name in before if not before[name].equal(after[name])}
    assert changed == {name for name in one.parts if "optimizer" not in name} - {"target"}


def test_a_race_tells_our_share_and_leaves_no_file(tmp_path, monkeypatch):
    # Threads that wait for each other in turns crawl where other programs use the cores.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(overhead, "MOST_STEPS", 2)
    with Pool() as pool:
        measured = measure_overhead(
            Setting(tmp_path, pairs=2, quick=True, pool=pool),
            "sac", size=20_000, steps=2, bytes_each=1e7, ours=OUR_TRAINED, rivals=(ABSENT,),
        )  # fmt: skip
    assert len(measured.samples["pyengine_lost_percent"]) == 2
    assert len(measured.samples["pyengine_every_500_lost_percent"]) == 2
    assert measured.samples["pyengine_peak_MB"] >= measured.samples["pyengine_memory_MB"]
    verdicts = [found.verdict for found in measured.findings]
    assert verdicts == [Verdict.UNRESOLVED, Verdict.SKIPPED]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ([0.1] * 10, Verdict.REACHED),
        ([-0.1] * 10, Verdict.REACHED),
        ([0.2] * 10, Verdict.MISSED),
        ([0.0, 0.3] * 5, Verdict.UNRESOLVED),
    ],
)
def test_the_best_rival_is_the_one_that_loses_least(lost, verdict):
    race = Race("lost_percent", rivals=["fast", "slow"])
    race.scores = {"pyengine": lost, "fast": [2.1] * 10, "slow": [50.0] * 10}
    rounds = [{"pyengine": one, "fast": 2.1, "slow": 50.0} for one in lost]
    assert overhead._against_best_rival(race, OUR_TRAINED, rounds).verdict is verdict


def test_who_is_far_behind_leaves_and_ours_never_does():
    rounds = [{"pyengine": 9.0, "fast": 1.0, "near": 1.9, "far": 2.5}] * 3
    rivals = ["fast", "near", "far", "failed"]
    assert near(rounds, rivals, ["pyengine", *rivals]) == ["pyengine", "fast", "near"]
