"""How long a process has been stopped, as far as looks can tell."""

from __future__ import annotations

from pyengine.engine.stopped import StopWatch
from pyengine.fs.process import ProcessStatus


def status(state: str, cpu_ticks: int = 7) -> ProcessStatus:
    return ProcessStatus(state, 1, cpu_ticks)


def test_the_time_counts_from_the_first_look_that_found_it_stopped() -> None:
    watch = StopWatch(1)
    assert watch.look(10.0, status("S")) == 0.0
    assert watch.look(20.0, status("T")) == 0.0
    assert watch.look(23.5, status("T")) == 3.5


def test_who_ran_between_two_looks_begins_anew() -> None:
    watch = StopWatch(1)
    watch.look(0.0, status("T", 7))
    assert watch.look(9.0, status("T", 8)) == 0.0
    assert watch.look(10.0, status("T", 8)) == 1.0
    assert watch.look(11.0, status("R", 9)) == 0.0
    assert watch.look(12.0, status("T", 9)) == 0.0


def test_a_debugger_a_slow_disk_and_an_end_are_no_stop() -> None:
    for state in ("t", "D", "Z"):
        watch = StopWatch(1)
        watch.look(0.0, status(state))
        assert watch.look(99.0, status(state)) == 0.0
    assert watch.look(100.0, None) == 0.0
