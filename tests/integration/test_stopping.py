"""A signal ends a run in one committed snapshot where the script ticks; a later one at once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from processes import await_writers_end, committed
from program import tracking

import pyengine
from pyengine import config
from pyengine.errors import ConfigError, SnapshotBusyError, StopRequested

TERM, INT = signal.SIGTERM, signal.SIGINT


def train_until_stopped(
    send: Any, run_dir: str, grace: float = 30.0, signals: tuple[int, ...] | None = None
) -> None:
    """Train for ever, ticking, with handlers of the engine's; tell how it came to an end."""
    chosen = {} if signals is None else {"signals": signals}
    with tracking(run_dir) as (engine, training):
        report = engine.restore()
        send(("next", report.next_step))
        try:
            with engine.stopping_on_signals(grace=grace, **chosen):
                for step in range(report.next_step, 10**9):
                    training.step(step)
                    if step == 5:
                        send(("training",))
                    engine.tick(step)
        except StopRequested as stop:
            send(("stopped", stop.signal, stop.step, stop.info and stop.info.name, str(stop)))
            send(("digest", training.digest(), stop.code))


def wait_without_tick(send: Any, run_dir: str) -> None:
    """Hold an engine that handles signals, and never tick."""
    with tracking(run_dir) as (engine, _):
        engine.restore()
        with engine.stopping_on_signals():
            waker = threading.Event()
            send(("training",))
            while not engine.stop_requested:
                waker.wait(0.05)
            # Until further signals are no longer the same request.
            waker.wait(config.SAME_REQUEST_SECONDS)
            send(("asked",))
            waker.wait(60)


def stop_after_storm(send: Any, run_dir: str, numbers: tuple[int, ...]) -> None:
    """Get signals at once, as one process of a job that is ended; tick, and tell the outcome."""
    with tracking(run_dir) as (engine, training):
        engine.restore()
        with engine.stopping_on_signals():
            training.step(0)
            for number in numbers:
                os.kill(os.getpid(), number)
            try:
                engine.tick(0)
            except StopRequested as stop:
                send(("stopped", stop.signal, stop.info and stop.info.name))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_the_run_in_a_committed_snapshot_of_the_last_tick(
    start: Any, token: str, tmp_path: Path, number: int
) -> None:
    run_dir = str(tmp_path / "run")
    child = start(train_until_stopped, run_dir)
    child.receive("training")
    child.signal(number)
    _, got, step, name, text = child.receive("stopped")
    _, digest, code = child.receive("digest")
    assert (child.join(), code) == (0, 128 + number)
    assert (got, committed(run_dir)) == (number, [name])
    assert f"after step {step}, which is saved as {name}" in text
    await_writers_end(token)
    with tracking(run_dir) as (engine, training):
        report = engine.restore()
        assert (report.next_step, training.digest()) == (step + 1, digest)


@pytest.mark.parametrize("pair", [(TERM, TERM), (INT, INT), (TERM, INT), (INT, TERM)])
def test_signals_that_come_at_once_are_one_request(
    start: Any, token: str, tmp_path: Path, pair: tuple[int, ...]
) -> None:
    run_dir = str(tmp_path / "run")
    child = start(stop_after_storm, run_dir, (*pair, *pair))
    _, number, name = child.receive("stopped")
    assert (number, child.join()) == (pair[0], 0)
    assert committed(run_dir) == [name]
    await_writers_end(token)


def test_a_later_signal_goes_to_the_handler_that_was_there_before(
    start: Any, tmp_path: Path
) -> None:
    child = start(wait_without_tick, str(tmp_path / "run"))
    child.receive("training")
    child.signal(signal.SIGTERM)
    child.receive("asked")
    child.signal(signal.SIGTERM)
    assert child.join() == -signal.SIGTERM


