"""Log files of a run: they are appended to over all its starts, never begun anew.

Monitor files and CSV logs are opened by the script before a restore can say that the run goes on;
opened for writing they would lose what the run has logged so far. A snapshot records how long each
file was, so that this is noticed.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    KVWriter,
    Logger,
    make_output_format,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecMonitor

from pyengine.capture.tree import Encoder
from pyengine.errors import CaptureError, TruncatedLogError


class LogSizes:
    """How long each log file was; compared before a restore, never put back."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def get_state(self) -> dict[str, int]:
        """Return sizes in bytes by absolute path."""
        return log_sizes(self._model)

    def set_state(self, state: dict[str, int]) -> None:
        """Do nothing: `check_log_sizes` has compared them before."""


class PendingValues:
    """What was recorded since the logger's last dump; figures, images and videos are left out.

    An undisturbed run writes with its next row what was learned before a snapshot; so does one
    that goes on from it.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Return values, how many each is the mean of, and where they are not to be written."""
        log = self._model.logger
        values = {name: value for name, value in log.name_to_value.items() if _is_plain(value)}
        return {
            "values": values,
            "counts": {name: log.name_to_count.get(name, 0) for name in values},
            "excluded": {name: log.name_to_excluded.get(name, ("",)) for name in values},
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Record them again."""
        log = self._model.logger
        log.name_to_value.update(state["values"])
        log.name_to_count.update(state["counts"])
        log.name_to_excluded.update(state["excluded"])


def log_sizes(model: BaseAlgorithm) -> dict[str, int]:
    """Return the size in bytes of each log file that this process writes, by absolute path."""
    paths = {*_monitor_files(model.get_env()), *_csv_files(model.logger)}
    return {path: os.path.getsize(path) for path in sorted(paths) if os.path.exists(path)}


def check_log_sizes(saved: dict[str, int]) -> None:
    """Raise TruncatedLogError for a log that is shorter than it was at the snapshot."""
    for path, size in saved.items():
        found = os.path.getsize(path) if os.path.exists(path) else None
        if found is not None and found < size:
            raise TruncatedLogError(
                f"{path} had {size} bytes at the snapshot and has {found} now: this start of the "
                "script has begun it anew. Open it for appending: "
                "Monitor(..., override_existing=False) from the second start on (the first writes "
                "the header), append_logger(folder, formats) for a CSV log",
                path=path,
                expected=size,
                got=found,
            )


class AppendingCSVOutputFormat(CSVOutputFormat):
    """SB3's CSV log, continued where an earlier start of the script left it."""

    def __init__(self, filename: str) -> None:
        exists = os.path.exists(filename) and os.path.getsize(filename) > 0
        if not exists:
            super().__init__(filename)
            return
        self.file = open(filename, "r+", encoding="utf-8")  # noqa: SIM115  closed by close()
        self.separator = ","
        self.quotechar = '"'
        self.keys = next(csv.reader([self.file.readline()]), [])
        self.file.seek(0, os.SEEK_END)


def append_logger(folder: str | os.PathLike[str], formats: list[str]) -> Logger:
    """Return a logger like SB3's `configure(folder, formats)` whose CSV file is appended to."""
    folder = os.fspath(folder)
    os.makedirs(folder, exist_ok=True)
    outputs: list[KVWriter] = []
    for name in formats:
        if name == "csv":
            outputs.append(AppendingCSVOutputFormat(os.path.join(folder, "progress.csv")))
        else:
            outputs.append(make_output_format(name, folder))
    return Logger(folder=folder, output_formats=outputs)


def _is_plain(value: Any) -> bool:
    try:
        Encoder("logger").encode(value)
    except CaptureError:
        return False
    return True


def _csv_files(logger: Logger) -> Iterator[str]:
    for output in logger.output_formats:
        if isinstance(output, CSVOutputFormat):
            output.file.flush()
            yield os.path.abspath(output.file.name)


def _monitor_files(venv: VecEnv | None) -> Iterator[str]:
    """Yield the files of Monitor wrappers in this process; workers' files are out of reach."""
    while isinstance(venv, VecEnvWrapper):
        if isinstance(venv, VecMonitor) and venv.results_writer is not None:
            yield os.path.abspath(venv.results_writer.file_handler.name)
        venv = venv.venv
    for env in venv.envs if isinstance(venv, DummyVecEnv) else ():
        wrapper: Any = env
        while wrapper is not None:
            if isinstance(wrapper, Monitor) and wrapper.results_writer is not None:
                yield os.path.abspath(wrapper.results_writer.file_handler.name)
            wrapper = vars(wrapper).get("env")
