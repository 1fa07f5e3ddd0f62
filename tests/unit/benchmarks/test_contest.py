"""Contestants take turns in processes of their own; no other library is needed for these."""

from __future__ import annotations

import json

import pytest

from benchmarks.contest import ContestantFailed, Pool
from benchmarks.figure import Measured, Setting
from benchmarks.judgement import Verdict
from benchmarks.race import Race, rate_race
from benchmarks.rivals import MEMCPY, OURS, ROW_GATHER, Rival
from benchmarks.rows import VECTORS

ABSENT = Rival("absent", "limits:Memcpy", ("no-such-distribution-of-anybody",))
BROKEN = Rival("broken", "limits:NothingOfThatName")


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
        answers = contest.each("make_replay", rows=VECTORS.name, capacity=1_000, directory="@")
        assert list(answers) == ["memcpy"]
        assert "NothingOfThatName" in contest.failures["broken"]
    assert "left out: broken" in capfd.readouterr().err
    ours = Rival(OURS.name, "limits:NothingOfThatName")
    with (
        pytest.raises(ContestantFailed, match="NothingOfThatName"),
        setting.pool.contest((ours,), setting.directory / "second"),
    ):
        pass


def test_a_save_is_loaded_and_its_rows_are_checked(setting):
    with setting.pool.contest((OURS,), setting.directory / "run") as contest:
        make = {"rows": VECTORS.name, "capacity": 1_000, "directory": "@"}
        contest.each("make_replay", **make)
        contest.each("fill", count=1_000)
        saved = contest.each("save", place="@/save")["pyengine"]
        contest.each("make_replay", **make)
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
