"""What `pyengine run` was told, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass

from pyengine import config

START_SECONDS = 600.0
"""The least time that a start is given before its first tick, where nothing else was said."""

EXIT_CRASH_LOOP = 70
"""Too many deaths in a row without a new snapshot."""

EXIT_STUCK = 72
"""Not even SIGKILL ended the command: it waits in the kernel, for a disk most often."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One call of `pyengine run`; seconds are seconds.

    A None of `max_restarts` or `hang_timeout` means: no limit. `hang_timeout` holds between two
    ticks, `start_bound` before the first one. `run_dir` and `log` are learned from the trainer
    where they are None. SIGKILL gets `stuck` to end the command. Pauses between restarts begin with
    `backoff`, double with each death that brought no new snapshot, up to `backoff_max`, and are
    stretched by a random part of up to `jitter`. `crash_limit` such deaths within `crash_window`
    are a crash loop, and so are as many in a row of starts that hung before their second tick.
    """

    command: tuple[str, ...]
    max_restarts: int | None = None
    hang_timeout: float | None = None
    start_timeout: float | None = None
    grace: float = config.STOP_GRACE_SECONDS
    run_dir: str | None = None
    log: str | None = None
    backoff: float = 1.0
    backoff_max: float = 60.0
    jitter: float = 0.25
    crash_limit: int = 5
    crash_window: float = 1800.0
    stuck: float = 30.0

    @property
    def start_bound(self) -> float | None:
        """The longest silence before the first tick: `start_timeout`, else the larger of
        `hang_timeout` and 600 s; None: no limit."""
        if self.start_timeout is not None or self.hang_timeout is None:
            return self.start_timeout
        return max(self.hang_timeout, START_SECONDS)


@dataclass(frozen=True, slots=True)
class Summary:
    """How it ended: `result` is "finished", "stopped", "crash loop", "restarts used up", "not
    started" or "stuck"; `faults` counts deaths by class."""

    result: str
    reason: str
    exit_status: int
    restarts: int
    faults: dict[str, int]
    seconds: float
    runs: tuple[str, ...]
    newest_snapshot: str | None
    log: str | None
