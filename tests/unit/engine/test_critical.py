"""Calls that signal handlers cannot cut in two."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from pyengine.engine import critical
from pyengine.engine.critical import is_in_signal_handler, run_beside, run_whole


@pytest.fixture
def usr1() -> Iterator[Any]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def no_thread_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process whose first call this is."""
    monkeypatch.setattr(critical, "_threads", critical._Threads())


def test_the_result_and_the_error_come_through() -> None:
    assert run_whole(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_whole(lambda: 1 // 0)


def test_an_interrupt_waits_for_the_end_of_the_call() -> None:
    done: list[str] = []
    entered = threading.Event()

    def work() -> None:
        entered.set()
        signal.raise_signal(signal.SIGINT)
        for _ in range(1000):
            threading.get_ident()
        done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        run_whole(work)
    assert entered.is_set()
    assert done == ["whole"]


def test_a_handler_meets_no_lock_that_its_own_thread_holds(usr1: Any) -> None:
    lock = threading.Lock()
    seen: list[bool] = []
    usr1(lambda *_: seen.append(lock.acquire(timeout=10)))

    def work() -> None:
        with lock:
            signal.raise_signal(signal.SIGUSR1)

    run_whole(work)
    assert seen == [True]


@pytest.mark.usefixtures("no_thread_yet")
def test_where_no_thread_can_be_started_the_call_is_whole_all_the_same(
    usr1: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the interpreter's shutdown, where Python 3.12 refuses new threads."""
    order: list[str] = []
    usr1(lambda *_: order.append("handler"))

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def work() -> str:
        signal.raise_signal(signal.SIGUSR1)
        order.append("work")
        return "done"

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_whole(work) == "done"
    assert order == ["work", "handler"]


@pytest.mark.usefixtures("no_thread_yet")
def test_a_handler_that_raises_before_the_call_begins_prevents_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise RuntimeError("of a handler")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    called: list[int] = []
    with pytest.raises(RuntimeError, match="of a handler"):
        run_whole(lambda: called.append(1))
    assert called == []


def test_another_thread_calls_directly() -> None:
    names: list[str] = []
    thread = threading.Thread(
        target=lambda: run_whole(lambda: names.append(threading.current_thread().name)), name="mine"
    )
    thread.start()
    thread.join()
    assert names == ["mine"]


class Halves:
    """Two parts of a call: what was done of them, and which waits for whom."""

    def __init__(self, fails: str = "") -> None:
        self.done: list[str] = []
        self.block_ended = threading.Event()
        self._fails = fails

    def steps(self) -> Iterator[int]:
        self._do("first")
        yield 7
        assert self.block_ended.wait(60), "the block does not wait for the second part"
        self._do("second")

    def _do(self, part: str) -> None:
        if part == self._fails:
            raise OSError(part)
        self.done.append(part)


def test_the_second_part_runs_beside_the_block_which_ends_after_it() -> None:
    halves = Halves()
    asked: list[int] = []
    with run_beside(halves.steps, lambda: asked.append(1)) as value:
        assert (value, halves.done, asked) == (7, ["first"], [1])
        halves.done.append("block")
        halves.block_ended.set()
    assert halves.done == ["first", "block", "second"]


@pytest.mark.parametrize("part", ["first", "second"])
def test_what_a_part_raises_comes_before_or_after_the_block(part: str) -> None:
    halves = Halves(fails=part)
    begun: list[int] = []

    def run() -> None:
        with run_beside(halves.steps) as value:
            begun.append(value)
            halves.block_ended.set()

    with pytest.raises(OSError, match=part):
        run()
    assert begun == ([] if part == "first" else [7])


@pytest.mark.parametrize("fails", ["", "second"])
def test_an_error_of_the_block_waits_for_the_second_part_and_gives_way_to_its_error(
    fails: str,
) -> None:
    halves = Halves(fails=fails)

    def run() -> None:
        with run_beside(halves.steps):
            halves.block_ended.set()
            raise KeyError("of the block")

    with pytest.raises(OSError if fails else KeyError, match=fails or "of the block"):
        run()
    assert halves.done == (["first"] if fails else ["first", "second"])


@pytest.mark.parametrize("fails", ["", "second"])
def test_an_interrupt_of_the_block_comes_when_both_parts_have_ended(fails: str) -> None:
    halves = Halves(fails=fails)

    def run() -> None:
        with run_beside(halves.steps):
            halves.block_ended.set()
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert halves.done == (["first"] if fails else ["first", "second"])


@pytest.mark.usefixtures("no_thread_yet")
def test_where_no_thread_can_be_started_both_parts_come_before_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    halves = Halves()
    halves.block_ended.set()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with run_beside(halves.steps) as value:
        assert (value, halves.done) == (7, ["first", "second"])
    with pytest.raises(KeyError), run_beside(halves.steps):
        raise KeyError


class Handlers:
    def __init__(self) -> None:
        self.seen: list[bool] = []

    def method(self, number: int, frame: object) -> None:
        self.seen.append(nested())

    __call__ = method


def nested() -> bool:
    return is_in_signal_handler()


@pytest.mark.parametrize("form", ["function", "method", "partial", "callable"])
def test_a_signal_handler_is_recognised_from_deep_inside(usr1: Any, form: str) -> None:
    handlers = Handlers()

    def function(number: int, frame: object) -> None:
        handlers.seen.append(nested())

    def with_extra(extra: int, number: int, frame: object) -> None:
        handlers.seen.append(nested())

    usr1(
        {
            "function": function,
            "method": handlers.method,
            "partial": functools.partial(with_extra, 1),
            "callable": handlers,
        }[form]
    )
    signal.raise_signal(signal.SIGUSR1)
    assert handlers.seen == [True]
    assert not is_in_signal_handler()


@pytest.mark.usefixtures("no_thread_yet")
@pytest.mark.parametrize("must", [False, True])
def test_what_lets_go_runs_even_where_an_interrupt_comes_before_it_began(
    monkeypatch: pytest.MonkeyPatch, must: bool
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_whole(lambda: done.append(1), even_if_interrupted=must)
    assert done == [1] * must


def test_one_thread_serves_all_calls_and_holds_on_to_nothing() -> None:
    served: set[int] = set()
    for _ in range(20):
        box = threading.Event()
        seen = weakref.ref(box)
        run_whole(lambda held=box: served.add(threading.get_ident()))
        del box
        deadline = time.monotonic() + 10
        while seen() is not None:
            assert time.monotonic() < deadline
            gc.collect()
    assert len(served) == 1


def test_a_call_in_a_handler_does_not_wait_for_the_one_it_interrupted(usr1: Any) -> None:
    inner = threading.Event()
    usr1(lambda *_: run_whole(inner.set))

    def work() -> bool:
        deadline = time.monotonic() + 10
        # Again and again: a signal that comes just before the main thread blocks wakes nobody.
        while not inner.wait(0.02) and time.monotonic() < deadline:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return inner.is_set()

    assert run_whole(work)


def test_a_forked_child_has_a_thread_of_its_own() -> None:
    run_whole(lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(7 if run_whole(lambda: 7) == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
