"""What the supervisor decides, without processes: classes of faults, pauses, crash loops, hangs."""

from __future__ import annotations

import errno

import pytest

from pyengine import errors
from pyengine.shm.lifeline import describe_error
from pyengine.supervisor.faults import Death, classify, told
from pyengine.supervisor.journal import Journal
from pyengine.supervisor.judgement import Judge, Over
from pyengine.supervisor.liveness import Liveness
from pyengine.supervisor.restarts import Again, Enough, Restarts, Stall
from pyengine.supervisor.settings import Settings
from pyengine.supervisor.watch import Probe

EXITED = Death(1, None)
KILLED = Death(None, 9)


def _caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bug"), "exit"),
        (OSError(errno.ENOSPC, "full"), "storage"),
        (OSError(errno.EIO, "bad"), "storage"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "exit"),
        (errors.NoSpaceError("full", needed_bytes=2, free_bytes=1), "storage"),
        (errors.DamageError("bad", path="x"), "damage"),
        (errors.TruncatedFileError("short", path="x"), "damage"),
        (errors.MalformedFileError("nonsense", path="x"), "damage"),
        (errors.RunBusyError("in use", path="x", pid=1, host="h", since=""), "busy"),
        (errors.StaleGenerationError("claimed anew", path="x"), "busy"),
        (errors.SnapshotFailedError("not durable"), "storage"),
        (errors.SnapshotBusyError("slow"), "exit"),
        (_caused(errors.SnapshotUnreadError("no"), OSError(errno.EIO, "bad")), "storage"),
        (_caused(errors.SnapshotUnreadError("no"), OSError(errno.EMFILE, "many")), "exit"),
        (_caused(errors.SnapshotError("no"), OSError(errno.ESTALE, "stale")), "storage"),
        (_caused(RuntimeError("on the way"), errors.DamageError("bad", path="x")), "damage"),
    ],
)
def test_the_exception_that_ended_it_tells_the_class(error, expected):
    report = describe_error(error)
    assert classify(EXITED, report, is_hung=False, is_reachable=True) == expected


def test_without_a_word_the_status_tells_the_class():
    assert classify(EXITED, None, is_hung=False, is_reachable=True) == "exit"
    assert classify(KILLED, None, is_hung=False, is_reachable=True) == "signal"
    assert classify(KILLED, None, is_hung=True, is_reachable=True) == "hang"
    assert classify(KILLED, None, is_hung=False, is_reachable=False) == "storage"


def test_an_old_word_does_not_explain_a_signal():
    report = describe_error(OSError(errno.ENOSPC, "full"))
    assert classify(KILLED, report, is_hung=False, is_reachable=True) == "signal"
    assert "full" not in told(KILLED, "signal", report)


def test_a_report_of_nonsense_is_none():
    for report in ({}, {"causes": 5}, {"type": None, "bases": {}, "causes": [1, None]}):
        assert classify(EXITED, report, is_hung=False, is_reachable=True) == "exit"


def test_statuses_are_those_of_a_shell():
    assert (EXITED.exit_status, KILLED.exit_status) == (1, 137)


def _restarts(**settings):
    return Restarts(Settings((), **settings), chance=lambda: 1.0)


def test_pauses_double_up_to_a_cap_and_are_stretched_by_chance():
    restarts = _restarts(backoff=1.0, backoff_max=5.0, jitter=0.5, crash_limit=99)
    pauses = [restarts.died(0.0, "x", has_new_snapshot=False).pause_seconds for _ in range(5)]
    assert pauses == [1.5, 3.0, 6.0, 7.5, 7.5]


def test_a_new_snapshot_begins_the_count_anew():
    restarts = _restarts(backoff=1.0, jitter=0.0, crash_limit=3)
    for _ in range(4):
        assert restarts.died(0.0, "x", has_new_snapshot=False) == Again(1.0, 1)
        assert restarts.died(0.0, "x", has_new_snapshot=False) == Again(2.0, 2)
        assert restarts.died(0.0, "x", has_new_snapshot=True) == Again(1.0, 0)


