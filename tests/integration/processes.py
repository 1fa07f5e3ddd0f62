"""Real processes for integration tests, and a look at what they leave behind."""

from __future__ import annotations

import ast
import contextlib
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

TOKEN = "PYENGINE_TEST_TOKEN"
TIMEOUT = 60.0

_context = multiprocessing.get_context("forkserver")
# What it does not know each child imports anew.
_context.set_forkserver_preload(["processes", "program", "loop_runs", "sb3_runs"])


class Child:
    """A process that runs `function(send, *arguments)`; killed at the end of the test."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **environment: str) -> None:
        self._receiver, sender = _context.Pipe(duplex=False)
        self.process = _context.Process(
            target=_child_main, args=(sender, function, arguments, environment)
        )
        self.process.start()
        sender.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def receive(self, kind: str | None = None) -> Any:
        """Return the next message (of a kind: others are passed over)."""
        while True:
            if not self._receiver.poll(TIMEOUT):
                raise TimeoutError(f"no {kind or 'message'} came")
            message = self._receiver.recv()
            if message[0] == "error":
                raise message[1]
            if kind is None or message[0] == kind:
                return message

    def messages(self) -> list[Any]:
        """Return everything sent until the process ended."""
        found = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(self.receive())
        return found

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def join(self) -> int:
        """Wait for the end; return the exit code (negative: the signal)."""
        self.process.join(TIMEOUT)
        assert self.process.exitcode is not None, "the process did not end"
        return self.process.exitcode

    def close(self) -> None:
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self._receiver.close()


def _child_main(
    sender: Connection, function: Callable[..., Any], arguments: Any, environment: dict[str, str]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    try:
        function(sender.send, *arguments)
    except BaseException as error:
        with contextlib.suppress(Exception):
            pickle.dumps(error)
            sender.send(("error", error))
            sys.exit(1)
        sender.send(("error", RuntimeError(f"{type(error).__name__}: {error}")))
        sys.exit(1)


@pytest.fixture(scope="session", autouse=True)
def forkserver() -> None:
    """Start the server before any test marks the environment; it imports torch once for all."""
    with pytest.MonkeyPatch.context() as patch:
        # The server of Python 3.11 looks for what it preloads here only.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(os.path.isdir, sys.path)))
        multiprocessing.resource_tracker.ensure_running()
        multiprocessing.forkserver.ensure_running()


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mark in the environment by which processes of this test are known."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(TOKEN, mark)
    return mark


@pytest.fixture
def start(token: str) -> Iterator[Callable[..., Child]]:
    """Start `function(send, *arguments)` in a process of its own."""
    children: list[Child] = []

    def start_child(function: Callable[..., Any], *arguments: Any) -> Child:
        child = Child(function, *arguments, **{TOKEN: token})
        children.append(child)
        return child

    yield start_child
    for child in children:
        child.close()
    for pid in marked_processes(token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked_processes(token: str) -> list[int]:
    """Return the pids of living processes that were started under this mark, ourselves excepted."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


def writers(token: str) -> list[int]:
    """Return the pids of living writer processes of this test."""
    found = []
    for pid in marked_processes(token):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"pyengine.writer" in file.read():
                found.append(pid)
    return found


def await_end(pid: int, seconds: float = TIMEOUT) -> None:
    """Wait until a process that need not be our child has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(int(seconds * 1000)), f"process {pid} is still alive"
    finally:
        os.close(fd)


def await_writers_end(token: str) -> None:
    """Wait until no writer of this test is left."""
    for pid in writers(token):
        await_end(pid)
    assert writers(token) == []


def shm_names() -> set[str]:
    """Return names of ours in /dev/shm that stay: arenas have one for an instant only."""
    found = {name for name in os.listdir("/dev/shm") if name.startswith("pyengine-")}
    deadline = time.monotonic() + 2.0
    while found and time.monotonic() < deadline:
        found &= set(os.listdir("/dev/shm"))
    return found


def leftovers(run_dir: Any) -> list[str]:
    """Return temporaries and trash below a run directory."""
    return [
        os.path.join(directory, name)
        for directory, directories, files in os.walk(run_dir)
        for name in (*directories, *files)
        if name.startswith((".tmp-", ".trash-"))
    ]


def committed(run_dir: Any) -> list[str]:
    """Return the names of committed snapshots, oldest first by (generation, sequence)."""
    from pyengine.catalog.scan import scan_snapshots

    return [info.name for info in scan_snapshots(os.fspath(run_dir)).snapshots]


@functools.cache
def _with_lines(path: str) -> frozenset[int]:
    """Return the first lines of all `with` statements of a source file."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return frozenset(node.lineno for node in ast.walk(tree) if isinstance(node, ast.With))


def _interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_at(
    place: int, call: Any, *, event: str = "line", act: Callable[[], None] = _interrupt
) -> tuple[bool, Any]:
    """Call `call` and raise KeyboardInterrupt before the n-th line (or, with `event`, the n-th
    "opcode") of ours that this thread runs; `act` does something else there.

    The way out of a `with` block is passed over: between its last statement and the call of
    `__exit__` the interpreter looks at no signal, but a trace function would be heard.
    Return (whether that place was reached, the result or None).
    """
    left = place
    wanted = event
    entered: set[tuple[int, int]] = set()

    def leaves_block(frame: Any) -> bool:
        if frame.f_lineno not in _with_lines(frame.f_code.co_filename):
            return False
        if (id(frame), frame.f_lineno) in entered:
            return True
        entered.add((id(frame), frame.f_lineno))
        return False

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if "/pyengine/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = wanted == "opcode"
        if event == wanted and not (event == "line" and leaves_block(frame)):
            left -= 1
            if left == 0:
                sys.settrace(None)
                act()
        return trace

    sys.settrace(trace)
    try:
        result = call()
        return left <= 0, result
    except KeyboardInterrupt:
        return True, None
    finally:
        sys.settrace(None)