def test_a_later_ctrl_c_is_a_keyboard_interrupt(start: Any, tmp_path: Path) -> None:
    child = start(wait_without_tick, str(tmp_path / "run"))
    child.receive("training")
    child.signal(signal.SIGINT)
    child.receive("asked")
    child.signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        child.receive("never")
    assert child.join() == 1


def test_without_grace_the_writer_finishes_the_last_snapshot_alone(
    start: Any, token: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    child = start(train_until_stopped, run_dir, 0.0)
    child.receive("training")
    child.signal(signal.SIGTERM)
    _, _, step, _, _ = child.receive("stopped")
    assert child.join() == 0
    await_writers_end(token)
    (name,) = committed(run_dir)
    assert f"step-{step:08d}" in name


def _stopped_by(engine: pyengine.SnapshotEngine, number: int, step: int) -> StopRequested:
    os.kill(os.getpid(), number)
    assert engine.stop_requested
    with pytest.raises(StopRequested) as caught:
        engine.tick(step)
    return caught.value


def test_handlers_are_there_only_while_the_block_runs(tmp_path: Path) -> None:
    former = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with tracking(tmp_path / "run") as (engine, training):
        engine.restore()
        with engine.stopping_on_signals([signal.SIGTERM]):
            assert signal.getsignal(signal.SIGINT) == former[1]
            assert signal.getsignal(signal.SIGTERM) != former[0]
            training.step(0)
            assert engine.tick(0) is None
            assert not engine.stop_requested
            assert _stopped_by(engine, signal.SIGTERM, 1).code == 128 + signal.SIGTERM
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == former


def _train_like_a_careful_loop(engine: pyengine.SnapshotEngine) -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        engine.tick(0)
    except Exception:
        pytest.fail("a training loop would have gone on")


def test_it_passes_handlers_of_ordinary_errors(tmp_path: Path) -> None:
    with tracking(tmp_path / "run") as (engine, _):
        engine.restore()
        with engine.stopping_on_signals(), pytest.raises(StopRequested):
            _train_like_a_careful_loop(engine)


def test_why_there_is_no_last_snapshot_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracking(tmp_path / "run") as (engine, _):
        engine.restore()
        monkeypatch.setattr(engine._taker._session.buffers, "claim", lambda sequence: None)
        with engine.stopping_on_signals(grace=0.2):
            stop = _stopped_by(engine, signal.SIGTERM, 0)
    assert stop.info is None
    assert isinstance(stop.__cause__, SnapshotBusyError)


def test_a_forked_child_ends_by_the_signal_at_once(tmp_path: Path) -> None:
    with tracking(tmp_path / "run") as (engine, _):
        engine.restore()
        with engine.stopping_on_signals():
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(writer, b".")  # a signal before the fork is over would be lost
                for _ in range(600):
                    threading.Event().wait(0.1)
                os._exit(0)
            os.read(reader, 1)
            os.kill(pid, signal.SIGTERM)
            assert os.waitpid(pid, 0)[1] == signal.SIGTERM
            os.close(reader)
            os.close(writer)
            assert not engine.stop_requested


def test_other_threads_and_impossible_signals_are_refused(tmp_path: Path) -> None:
    refused: list[Exception] = []

    def enter() -> None:
        try:
            with engine.stopping_on_signals():
                pass
        except ConfigError as error:
            refused.append(error)

    with tracking(tmp_path / "run") as (engine, _):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert "main thread" in str(refused[0])
        former = signal.getsignal(signal.SIGTERM)
        with pytest.raises(ConfigError), engine.stopping_on_signals([signal.SIGTERM, 9]):
            pass
        assert signal.getsignal(signal.SIGTERM) == former


def test_the_inner_block_counts_and_the_outer_one_comes_back(tmp_path: Path) -> None:
    with tracking(tmp_path / "run") as (engine, _):
        engine.restore()
        with engine.stopping_on_signals():
            with engine.stopping_on_signals([signal.SIGINT]):
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert _stopped_by(engine, signal.SIGTERM, 0).info is not None
