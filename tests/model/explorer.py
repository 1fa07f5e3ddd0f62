"""Breadth-first exploration of a protocol: every state, every order of steps."""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from invariants import check, check_end
from protocol import Protocol
from words import Broken, Limits, State, first_state


@dataclass(frozen=True, slots=True)
class Found:
    """What an exploration came to; `trace` leads to the broken state, shortest first."""

    states: int
    steps: int
    ends: int
    is_finite: bool
    broken: str | None = None
    trace: tuple[str, ...] = ()


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """States are in no circle, and so many that looking for one takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_no_collections()
def explore(limits: Limits, broken: frozenset[str] = frozenset()) -> Found:
    """Visit every state that can be reached; stop at the first that is broken.

    `is_finite`: no state comes again in any run, so that every run ends, in a state that was
    checked as an end.
    """
    protocol = Protocol(limits, broken)
    start = first_state(limits)
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    followers: dict[State, list[State]] = {}
    waiting = deque([start])
    steps = ends = 0
    while waiting:
        state = waiting.popleft()
        try:
            check(state)
            after = list(protocol.steps(state))
            if not any(name != "trainer: dies" for name, _ in after):
                # The trainer has closed or is dead, and the writer has nothing left to do.
                ends += 1
                check_end(state)
        except Broken as error:
            trace = _trace(came_from, state)
            return Found(len(came_from), steps, ends, False, str(error), trace)
        steps += len(after)
        followers[state] = [next_state for _, next_state in after]
        for name, next_state in after:
            if next_state not in came_from:
                came_from[next_state] = (state, name)
                waiting.append(next_state)
    return Found(len(came_from), steps, ends, _is_finite(followers))


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names = []
    while (before := came_from[state]) is not None:
        state, name = before
        names.append(name)
    return tuple(reversed(names))


def _is_finite(followers: dict[State, list[State]]) -> bool:
    """Whether no run comes back to where it was (Kahn 1962: all states can be put in order)."""
    arrivals = dict.fromkeys(followers, 0)
    for after in followers.values():
        for state in after:
            arrivals[state] += 1
    ready = [state for state, count in arrivals.items() if count == 0]
    ordered = 0
    while ready:
        ordered += 1
        for state in followers[ready.pop()]:
            arrivals[state] -= 1
            if arrivals[state] == 0:
                ready.append(state)
    return ordered == len(followers)
