"""`run.json`: which run a directory is. Written once, when the directory becomes a run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from pyengine import __version__
from pyengine.errors import DamageError, RestoreError, RunDirectoryError
from pyengine.format import names
from pyengine.format.document import Fields
from pyengine.format.manifest import utc_timestamp
from pyengine.format.sealed import parse_record, record_bytes
from pyengine.fs import durable
from pyengine.fs.beneath import read_beneath

_RECORD_MAX_BYTES = 1024 * 1024


def write_run_record(
    run_dir: str, *, run_id: str | None = None, branched_from: Mapping[str, Any] | None = None
) -> str:
    """Give the directory a run id, a random one by default, and return it; durable on return.

    `branched_from` says where the run's first snapshot came from. Raises NoSpaceError, OSError.
    """
    run_id = run_id or secrets.token_hex(8)
    record: dict[str, Any] = {
        "run_id": run_id,
        "created_at": utc_timestamp(),
        "pyengine": __version__,
    }
    if branched_from is not None:
        record["branched_from"] = dict(branched_from)
    data = record_bytes(record, indent=1)
    temporary = names.temporary_name(0, names.RUN_JSON)
    durable.replace_file(run_dir, names.RUN_JSON, data, temporary=temporary)
    return run_id


def read_run_id(run_dir: str) -> str:
    """Return the run's id. RunDirectoryError: run.json is missing or damaged. FormatVersionError:
    it is newer."""
    path = os.path.join(run_dir, names.RUN_JSON)
    try:
        return Fields(_read(run_dir), path).text("run_id", limit=100)
    except (FileNotFoundError, DamageError) as error:
        raise RunDirectoryError(
            f"{run_dir} is not a run directory: {error}. Where {names.SNAPSHOTS}/ is there, remove "
            f"{names.RUN_JSON}: the next start makes it again from the newest snapshot",
            path=run_dir,
        ) from error


def read_branched_from(run_dir: str) -> dict[str, Any] | None:
    """Return where a branch came from; None: the run is none, or its record cannot be read."""
    try:
        record = _read(run_dir).get("branched_from")
    except (OSError, RestoreError):
        return None
    return record if isinstance(record, dict) else None


def _read(run_dir: str) -> dict[str, Any]:
    path = os.path.join(run_dir, names.RUN_JSON)
    data = read_beneath(run_dir, names.RUN_JSON, limit_bytes=_RECORD_MAX_BYTES)
    return parse_record(data, path, limit_bytes=_RECORD_MAX_BYTES)
