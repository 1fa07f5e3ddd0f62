"""What must hold whatever was cut, killed or refused.

A restore yields a snapshot that was cut by the scenario, with every value as it was then, and not
older than the last one whose `wait()` had returned; nothing at all only where none had. From there
the run goes on: a claim, two more snapshots, and a restore of the newer one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyengine
from crash.lives import KEEP_LAST, Facts, go_on, note_restored
from crash.mending import BRANCH
from crash.thread_writer import NoWriter, ThreadWriter, writers_in_threads
from crash.training import Training
from pyengine.catalog import quarantine
from pyengine.catalog.scan import committed_names, scan_snapshots
from pyengine.catalog.verify import verify_snapshot
from pyengine.format import names

BOUND_SECONDS = {"step": 5.0, "tick": 5.0, "snapshot": 30.0}
"""How long a call may block: config.SLOT_WAIT_SECONDS, STAGING_WAIT_SECONDS."""

_MARGIN_SECONDS = 5.0
"""For a machine that does something else."""


def order_of(name: str) -> tuple[int, int]:
    """Return (generation, sequence) of a snapshot's name."""
    parsed = names.parse_snapshot_name(name)
    assert parsed is not None, name
    return (parsed.generation, parsed.sequence)


def floor_of(facts: Iterable[dict[str, Any]]) -> str | None:
    """Return the newest snapshot whose wait() returned, or None."""
    durable = [fact["name"] for fact in facts if fact.get("event") == "durable"]
    return max(durable, key=order_of, default=None)


@dataclass(frozen=True, slots=True)
class Promise:
    """What must be there after a power cut: a snapshot no older than `floor`; a damaged one, until
    it is collected, under a name; the branch, once its making has returned."""

    floor: str | None = None
    damaged: str | None = None
    is_collected: bool = False
    is_branched: bool = False

    def after(self, fact: dict[str, Any]) -> Promise:
        """Return what is promised once this was noted."""
        event = fact.get("event")
        if event == "durable":
            return replace(self, floor=max(self.floor or fact["name"], fact["name"], key=order_of))
        if event == "damaged":
            return replace(self, floor=fact["before"], damaged=fact["name"])
        if event == "collecting":
            return replace(self, is_collected=True)
        return replace(self, is_branched=True) if event == "branched" else self

    def broken(self, root: str) -> str | None:
        """Return what of it, but for the floor, does not hold of what lies below `root`."""
        run_dir = f"{root}/run"
        if self.damaged is not None and not self.is_collected:
            moved = map(names.parse_quarantine_name, quarantine.snapshot_names(run_dir))
            there = {name.text for name in (*committed_names(run_dir), *moved) if name is not None}
            if self.damaged not in there:
                return f"{self.damaged}, damaged, is under no name any more"
        if self.is_branched:
            found = scan_snapshots(f"{root}/{BRANCH}")
            wrong = bad_snapshots(f"{root}/{BRANCH}")
            if wrong is not None or len(found.snapshots) != 1:
                return f"the branch is not whole: {wrong or found.snapshots}"
        return None


def judge(restored: dict[str, Any], floor: str | None) -> str | None:
    """Return what is wrong with a restore that was noted, or None."""
    name = restored["name"]
    if name is None:
        return f"nothing was restored, and {floor} was durable" if floor else None
    if not restored["right"]:
        return f"{name} came back with other values"
    if floor is not None and order_of(name) < order_of(floor):
        return f"{name} came back, and {floor} was durable"
    return None