def test_deaths_in_vain_within_the_window_are_a_crash_loop_that_says_why():
    restarts = _restarts(crash_limit=3, crash_window=10.0)
    restarts.died(0.0, "x", has_new_snapshot=False)
    restarts.died(5.0, "x", has_new_snapshot=False)
    end = restarts.died(9.0, "exit status 1 (ValueError: bug)", has_new_snapshot=False)
    assert isinstance(end, Enough)
    assert end.result == "crash loop"
    assert "3 deaths within 9 s without a new snapshot" in end.reason
    assert "ValueError: bug" in end.reason


def test_deaths_that_nobody_can_judge_are_not_called_deaths_without_a_snapshot():
    restarts = _restarts(crash_limit=2)
    restarts.died(0.0, "x", has_new_snapshot=False, unknown="no run is known")
    end = restarts.died(1.0, "x", has_new_snapshot=False, unknown="no run is known")
    assert isinstance(end, Enough)
    assert "whether they left new snapshots is not known: no run is known" in end.reason
    assert "without a new snapshot" not in end.reason


def test_of_deaths_that_some_could_judge_the_reason_tells_both_kinds():
    restarts = _restarts(crash_limit=3)
    for unknown in ("no run is known", None, None):
        end = restarts.died(0.0, "x", has_new_snapshot=False, unknown=unknown)
    assert isinstance(end, Enough)
    assert "3 deaths within 0 s, 2 of them without a new snapshot" in end.reason
    assert "no run is known" in end.reason


def _died(generations):
    return Over(KILLED, None, 1.0, None, None, generations)


def _snapshot(generation, sequence):
    return (generation, sequence, f"step-00000001.g{generation:04d}.s{sequence:04d}")


def test_a_snapshot_that_an_earlier_starts_writer_commits_later_forgives_that_start_alone():
    judge = Judge(Settings((), crash_limit=2), Journal(None))
    assert isinstance(judge.died(_died({"run": 1}), Probe({"run": None}, None)), Again)
    late = Probe({"run": _snapshot(1, 1)}, None)
    second = judge.died(_died({"run": 2}), late)
    assert isinstance(second, Again)
    assert second.in_vain == 1, "its own death counts: the snapshot is of the start before"
    end = judge.died(_died({"run": 3}), late)
    assert isinstance(end, Enough), "seen once, it forgives nobody any more"


def test_a_snapshot_is_new_in_a_run_that_had_none_though_its_start_told_no_generation():
    judge = Judge(Settings((), crash_limit=1), Journal(None))
    judge.look(Probe({"run": None}, None))
    assert isinstance(judge.died(_died({}), Probe({"run": _snapshot(1, 1)}, None)), Again)


def test_deaths_far_apart_are_no_crash_loop():
    restarts = _restarts(crash_limit=2, crash_window=10.0)
    for at in range(0, 200, 20):
        assert isinstance(restarts.died(float(at), "x", has_new_snapshot=False), Again)


def test_restarts_are_counted_whatever_they_brought():
    restarts = _restarts(max_restarts=2)
    assert isinstance(restarts.died(0.0, "x", has_new_snapshot=True), Again)
    assert isinstance(restarts.died(0.0, "x", has_new_snapshot=True), Again)
    end = restarts.died(0.0, "x", has_new_snapshot=True)
    assert isinstance(end, Enough)
    assert (end.result, restarts.count) == ("restarts used up", 2)


STALL = Stall(0, "--start-timeout 600")


