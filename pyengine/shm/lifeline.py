"""The lifeline: how a supervisor sees that its trainers live, and why one died.

A memfd of the supervisor, a page for its header and eight for each trainer:

    page 0          magic, token
    page 1 + 8 i    u64: pid, start ticks, signs of life, ticks, step, bytes of runs, bytes of
                    report, how many runs had no room; at 64: the report, a JSON object
    the next seven  "generation path" of each run, paths byte for byte, NUL between two: room for
                    six of the longest paths that there are (PATH_MAX)

Who holds the lock on byte i of the file has slot i; the kernel frees it at death, and what the
slot says stays for the supervisor to read. Each process has one slot, whatever number of engines it
makes. The address (`pid:fd:token` of the supervisor, in the environment) is opened through /proc,
so that wrappers which close descriptors do no harm; where it leads nowhere, or to something else,
the trainer runs as it would alone. A forked child lets go: it cannot make its parent look alive.
The trainer holds a pidfd of the supervisor, by which it sees that it is alone.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import select
import struct
from dataclasses import dataclass
from typing import Any

from pyengine import config
from pyengine.config import PAGE_BYTES
from pyengine.events import logger
from pyengine.fs import door, process
from pyengine.fs.forking import register_for_child
from pyengine.fs.locks import OfdLock

MAGIC = b"pylife02"
TOKEN_BYTES = 16
SLOTS = 64
SLOT_BYTES = 8 * PAGE_BYTES
LIFELINE_BYTES = PAGE_BYTES + SLOTS * SLOT_BYTES

_ADDRESS = re.compile(r"(\d{1,10}):(\d{1,7}):([0-9a-f]{32})", re.ASCII)
_WORDS = struct.Struct("<8Q")
_PID, _START, _SIGNS, _TICKS, _STEP, _RUNS_BYTES, _REPORT_BYTES, _UNTOLD_RUNS = range(8)
_NO_STEP = 2**64 - 1
_REPORT_OFFSET = 64
_RUNS_OFFSET = PAGE_BYTES
_TEXT_MAX = 800


@dataclass(frozen=True, slots=True)
class SlotView:
    """What a slot says: the process, its `signs` of life besides ticks (that it is there, that it
    has restored, all of whoever had the slot before), how often it ticked, the step that it is at
    (None: not known yet), which generations it has claimed (by run directory), of how many runs
    more it could not say so, and how it says it ended."""

    slot: int
    pid: int
    start_ticks: int
    signs: int
    ticks: int
    step: int | None
    runs: dict[str, int]
    untold_runs: int
    report: dict[str, Any] | None


class Lifeline:
    """A trainer's end: one slot, held until the process dies. Made by `attach`.

    In a forked child it is inert.
    """

    def __init__(self, memory: mmap.mmap, slot: int, lock: OfdLock, supervisor: int) -> None:
        self._lock = lock
        self._supervisor = supervisor
        self._poller = select.poll()
        self._poller.register(supervisor, select.POLLIN)
        self._page: memoryview | None = _slot(memory, slot)
        self._words: memoryview | None = self._page[: _WORDS.size].cast("Q")
        self._runs: dict[str, int] = {}
        self._write_text(_REPORT_OFFSET, _REPORT_BYTES, b"")
        self._write_text(_RUNS_OFFSET, _RUNS_BYTES, b"")
        self._words[_UNTOLD_RUNS] = 0
        status = process.read_status(os.getpid())
        # That the slot's last owner ticked stays a sign of life; it says nothing about this one.
        self._words[_SIGNS] += self._words[_TICKS] + 1
        self._words[_TICKS] = 0
        self._words[_STEP] = _NO_STEP
        self._words[_START] = status.start_ticks if status else 0
        self._words[_PID] = os.getpid()
        register_for_child(self)

    @classmethod
    def attach(cls) -> Lifeline | None:
        """Take a slot of the supervisor that the environment tells of; None: there is none."""
        match = _ADDRESS.fullmatch(config.lifeline_address() or "")
        if match is None:
            return None
        path = f"/proc/{match[1]}/fd/{match[2]}"
        pidfd = -1
        with contextlib.suppress(OSError, ValueError):
            # Before the token proves that the number is still the supervisor's.
            pidfd = os.pidfd_open(int(match[1]))
            memory = _map(path)
            is_ours = memory[: len(MAGIC) + TOKEN_BYTES] == MAGIC + bytes.fromhex(match[3])
            for slot in range(SLOTS if is_ours else 0):
                lock = OfdLock.try_acquire(path, slot)
                if lock is not None:
                    return cls(memory, slot, lock, pidfd)
        if pidfd >= 0:
            os.close(pidfd)
        return None

    @property
    def is_alone(self) -> bool:
        """Whether the supervisor has ended; one system call."""
        return self._words is not None and bool(self._poller.poll(0))

    def tick(self, step: int) -> None:
        """Say that a tick was made."""
        words = self._words
        if words is not None:
            words[_TICKS] += 1
            words[_STEP] = step

    def restored(self, step: int | None) -> None:
        """Say that a restore is over, and at which step training goes on (None: at its begin)."""
        words = self._words
        if words is not None:
            words[_SIGNS] += 1
            words[_STEP] = _NO_STEP if step is None else step

    def add_run(self, run_dir: str, generation: int) -> None:
        """Say which run this process has claimed as which generation, besides those before.

        Where the room for that is used up: that there is such a run, with a warning.
        """
        runs = {**self._runs, run_dir: generation}
        text = b"\0".join(b"%d %s" % (number, os.fsencode(run)) for run, number in runs.items())
        if len(text) <= SLOT_BYTES - _RUNS_OFFSET:
            self._runs = runs
            self._write_text(_RUNS_OFFSET, _RUNS_BYTES, text)
        elif self._words is not None:
            self._words[_UNTOLD_RUNS] += 1
            logger.warning(
                "the supervisor cannot be told of %s: the paths of this process's runs are %d "
                "bytes, and there is room for %d; name it by --run",
                run_dir,
                len(text),
                SLOT_BYTES - _RUNS_OFFSET,
            )

    def report(self, error: BaseException) -> None:
        """Say by which exception this process is about to end; the last word counts."""
        record = describe_error(error)
        for message_max, causes_max in ((_TEXT_MAX, 4), (_TEXT_MAX // 4, 1), (0, 0)):
            record["message"] = record["message"][:message_max]
            record["causes"] = record["causes"][:causes_max]
            text = json.dumps(record).encode()
            if len(text) <= _RUNS_OFFSET - _REPORT_OFFSET:
                break
        self._write_text(_REPORT_OFFSET, _REPORT_BYTES, text)

    def _write_text(self, offset: int, word: int, text: bytes) -> None:
        if self._page is not None and self._words is not None:
            self._words[word] = 0  # torn text must not count
            self._page[offset : offset + len(text)] = text
            self._words[word] = len(text)

    def _after_fork_in_child(self) -> None:
        self._page = self._words = None
        self._close()

    def _close(self) -> None:
        fd, self._supervisor = self._supervisor, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end
            self._close()


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain values: `type`, `bases`, `message`, `errno`, and `causes` (the
    type, bases and errno of what it came from)."""
    record = _describe(error)
    record["message"] = str(error)[:_TEXT_MAX]
    causes: list[dict[str, Any]] = []
    met = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in met and len(causes) < 4:
        met.add(id(cause))
        causes.append(_describe(cause))
        cause = cause.__cause__ or cause.__context__
    return {**record, "causes": causes}