def judge_all(facts: list[dict[str, Any]], before: int) -> str | None:
    """Return what is wrong with everything that lives, and `go_on` at last, have noted.

    `before` counts the facts that were there before the faulty life.
    """
    for number, fact in enumerate(facts):
        if fact["event"] == "restored":
            wrong = judge(fact, floor_of(facts[:number]))
            if wrong is not None:
                return wrong
        if fact["event"] == "latest":
            added = [one["step"] for one in facts[:number] if one["event"] == "added"]
            wrong = _lost_rows(fact, max(added, default=-1) + 1)
            if wrong is not None:
                return wrong
        if fact["event"] == "longest":
            for what, bound in BOUND_SECONDS.items():
                seconds = fact.get(what, 0.0)
                if number >= before and seconds > bound + _MARGIN_SECONDS:
                    return f"{what} blocked for {seconds:.1f} s, its bound is {bound:.0f} s"
    silent = _failed_silently(facts)
    if silent:
        return f"{silent[0]} failed, and nobody was told"
    if not facts or facts[-1]["event"] != "whole":
        return "the run did not go on"
    return None


def _lost_rows(latest: dict[str, Any], added: int) -> str | None:
    """Return what is wrong with a ring that was to have all rows added before a trainer's death."""
    if not latest["right"]:
        return "the latest rows came back with other values"
    if min(latest["counts"]) < added:
        return f"rows were lost: {added} a lane were added, {latest['counts']} came back"
    return None


def mistaken(facts: list[dict[str, Any]], run_dir: str) -> str | None:
    """Return how a read that failed was taken for something else: it is an OSError of the call that
    meets it, or of a snapshot, and proves no damage, so that nothing is moved."""
    for fact in facts:
        if fact["event"] == "error" and fact["type"] in ("DamageError", "TruncatedFileError"):
            return f"a failed read was taken for damage: {fact['text']}"
    moved = quarantine.snapshot_names(run_dir)
    return f"a failed read moved {moved} to quarantine" if moved else None


def _failed_silently(facts: list[dict[str, Any]]) -> list[str]:
    told = "\n".join(fact["text"] for fact in facts if fact["event"] in ("error", "logged"))
    fates = [fact for fact in facts if fact["event"] == "fate"]
    return [
        fact["name"]
        for fact in fates
        if fact["state"] != "COMMITTED"
        and fact["name"] not in told
        # One that was given up is told of by its number.
        and f"snapshot {order_of(fact['name'])[1]} " not in told
    ]


def restore_here(run_dir: str, seed: int, promise: Promise) -> str | None:
    """Restore in this process, with no writer at work; return what is wrong, or None."""
    with writers_in_threads(NoWriter):
        facts = Facts()
        training = Training(seed)
        with pyengine.SnapshotEngine(run_dir, keep_last=KEEP_LAST, budget=None) as engine:
            training.track(engine)
            note_restored(facts, engine.restore(), training, seed)
        training.close()
    wrong = judge(facts.facts[0], promise.floor)
    return wrong or bad_snapshots(run_dir, eager=False, but=promise.damaged)


def go_on_here(run_dir: str, seed: int, promise: Promise) -> str | None:
    """The same, then go on: two snapshots and a restore, the writer in a thread."""
    facts = Facts()
    if promise.floor is not None:
        facts.note(event="durable", name=promise.floor)
    with writers_in_threads(ThreadWriter):
        go_on(run_dir, facts, seed)
    wrong = judge_all(facts.facts, 0) or bad_snapshots(run_dir, but=promise.damaged)
    return wrong or left_over(run_dir)


def bad_snapshots(run_dir: str, *, eager: bool = True, but: str | None = None) -> str | None:
    """Return what is wrong with any snapshot, the older ones too; `eager` reads every byte.

    But for one that was damaged on purpose: a cut while it was moved to quarantine may leave it in
    both places, and a restore passes over what is the same file as a damaged one.
    """
    found = scan_snapshots(run_dir)
    problems = list(found.problems)
    if eager:
        for info in found.snapshots:
            problems += verify_snapshot(info.path) if info.name != but else []
    return "; ".join(problem.text for problem in problems) or None


def left_over(run_dir: str) -> str | None:
    """Return what a run that was closed has left lying about, or None."""
    left = [
        os.path.join(directory, name)
        for directory, directories, files in os.walk(run_dir)
        for name in (*directories, *files)
        if name.startswith((".tmp-", ".trash-"))
    ]
    return f"left over: {left}" if left else None
