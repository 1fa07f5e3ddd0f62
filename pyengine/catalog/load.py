"""`pyengine.load`: values of a snapshot, without the objects they came from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pyengine.catalog.commit import hold_snapshot
from pyengine.catalog.info import SnapshotInfo
from pyengine.catalog.run import choose_snapshot
from pyengine.catalog.snapshot_files import read_files
from pyengine.errors import ComponentMismatchError, ConfigError, RunDirectoryError
from pyengine.events import logger
from pyengine.format import names
from pyengine.format.manifest import ComponentRecord

_ATTEMPTS = 5
"""How often a snapshot is chosen while a writer prunes the ones that were."""


def load(
    path: str | os.PathLike[str],
    only: Sequence[str] | None = None,
    *,
    allow_pickle: Sequence[str] = (),
) -> dict[str, Any]:
    """Return saved state by name: of the snapshot at `path`, or of the newest of a run.

    `only` names the components wanted; without it all are read, rings excepted (rows are read by
    `SnapshotEngine.restore`). A module or optimizer gives what its load_state_dict() takes (CPU
    tensors), counters and environments their value with dataclasses as dicts, a generator its
    state. Every file is verified before it is decoded. Claims and writes nothing, needs no native
    code; safe while a trainer writes to the run.

        net.load_state_dict(pyengine.load("runs/hopper", only=["policy"])["policy"])

    No saved code runs, but for components that were saved by pickle and that `allow_pickle` names:
    those run what their pickle says, so name them for snapshots that you trust only. Others of
    their kind are left out with a warning, or where `only` names them, refused.

    Raises ComponentMismatchError for names the snapshot does not hold, PickleRefusedError for one
    in `only` that was saved by pickle, StateMismatchError for a pickle whose reading raises,
    ConfigError for a ring,
    DamageError and FormatVersionError that name the file, RunDirectoryError, OSError.
    """
    for field, given in (("only", only), ("allow_pickle", allow_pickle)):
        if isinstance(given, str) or not (given is None or isinstance(given, Iterable)):
            raise ConfigError(f"{field}= takes a list of names: {field}=[{given!r}]")
    for attempt in range(1, _ATTEMPTS + 1):
        info: SnapshotInfo | None = None
        try:
            info = choose_snapshot(path)
            with contextlib.ExitStack() as stack:
                lock = hold_snapshot(info.path)
                if lock is not None:
                    stack.enter_context(lock)
                return _load(info, _wanted(info, only, allow_pickle), allow_pickle)
        except (FileNotFoundError, RunDirectoryError):
            # Pruned between two looks, or moved away before its successor was seen: look again.
            was_pruned = info is not None and not os.path.exists(info.path)
            if attempt == _ATTEMPTS or not (was_pruned or _is_run(path)):
                raise
    raise AssertionError("the last attempt returns or raises")


def _is_run(path: str | os.PathLike[str]) -> bool:
    return os.path.isdir(os.path.join(os.path.realpath(path), names.SNAPSHOTS))


def _load(
    info: SnapshotInfo, records: Iterable[ComponentRecord], allow_pickle: Collection[str]
) -> dict[str, Any]:
    # Imports torch: not before it is known that there is something to decode.
    from pyengine.capture.load import load_component

    values = {}
    for record in records:
        files = read_files(info, record.files)
        may_unpickle = record.name in allow_pickle
        values[record.name] = load_component(
            files, record.name, record.kind, may_unpickle=may_unpickle
        )
    return values


def _wanted(
    info: SnapshotInfo, only: Sequence[str] | None, allow_pickle: Collection[str]
) -> list[ComponentRecord]:
    saved = {record.name: record for record in info.components if record.status == "saved"}
    unknown = tuple(name for name in (*(only or ()), *allow_pickle) if name not in saved)
    if unknown:
        raise ComponentMismatchError(
            f"{info.name} holds no {', '.join(map(repr, unknown))}; it holds "
            f"{', '.join(map(repr, saved))}",
            not_tracked=(),
            not_saved=unknown,
        )
    if only is None:
        return [record for record in saved.values() if _is_read(info, record, allow_pickle)]
    rings = [name for name in only if saved[name].kind == "ring"]
    if rings:
        raise ConfigError(f"{rings[0]!r} is a ring: its rows are read by SnapshotEngine.restore()")
    return [saved[name] for name in only]


def _is_read(info: SnapshotInfo, record: ComponentRecord, allow_pickle: Collection[str]) -> bool:
    """Whether a component is read where nobody asked for it by name; a pickle left out is told."""
    if record.kind != "pickle" or record.name in allow_pickle:
        return record.kind != "ring"
    logger.warning(
        "%s: %r is left out: it was saved by pickle, which runs code when it is read; if you trust "
        "it, load(..., allow_pickle=[%r])",
        info.name,
        record.name,
        record.name,
    )
    return False
