"""What killed a trainer, as far as it can be told. Pure: values in, values out.

    exit      it ended by itself, with a status other than 0
    signal    somebody's signal ended it
    hang      the supervisor ended it: no output and no tick for too long
    storage   it ended by an error of a disk, a full one included, or because a snapshot could not
              be made durable, or its run cannot be reached
    damage    it ended because saved state is damaged, or none can be restored
    busy      it ended because another process owns the run

The last three need word from the trainer: the exception that ended it (pyengine.shm.lifeline).
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Fault = Literal["exit", "signal", "hang", "storage", "damage", "busy"]

_DAMAGE = frozenset(
    ("DamageError", "MalformedFileError", "NothingRestorableError", "FormatVersionError")
)
_BUSY = frozenset(("RunBusyError", "StaleGenerationError"))
_STORAGE_NUMBERS = frozenset(
    (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.EHOSTDOWN,
        errno.ETIMEDOUT,
    )
)


@dataclass(frozen=True, slots=True)
class Death:
    """How the command ended: by a status, or by a signal (the other is None)."""

    status: int | None
    signal: int | None

    @property
    def exit_status(self) -> int:
        """The status that a shell would show."""
        return self.status if self.status is not None else 128 + (self.signal or 0)

    def __str__(self) -> str:
        if self.status is not None:
            return f"exit status {self.status}"
        number = self.signal or 0
        return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def classify(
    death: Death, report: Mapping[str, Any] | None, *, is_hung: bool, is_reachable: bool
) -> Fault:
    """Return the class of a death. `report` is the trainer's last word (see `describe_error`)."""
    if is_hung:
        return "hang"
    if not is_reachable:
        return "storage"
    if death.signal is None and report is not None:
        told = _of_exception(report)
        if told is not None:
            return told
    return "signal" if death.signal is not None else "exit"


def _of_exception(report: Mapping[str, Any]) -> Fault | None:
    causes = report.get("causes")
    chain = [report, *(causes if isinstance(causes, list) else ())]
    for link in chain:
        if not isinstance(link, Mapping):
            continue
        bases = link.get("bases")
        kinds = {str(link.get("type")), *map(str, bases if isinstance(bases, list) else ())}
        if kinds & _DAMAGE:
            return "damage"
        if kinds & _BUSY:
            return "busy"
        is_system_error = "OSError" in kinds or link.get("type") == "OSError"
        if "SnapshotFailedError" in kinds or (
            is_system_error and link.get("errno") in _STORAGE_NUMBERS
        ):
            return "storage"
    return None


def told(death: Death, fault: Fault, report: Mapping[str, Any] | None) -> str:
    """Return what happened in words, with the exception where the trainer named one."""
    words = f"{fault}: {death}" if fault not in ("exit", "signal") else str(death)
    if fault == "signal" and death.signal == signal.SIGKILL:
        words += ", sent by somebody else; if by the kernel, memory ran out"
    if report is not None and death.signal is None:
        words += f" ({report.get('type')}: {report.get('message')})"
    return words
