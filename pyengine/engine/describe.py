"""What a snapshot says about itself besides its state: identity, time, versions, metrics."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyengine
from pyengine.capture.files import Json
from pyengine.engine.notes import Notes
from pyengine.errors import ConfigError
from pyengine.format.descriptor import SnapshotDescriptor
from pyengine.format.document import is_unicode
from pyengine.format.levels import UNDECLARED, Level
from pyengine.format.manifest import utc_timestamp
from pyengine.format.names import line_text

if TYPE_CHECKING:
    from pyengine.engine.session import Session

Metrics: TypeAlias = Mapping[str, float] | Callable[[], Mapping[str, float]]
"""Numbers by name, or what gives them."""

_LIBRARIES = ("numpy", "torch", "gymnasium", "stable_baselines3", "tianshou", "torchrl", "ray")


@dataclass(frozen=True, slots=True)
class Identity:
    """What the user says about a run: an id of the algorithm, and notes."""

    algorithm: str | None
    notes: Notes


def draft_of(
    session: Session,
    sequence: int,
    step: int,
    metrics: dict[str, float],
    identity: Identity,
    evaluations: int = 0,
    level: Level = UNDECLARED,
    milestone: bool = False,
) -> SnapshotDescriptor:
    """Return the descriptor of a snapshot without its components, files and rings."""
    return SnapshotDescriptor(
        sequence=sequence,
        generation=session.claim.generation,
        global_step=step,
        created_at=utc_timestamp(),
        line=line_text(session.control.line),
        algorithm=identity.algorithm,
        versions=versions(),
        metrics=metrics,
        evaluations=evaluations,
        notes=identity.notes.to_dict(),
        level=level,
        milestone=milestone,
    )


def meta_of(draft: SnapshotDescriptor, evaluations: str) -> dict[str, Any]:
    """Return what meta.json holds besides the structures of components; `evaluations` is JSON."""
    return {
        "global_step": draft.global_step,
        "created_at": draft.created_at,
        "notes": draft.notes,
        "evaluations": Json(evaluations),
    }


def versions() -> dict[str, str]:
    """Return the versions of what made the state: libraries that are loaded, nothing else."""
    found = {"pyengine": pyengine.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def check_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain floats; ConfigError names what is none, or has no name."""
    checked = {}
    for name, value in metrics.items():
        if not is_unicode(str(name)):
            raise ConfigError(
                f"metric {name!r}: its name has a lone surrogate: no file can hold it"
            )
        try:
            checked[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"metric {name!r} is {value!r}, not a number") from error
    return checked
