"""Figures of the snapshots for somebody else's plots: through a SummaryWriter, or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyengine.errors import ConfigError
from pyengine.events import warn_once

if TYPE_CHECKING:
    from pyengine.engine.pending import PendingSnapshot

Log = Callable[[str, float, int], Any]
"""Takes a tag, a value and a step."""


class Scalars:
    """Where an engine's figures go. An exception there is logged once and never ends a training."""

    def __init__(self) -> None:
        self._log: Log | None = None
        self._prefix = ""
        self._warned: set[str] = set()

    def send_to(self, target: Any, prefix: str) -> None:
        """Send later figures to `target`; ConfigError where it takes none."""
        if target is None:
            self._log = None
            return
        log = getattr(target, "add_scalar", target)
        if not callable(log):
            raise ConfigError(
                f"log_scalars takes a writer with add_scalar(tag, value, step), or a function of "
                f"these three; got {target!r:.100}",
                field="target",
            )
        self._log, self._prefix = log, prefix

    def committed(self, pending: PendingSnapshot) -> None:
        """Log what a snapshot has cost, once it is durable."""
        outcome = pending.outcome
        if outcome is None:
            return
        self._send("stall_seconds", pending.stall_seconds, pending.step)
        self._send("persist_seconds", outcome.persist_ns / 1e9, pending.step)
        self._send("bytes_written", float(outcome.bytes_written), pending.step)
        self._send("new_bytes", float(outcome.new_bytes), pending.step)

    def skipped(self, count: int, step: int) -> None:
        """Log how many snapshots were left out so far."""
        self._send("skipped_snapshots", float(count), step)

    def _send(self, name: str, value: float, step: int) -> None:
        if self._log is None:
            return
        try:
            self._log(f"{self._prefix}{name}", value, step)
        except Exception as error:  # a logger raises what it likes
            warn_once(
                self._warned,
                type(error).__name__,
                "a figure could not be logged: %s: %s",
                type(error).__name__,
                error,
            )