def _describe(error: BaseException) -> dict[str, Any]:
    bases = [_named(kind) for kind in type(error).__mro__[1:-1]]
    number = getattr(error, "errno", None)
    return {
        "type": _named(type(error)),
        "bases": bases[:8],
        "errno": number if isinstance(number, int) else None,
    }


def _named(kind: type) -> str:
    return kind.__name__.encode("ascii", "replace")[:64].decode()


def read_slots(memory: mmap.mmap | memoryview) -> list[SlotView]:
    """Return the slots that were ever taken. Text that is torn reads as absent."""
    found = []
    for slot in range(SLOTS):
        page = _slot(memory, slot)
        words = _WORDS.unpack_from(page)
        if words[_PID]:
            report = _parsed(bytes(page[_REPORT_OFFSET:_RUNS_OFFSET][: words[_REPORT_BYTES]]))
            found.append(
                SlotView(
                    slot=slot,
                    pid=words[_PID],
                    start_ticks=words[_START],
                    signs=words[_SIGNS],
                    ticks=words[_TICKS],
                    step=None if words[_STEP] == _NO_STEP else words[_STEP],
                    runs=_generations(bytes(page[_RUNS_OFFSET:][: words[_RUNS_BYTES]])),
                    untold_runs=words[_UNTOLD_RUNS],
                    report=report if isinstance(report, dict) else None,
                )
            )
    return found


def _slot(memory: mmap.mmap | memoryview, slot: int) -> memoryview:
    return memoryview(memory)[PAGE_BYTES + slot * SLOT_BYTES :][:SLOT_BYTES]


def _generations(text: bytes) -> dict[str, int]:
    found = {}
    for entry in text.split(b"\0"):
        number, _, run = entry.partition(b" ")
        if number.isdigit() and len(number) <= 20 and run:
            found[os.fsdecode(run)] = int(number)
    return found


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _map(path: str) -> mmap.mmap:
    fd = door.active.open(path, os.O_RDWR)
    try:
        if os.fstat(fd).st_size != LIFELINE_BYTES:
            raise ValueError(f"{path} is no lifeline")
        return mmap.mmap(fd, LIFELINE_BYTES)
    finally:
        door.active.close(fd)
