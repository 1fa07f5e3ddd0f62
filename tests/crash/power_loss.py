"""The power-loss sweep: record a scenario once, then restore from what cuts may leave of it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgpack
import xxhash

from crash.disk import Disk
from crash.disk_states import CORNERS, SAMPLED, Entry, state_of
from crash.lives import Faults, Log, play
from crash.oracle import Promise, go_on_here, restore_here
from pyengine.fs.durable import remove_tree

MEMORY = "/dev/shm"
"""Where states are laid out: an fsync costs nothing there, and nobody's disk is worn out."""

_WHOLE_SHARE = 10
"""One state in so many is gone on from; the others are restored from only."""

_STATE_SECONDS = 60


@dataclass(frozen=True)
class Journal:
    """A recorded scenario: its seed, where it ran, and the notes of all calls."""

    seed: int
    root: str
    notes: list[dict[str, Any]]

    def save(self, path: str) -> None:
        with open(path, "wb") as file:
            msgpack.pack({"seed": self.seed, "root": self.root, "notes": self.notes}, file)

    @classmethod
    def read(cls, path: str) -> Journal:
        with open(path, "rb") as file:
            return cls(**msgpack.unpack(file))


Scenario = Callable[[str, Log, int, Faults], None]
"""Plays below a root, noting in a log, by a seed, with all processes following a plan."""


def record(seed: int, directory: str, scenario: Scenario = play) -> Journal:
    """Run a scenario once in `directory`, and return the journal of it.

    Line ids and the order of threads differ from time to time: who wants to replay a state exactly
    keeps the journal.
    """
    path = os.path.join(directory, "journal")
    root = os.path.join(os.path.realpath(directory), "root")
    os.mkdir(root)
    rule = ({"op": "changes", "action": "journal", "file": path},)
    log = Log(os.path.join(directory, "log"))
    scenario(root, log, seed, Faults(trainer=rule, writer=rule, every_writer=True))
    assert not [fact for fact in log.read() if fact["event"] == "error"], log.read()
    with open(path, "rb") as file:
        notes = list(msgpack.Unpacker(file, raw=False, max_buffer_size=1 << 30))
    return Journal(seed, root, notes)


@dataclass
class Tally:
    """What a sweep has tried, and what it found wrong: (how to replay it, what)."""

    tried: int = 0
    gone_on: int = 0
    repeated: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.tried += other.tried
        self.gone_on += other.gone_on
        self.repeated += other.repeated
        self.wrong += other.wrong


class Layout:
    """Lays states out in memory; unchanged files are links to one copy. A context manager."""

    def __init__(self) -> None:
        self._base = os.path.join(MEMORY, f"torture-{os.getpid()}")
        self._store = os.path.join(self._base, "store")
        self.root = os.path.join(self._base, "root")
        self._stored: dict[str, bytes] = {}

    def __enter__(self) -> Layout:
        shutil.rmtree(self._base, ignore_errors=True)
        os.makedirs(self._store)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._base, ignore_errors=True)

    @contextlib.contextmanager
    def state(self, entries: list[Entry]) -> Iterator[str]:
        """Lay one state out, and clear it away afterwards; the directory it lies in."""
        os.mkdir(self.root)
        passing = set()
        for path, kind, what in entries:
            place = f"{self.root}/{path}"
            if kind == "directory":
                os.mkdir(place)
            elif kind == "link":
                os.symlink(what, place)
            else:
                if what.key not in self._stored:
                    self._write(what.key, what.data)
                if not what.lasting:
                    passing.add(what.key)
                os.link(f"{self._store}/{what.key}", place)
        yield self.root
        remove_tree(self.root)
        for key in passing:
            del self._stored[key]
            os.unlink(f"{self._store}/{key}")

    def check_untouched(self) -> list[str]:
        """Return the stored files that somebody wrote into: files are write-once."""
        changed = []
        for key, data in self._stored.items():
            with open(f"{self._store}/{key}", "rb") as file:
                if file.read() != data:
                    changed.append(key)
        return changed

    def _write(self, key: str, data: bytes) -> None:
        with open(f"{self._store}/{key}", "wb") as file:
            file.write(data)
        self._stored[key] = data