def test_starts_ended_before_they_got_going_are_a_crash_loop_whatever_they_saved():
    restarts = _restarts(crash_limit=3, crash_window=10.0)
    restarts.died(0.0, "hang", has_new_snapshot=True, stall=STALL)
    second = restarts.died(700.0, "hang", has_new_snapshot=True, stall=STALL)
    assert isinstance(second, Again)
    assert second.in_vain == 2
    end = restarts.died(1400.0, "hang: exit status 143", has_new_snapshot=True, stall=STALL)
    assert isinstance(end, Enough)
    assert end.result == "crash loop"
    assert "3 deaths in a row brought training no further" in end.reason
    assert "before its first tick" in end.reason
    assert "--start-timeout 600" in end.reason


def test_the_bound_between_ticks_is_named_where_it_ended_the_last_start():
    restarts = _restarts(crash_limit=2)
    restarts.died(0.0, "hang", has_new_snapshot=True, stall=STALL)
    bound = Stall(1, "--hang-timeout 60")
    end = restarts.died(1.0, "hang", has_new_snapshot=True, stall=bound)
    assert isinstance(end, Enough)
    assert "before its second tick" in end.reason
    assert "--hang-timeout 60" in end.reason


def test_a_death_that_got_further_forgives_starts_that_did_not():
    restarts = _restarts(crash_limit=3, crash_window=10.0)
    for at in range(0, 9000, 1500):
        for later in (0.0, 600.0):
            again = restarts.died(at + later, "hang", has_new_snapshot=False, stall=STALL)
            assert isinstance(again, Again)
        assert isinstance(restarts.died(at + 700.0, "x", has_new_snapshot=True), Again)


def test_starts_that_hang_and_other_deaths_add_up():
    restarts = _restarts(crash_limit=3, crash_window=10.0)
    restarts.died(0.0, "hang", has_new_snapshot=True, stall=STALL)
    restarts.died(600.0, "exit", has_new_snapshot=False)
    restarts.died(700.0, "exit", has_new_snapshot=False)
    end = restarts.died(701.0, "exit", has_new_snapshot=False)
    assert isinstance(end, Enough), "the first one never gets too old, the second one has"
    assert "1 of them" in end.reason


def test_a_start_has_as_long_as_a_hang_and_at_least_ten_minutes():
    bounds = [(None, None), (60.0, None), (900.0, None), (60.0, 5.0), (None, 5.0)]
    found = [Settings((), hang_timeout=h, start_timeout=s).start_bound for h, s in bounds]
    assert found == [None, 600.0, 900.0, 5.0, 5.0]


def _watched(timeout, times, signs):
    liveness = Liveness(0.0, None, timeout)
    pairs = zip(times, signs, strict=True)
    return [liveness.look(at, sign, has_ticked=True) for at, sign in pairs]


def test_before_the_first_tick_the_bound_of_the_start_holds():
    liveness = Liveness(0.0, 4.0, 1.0)
    times = [0.4 * n for n in range(1, 12)]
    assert [liveness.look(at, 1, has_ticked=False) for at in times] == [False] * 10 + [True]
    assert not liveness.look(4.5, 2, has_ticked=True), "a tick is a sign of life"
    assert [liveness.look(at, 2, has_ticked=True) for at in (5.0, 5.6)] == [False, True]
    # A wrapper has started a new trainer: its start has its own bound again.
    assert not liveness.look(6.0, 3, has_ticked=False)
    assert not liveness.look(8.0, 3, has_ticked=False)


def test_silence_is_a_hang_and_any_change_is_a_sign_of_life():
    times = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert _watched(2.0, times, [1] * 6) == [False] * 4 + [True, True]
    assert _watched(2.0, times, [1, 2, 3, 4, 5, 0]) == [False] * 6
    assert not any(_watched(None, times, [1] * 6))


def test_a_supervisor_that_slept_blames_nobody():
    assert _watched(2.0, [0.1, 500.0, 500.1], [1, 1, 1]) == [False] * 3


def test_only_a_kill_that_was_not_ours_is_called_somebody_elses() -> None:
    assert "sent by somebody else" in told(KILLED, "signal", None)
    assert told(KILLED, "hang", None) == "hang: SIGKILL"
