"""Retention: only ancestors go, and never the ones that somebody needs."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pyengine.catalog import retention
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.lines import Line
from pyengine.format.manifest import Manifest

A, B, C = "000000000000000a", "000000000000000b", "000000000000000c"


def _snapshot(generation, sequence, line):
    return SnapshotInfo.of(
        "x",
        Manifest(
            run_id="r",
            generation=generation,
            sequence=sequence,
            line=line,
            global_step=1000 - sequence,
            created_at="",
        ),
    )


def _line(text, parent=None):
    return Line(
        id=int(text, 16),
        generation=1,
        parent=parent.name if parent else None,
        parent_line=parent.line if parent else None,
        start_rows={},
        opened_at="",
    )


ON_A = [_snapshot(1, sequence, A) for sequence in range(1, 6)]


def _plan(snapshots, lines, **options):
    options.setdefault("keep_last", 2)
    return set(retention.plan(snapshots, lines={line.text: line for line in lines}, **options))


def _named(*snapshots):
    return {snapshot.name for snapshot in snapshots}


def test_last_n_of_one_line_stay():
    assert _plan(ON_A, [_line(A)]) == _named(*ON_A[:3])


def test_order_is_generation_and_sequence_not_step_or_position():
    assert _plan(ON_A[::-1], [_line(A)]) == _named(*ON_A[:3])


def test_nothing_goes_while_there_are_few():
    assert _plan(ON_A[:2], [_line(A)]) == set()
    assert _plan([], []) == set()


@pytest.mark.parametrize("keep_last", [0, 1])
def test_newest_always_stays(keep_last):
    assert _plan(ON_A, [_line(A)], keep_last=keep_last) == _named(*ON_A[:4])


def _scored(snapshot, **metrics):
    return dataclasses.replace(snapshot, metrics=metrics)


def test_the_highest_value_of_a_metric_stays_and_nan_is_none():
    values = [1.0, 7.0, math.nan, 7.0, 2.0, 3.0]
    run = [_scored(_snapshot(1, i + 1, A), reward=value) for i, value in enumerate(values)]
    kept = {run[1].name, run[4].name, run[5].name}
    gone = _plan(run, [_line(A)], keep_last=2, keep_best="reward")
    assert gone == _named(*run) - kept
    assert _plan(run, [_line(A)], keep_last=2, keep_best="other") == _named(*run[:4])


def test_newest_verified_stays():
    gone = _plan(
        ON_A,
        [_line(A)],
        keep_last=1,
        verified={ON_A[0].name, ON_A[2].name},
    )
    assert gone == _named(ON_A[0], ON_A[1], ON_A[3])


def test_resumed_run_keeps_n_and_not_one_for_every_resume():
    on_b = _snapshot(2, 1, B)
    on_c = [_snapshot(3, 1, C), _snapshot(3, 2, C)]
    lines = [_line(A), _line(B, ON_A[-1]), _line(C, on_b)]
    assert _plan([*ON_A, on_b, *on_c], lines) == _named(*ON_A, on_b)


def test_line_that_was_left_behind_keeps_what_was_not_an_ancestor():
    on_b = [_snapshot(2, sequence, B) for sequence in (1, 2)]
    lines = [_line(A), _line(B, ON_A[2])]
    assert _plan([*ON_A, *on_b], lines) == _named(*ON_A[:3])


def test_fresh_line_has_no_ancestors():
    on_b = [_snapshot(2, sequence, B) for sequence in (1, 2, 3)]
    assert _plan([*ON_A, *on_b], [_line(A), _line(B)]) == _named(on_b[0])


def test_history_goes_on_through_a_parent_that_is_gone():
    on_b = [_snapshot(2, sequence, B) for sequence in (1, 2)]
    lines = [_line(A), _line(B, ON_A[-1])]
    assert _plan([*ON_A[:2], *on_b], lines) == _named(*ON_A[:2])


def test_unrecorded_line_ends_the_known_history():
    on_b = [_snapshot(2, sequence, B) for sequence in (1, 2, 3)]
    assert _plan([*ON_A, *on_b], [_line(A)]) == _named(on_b[0])


def _after(snapshot, parent):
    return dataclasses.replace(snapshot, parent=parent.name)


def test_an_unrecorded_line_grew_from_its_first_snapshots_parent():
    on_b = [_after(_snapshot(2, 1, B), ON_A[-1])]
    on_b += [_after(_snapshot(2, 2, B), on_b[0])]
    assert _plan([*ON_A, *on_b], []) == _named(*ON_A)
    assert _plan([*ON_A, *on_b], [], keep_last=4) == _named(*ON_A[:3])


def test_what_was_left_behind_stays_where_lines_are_not_recorded():
    on_b = [_after(_snapshot(2, 1, B), ON_A[2])]
    assert _plan([*ON_A, *on_b], [], keep_last=1) == _named(*ON_A[:3])


def test_the_witness_of_an_unrecorded_line_stays_as_long_as_anything_older():
    on_b = [_after(_snapshot(2, 1, B), ON_A[-1])]
    for sequence in range(2, 5):
        on_b.append(_after(_snapshot(2, sequence, B), on_b[-1]))
    verified = {ON_A[-1].name}
    assert _plan([ON_A[-1], *on_b], [], verified=verified) == _named(on_b[1])
    assert _plan([ON_A[-1], *on_b], [_line(B, ON_A[-1])], verified=verified) == _named(*on_b[:2])
    # Once nothing older is kept both go.
    assert _plan([ON_A[-1], *on_b], []) == _named(ON_A[-1], *on_b[:2])


def _opened(text, number, parent=None):
    return dataclasses.replace(_line(text, parent), number=number)


def _forgotten(lines, current, used, present=()):
    records = {line.text: line for line in lines}
    return set(
        retention.plan_lines(
            records, current=current, used=used, present={info.name for info in present}
        )
    )


def test_records_of_restores_that_failed_go_but_for_the_newest_of_each_snapshot():
    failed = [_opened(f"{n:016x}", n, ON_A[-1]) for n in range(16, 20)]
    lines = [_opened(A, 1), *failed, _opened(B, 20, ON_A[-1])]
    assert _forgotten(lines, B, {A, B}, ON_A) == {line.text for line in failed}
    left = [_opened(f"{n:016x}", n, ON_A[0]) for n in range(32, 35)]
    gone = {line.text for line in [*failed, *left[:-1]]}
    assert _forgotten([*lines, *left, _opened(C, 40)], C, {A, B}, ON_A) == gone
    # Once its snapshot is gone there is nothing to prove.
    assert left[-1].text in _forgotten([*lines, *left, _opened(C, 40)], C, {A, B}, ON_A[1:])


def test_records_between_used_lines_stay_and_those_before_the_first_go():
    names = [f"{n:016x}" for n in range(1, 7)]
    on = [_snapshot(1, n, name) for n, name in enumerate(names, 1)]
    chain = [_opened(names[0], 1)]
    chain += [_opened(names[n], n + 1, on[n - 1]) for n in range(1, 6)]
    assert _forgotten(chain, names[5], {names[2], names[5]}) == set(names[:2])


def test_records_opened_later_stay_and_an_unrecorded_line_forgets_nothing():
    later = _opened(C, 3, ON_A[-1])
    assert _forgotten([_opened(A, 1), _opened(B, 2), later], B, {B}) == {A}
    assert _forgotten([_opened(A, 1), later], B, {B}) == set()


def test_circular_records_end():
    on_b = _snapshot(2, 1, B)
    assert _forgotten([_opened(A, 1, on_b), _opened(B, 2, ON_A[-1])], B, {B}) == {A}


def test_circular_lines_end():
    on_b = _snapshot(2, 1, B)
    assert _plan([*ON_A, on_b], [_line(A, on_b), _line(B, ON_A[-1])]) == _named(*ON_A[:4])