def states_at(disk: Disk, seed: int, cut: int, count: int) -> Iterator[tuple[int, list[Entry]]]:
    """Yield (index, state) of a cut: the corners, then samples; each follows from its number."""
    for index in range(count):
        yield index, state_at(disk, seed, cut, index)


def state_at(disk: Disk, seed: int, cut: int, index: int) -> list[Entry]:
    """Return one state of a cut by its number."""
    kind = CORNERS[index] if index < len(CORNERS) else SAMPLED[index % len(SAMPLED)]
    return state_of(disk, kind, random.Random(f"{seed}/{cut}/{index}"))


def sweep(
    journal: Journal,
    count: int,
    *,
    worker: int = 0,
    workers: int = 1,
    only: tuple[int, int] | None = None,
) -> Tally:
    """Try about `count` different states of a journal, of all cuts or evenly spread ones.

    With several `workers` each takes its share of the cuts by its number, `worker`.
    `only` is (cut, index): that state alone, gone on from.
    """
    tally = Tally()
    seen: set[bytes] = set()
    cuts = sum(note["op"] != "mark" for note in journal.notes)
    every = max(1, cuts * len(CORNERS) // count)
    with Layout() as layout:
        for cut, disk, promise in _cuts(journal):
            if only is not None:
                if cut == only[0]:
                    state = state_at(disk, journal.seed, *only)
                    _try(tally, layout, journal, only, state, promise, whole=True)
            elif cut % every == 0 and cut // every % workers == worker:
                # Cuts differ in how much is pending: what one has too few of, the next ones get.
                left = (count // workers) - tally.tried
                share = -(-left * every * workers // max(1, cuts - cut + 1))
                share = max(len(CORNERS), share)
                _try_cut(tally, layout, journal, cut, disk, promise, seen, share)
        changed = layout.check_untouched()
    if changed:
        tally.wrong.append((f"{journal.seed}/*", f"{len(changed)} files were written into"))
    return tally


def _cuts(journal: Journal) -> Iterator[tuple[int, Disk, Promise]]:
    """Yield (number, disk, what must be there) after each call."""
    disk = Disk(journal.root)
    promise = Promise()
    cut = 0
    for note in journal.notes:
        if note["op"] == "mark":
            promise = promise.after(note)
            continue
        disk.apply(note)
        cut += 1
        yield cut, disk, promise


def _try_cut(
    tally: Tally,
    layout: Layout,
    journal: Journal,
    cut: int,
    disk: Disk,
    promise: Promise,
    seen: set[bytes],
    share: int,
) -> None:
    new = 0
    for index, state in states_at(disk, journal.seed, cut, 4 * share):
        digest = _digest(state, promise)
        if digest in seen:
            tally.repeated += 1
            continue
        seen.add(digest)
        whole = len(seen) % _WHOLE_SHARE == 0
        _try(tally, layout, journal, (cut, index), state, promise, whole=whole)
        new += 1
        if new >= share:
            return


def _digest(state: list[Entry], promise: Promise) -> bytes:
    digest = xxhash.xxh3_128(str(promise).encode())
    for path, kind, what in state:
        digest.update(f"{path}\0{kind}\0{what.key if kind == 'file' else what}\0".encode())
    return digest.digest()


def _try(
    tally: Tally,
    layout: Layout,
    journal: Journal,
    place: tuple[int, int],
    state: list[Entry],
    promise: Promise,
    *,
    whole: bool,
) -> None:
    tally.tried += 1
    tally.gone_on += whole
    with layout.state(state) as root, _no_longer_than(_STATE_SECONDS):
        try:
            check = go_on_here if whole else restore_here
            wrong = promise.broken(root) or check(f"{root}/run", journal.seed, promise)
        except Exception:  # whatever it is, it is what is wrong with this state
            wrong = traceback.format_exc()
    if wrong is not None:
        tally.wrong.append(("/".join(map(str, (journal.seed, *place))), wrong))


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"a state took longer than {seconds} s")

    former = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
