"""Contestants take turns in processes of their own; no other library is needed for these."""

from __future__ import annotations

import gc
import json

import pytest

from benchmarks.contest import Contestant, ContestantFailed, Pool
from benchmarks.contestant import Turns, repeat
from benchmarks.figure import Measured, Setting
from benchmarks.judgement import Verdict
from benchmarks.race import Race, race_groups, rate_race, recycling
from benchmarks.rivals import MEMCPY, OURS, ROW_GATHER, Rival, limits
from benchmarks.rows import VECTORS

ABSENT = Rival("absent", "limits:Memcpy", ("no-such-distribution-of-anybody",))
BROKEN = Rival("broken", "limits:NothingOfThatName")
MAKE = {"rows": VECTORS.name, "capacity": 1_000, "directory": "@"}


@pytest.fixture
def setting(tmp_path):
    with Pool() as pool:
        yield Setting(tmp_path, pairs=2, quick=True, pool=pool)


def test_a_race_gives_one_ratio_a_round_and_leaves_no_file(setting, capfd):
    race = rate_race(
        setting,
        turn="sample",
        rows=VECTORS,
        capacity=2_000,
        always=(OURS, ROW_GATHER),
        rivals=(ABSENT,),
        unit="rows_per_s",
        score=lambda answer: answer["calls"] / answer["seconds"],
        count=256,
    )
    assert {name: len(values) for name, values in race.scores.items()} == {
        "pyengine": 2,
        "c_gather": 2,
    }
    first = race.scores["pyengine"][0] / race.scores["c_gather"][0]
    assert race.ratios["c_gather"][0] == pytest.approx(first)
    assert "absent: no-such-distribution-of-anybody not installed" in capfd.readouterr().err
    assert race.against_best_rival(2.0).verdict is Verdict.SKIPPED
    assert list(setting.directory.iterdir()) == []


def test_a_rival_that_fails_is_left_out_and_told_and_ours_may_not(setting, capfd):
    with setting.pool.contest((MEMCPY, BROKEN), setting.directory / "first") as contest:
        answers = contest.each("make_replay", **MAKE)
        assert list(answers) == ["memcpy"]
        assert "NothingOfThatName" in contest.failures["broken"]
    assert "left out: broken" in capfd.readouterr().err
    ours = Rival(OURS.name, "limits:NothingOfThatName")
    with (
        pytest.raises(ContestantFailed, match="NothingOfThatName"),
        setting.pool.contest((ours,), setting.directory / "second"),
    ):
        pass


@pytest.mark.parametrize("turn", ["make_replay", "fill", "close"])
def test_the_death_of_a_rival_in_any_turn_ends_no_run_and_is_told(
    setting, capfd, monkeypatch, turn
):
    dying, ask = Rival("dying", "limits:RowGather"), Contestant.ask

    def ask_or_kill(self, asked, **arguments):
        if self.rival is dying and asked == turn:
            self.kill()
        return ask(self, asked, **arguments)

    monkeypatch.setattr(Contestant, "ask", ask_or_kill)
    race = Race("rows_per_s")
    for _ in range(2):  # the next contest has a new process in its place
        for group in race_groups(setting, race, (MEMCPY,), (dying,), places=1):
            group.each("make_replay", **MAKE)
            assert "memcpy" in group.each("fill", count=100)
        words = f"dying: {turn}: it was ended by signal 9 (Killed"
        assert race.facts["failures"].pop("dying").startswith(words)
        assert f"left out: {words}" in capfd.readouterr().err
    assert race.against_best_rival(2.0).text == "all rivals failed: dying"


def test_a_dead_rival_that_was_asked_once_more_is_closed(setting):
    contestant = Contestant(MEMCPY)
    contestant.wait_until_ready()
    contestant.kill()
    for _ in range(2):
        with pytest.raises(ContestantFailed, match="make_replay: it was ended by signal 9"):
            contestant.ask("make_replay", **MAKE)
    contestant.close()


def test_a_rival_that_gives_up_is_told_with_its_exit_status(setting):
    contestant = Contestant(BROKEN)
    with pytest.raises(ContestantFailed, match=r"(?s)import: .*exit status 1.*NothingOfThatName"):
        contestant.wait_until_ready()
    contestant.close()


class Circle(limits.Memcpy):
    """A rival whose buffer nothing but the collector of circles gives back."""

    alive = 0

    def __init__(self, rows, capacity, directory):
        super().__init__(rows, capacity, directory)
        self.itself = self
        Circle.alive += 1

    def __del__(self):
        Circle.alive -= 1


def test_a_buffer_is_given_back_before_the_next_one_is_made(tmp_path):
    gc.disable()
    try:
        turns = Turns(Circle)
        for _ in range(3):
            turns.make_replay(VECTORS.name, 100, str(tmp_path))
            assert Circle.alive == 1
        turns.close()
        assert Circle.alive == 0
    finally:
        gc.enable()


def test_what_a_call_returns_is_held_until_the_next_has_returned():
    alive, seen = [], []

    class Batch:
        def __init__(self):
            seen.append(len(alive))
            alive.append(None)

        def __del__(self):
            alive.pop()

    repeat(Batch, 1e-4)
    assert seen[0] == 0
    assert set(seen[1:]) == {1}


def test_freeing_a_block_gives_scores_of_their_own(setting):
    broken = Rival("memcpy_too", "limits:RowGather")
    race = rate_race(
        setting, turn="sample", rows=VECTORS, capacity=500, always=(OURS,), rivals=(broken,),
        unit="rows_per_s", score=lambda answer: answer["calls"] / answer["seconds"],
        freed_bytes=1 << 20, count=16,
    )  # fmt: skip
    assert len(race.scores["memcpy_too"]) == len(race.scores[recycling("memcpy_too")]) == 2
    assert len(race.scores["pyengine"]) == 4
    assert all(faults >= 0 for faults in race.details["pyengine_faults_per_call"])


def test_a_save_is_loaded_and_its_rows_are_checked(setting):
    with setting.pool.contest((OURS,), setting.directory / "run") as contest:
        contest.each("make_replay", **MAKE)
        contest.each("fill", count=1_000)
        saved = contest.each("save", place="@/save")["pyengine"]
        contest.each("make_replay", **MAKE)
        contest.each("get_ready", place="@/save")
        loaded = contest.each("load", place="@/save", count=256)["pyengine"]
    assert 0 < saved["stall_s"] <= saved["durable_s"]
    assert 0 < loaded["load_s"] < loaded["first_batch_s"]
    assert loaded["needed_bytes"] > 256 * VECTORS.row_bytes


def test_rows_that_are_not_what_was_added_are_found(setting):
    (chunk,) = VECTORS.chunks(10, 256)
    VECTORS.check(chunk, 256)
    wrong = {**chunk, "obs": chunk["obs"] + 1}
    with pytest.raises(RuntimeError, match="obs of a sampled row"):
        VECTORS.check(wrong, 256)


def test_ratios_are_better_the_larger_they_are_and_a_record_survives_json():
    race = Race("stall_ms", less_is_better=True, rivals=["sb3"])
    race.note_group([{"pyengine": 2.0, "sb3": 10.0}, {"pyengine": 2.0, "sb3": 12.0}] * 3)
    assert race.ratios["sb3"] == [5.0, 6.0] * 3
    measured = Measured([race.against_best_rival(3.0)], race.samples(), race.facts)
    assert measured.findings[0].verdict is Verdict.REACHED
    assert Measured.from_json(json.loads(json.dumps(measured.to_json()))) == measured
