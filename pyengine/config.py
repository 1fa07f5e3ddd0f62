"""Every constant and environment variable that more than one module needs, in one place."""

from __future__ import annotations

import os

PAGE_BYTES = 4096
"""Alignment of every region in a segment, of slots, and of O_DIRECT writes."""

BLOCK_BYTES = 64 * 1024
"""Target size of one checksummed block: whole rows of one field."""

SEGMENT_MAX_BYTES = 32 * 1024 * 1024
"""Largest payload of a segment."""

SEGMENT_MIN_BYTES = 256 * 1024
"""Payload below which a segment takes more rows than a 64th of the ring."""

SLOT_WAIT_SECONDS = 5.0
"""How long `add` waits for a free segment slot before it cancels the snapshots that hold it."""

COMMIT_WAIT_SECONDS = 60.0
"""How long `add` then waits for a snapshot that is being committed, which cannot be cancelled."""

SPILL_WAIT_SECONDS = 60.0
"""How long `add` waits for one more full segment to reach the disk, where the ring has all the
memory that it may have: no snapshot that is cancelled helps there."""

COMMIT_LOCK_SECONDS = 60.0
"""How long a trainer waits for its own writer, or another process, to let the commit lock go."""

PART_MAX_BYTES = 256 * 1024 * 1024
"""Payload above which the open rows of a ring are spread over several parts."""

MEMORY_MARGIN_BYTES = 16 * 1024 * 1024
"""What is left to everything else where the machine or a memory cgroup is the limit of shared
memory: there the one who takes the last page is killed, not refused."""

STAGING_WAIT_SECONDS = 30.0
"""How long `snapshot()` waits for a staging slot."""

DRAIN_WAIT_SECONDS = 30.0
"""How long a start waits for the writer of a dead trainer to finish."""

CLOSE_WAIT_SECONDS = 120.0
"""How long `close()` waits for pending snapshots, unless told otherwise."""

WRITER_START_SECONDS = 30.0
"""After how long a writer that is not up is worth a warning; how long it waits itself for the
trainer's first message, and for a predecessor's lock."""

TERMINATE_GRACE_SECONDS = 30.0
"""How long a writer that got SIGTERM may take to finish what is staged and sealed."""

TERMINATE_LINGER_SECONDS = 1.0
"""How long a writer that may end then waits to see whether its trainer is dying as well."""

STOP_GRACE_SECONDS = 30.0
"""How long after a signal that asks a run to end its last snapshot is waited for, in the trainer;
and how long `pyengine run` gives a trainer before it kills it."""

SAME_REQUEST_SECONDS = 1.0
"""How long after a signal that asks for the end further ones are the same request: job systems and
supervisors send one to each process, and some send it twice."""

LIFELINE_VARIABLE = "PYENGINE_LIFELINE"
"""Where `pyengine run` tells a trainer of the memory that they share (pyengine.shm.lifeline)."""

WRITER_NICE = 5
"""By how much the nice of the writer, and of its scheduling group where it is one for itself, lies
above the trainer's; at 19, two busy threads leave it 0.16 GB/s of hashing."""


def process_rank() -> int:
    """Return this process's rank in a distributed job as torchrun sets it (RANK), else 0."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def lifeline_address() -> str | None:
    """Return what `pyengine run` has told this process of its lifeline, or None."""
    return os.environ.get(LIFELINE_VARIABLE)


def fault_plan() -> str | None:
    """Return the fault plan armed for this process (JSON, see pyengine.fs.faults), or None."""
    return os.environ.get("PYENGINE_FAULT_PLAN")
