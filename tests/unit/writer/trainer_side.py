"""A trainer for the writer's tests: real rings, real arenas, a real writer process.

It does by hand what the engine does: claims the run, makes arenas, stages snapshots. Values are
chosen so that every row says which one it is: field "x" of row r in lane l is 1000 * l + r.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pyengine
from pyengine._native.control import RingControl
from pyengine._native.ring import RingCore
from pyengine.catalog.claim import claim_run
from pyengine.catalog.lines import open_line
from pyengine.errors import ClosedError
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, LaneRecord
from pyengine.format.descriptor import FilePlan, RingCut, SlotRange, SnapshotDescriptor
from pyengine.format.manifest import ComponentRecord
from pyengine.format.schema import Schema
from pyengine.format.segment import KIND_SEGMENT, Run, header_image, parse_header, verify_checksum
from pyengine.replay.plan import plan_ring
from pyengine.shm.arena import Arena
from pyengine.shm.channel import Channel, Message, close_all
from pyengine.shm.control import CONTROL_BYTES, DescriptorPlace, EngineControl, Entry
from pyengine.shm.states import SlotState, SnapshotState, StagingState

WAIT_SECONDS = 60.0
STAGING_BYTES = 1 << 20


class Ring:
    """A ring with one field "x" (int64) and some payload; 16 rows a segment of 128-byte rows."""

    def __init__(self, name: str, capacity: int, lanes: int, payload: int = 20000) -> None:
        self.name = name
        self.schema = Schema({"x": ((), "int64"), "payload": ((payload,), "uint8")})
        self.payload = payload
        self.lanes = lanes
        self.capacity = capacity
        self.plan = plan_ring(self.schema, capacity, lanes)
        self.arena = Arena.create(self.plan.arena_bytes, name)
        slots = RingControl.plan_bytes(*self.plan.control_sizes())[2]
        self.arena.reserve(0, slots)
        self.control = RingControl.create(self.arena.mapping, *self.plan.control_sizes())
        self.seal_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        layout = self.plan.layout
        self.core = RingCore(
            self.arena.mapping,
            self.arena.fd,
            self.seal_event,
            header_image(layout, line=0, kind=KIND_SEGMENT, runs=[Run(0, 0, 0)]),
            ("x", "payload"),
            b"qB",
            ((0, 8, ()), (1, payload, (payload,))),
            (),
            (),
            (),
            (),
        )

    @property
    def segment_rows(self) -> int:
        return self.plan.segment_rows

    def add(self, count: int, lane: int = 0) -> int:
        """Add rows to a lane; return how many found a place."""
        first = self.control.total_count(lane)
        x = 1000 * lane + np.arange(first, first + count, dtype=np.int64)
        payload = (x[:, None] + np.arange(self.payload)).astype(np.uint8)
        return self.core.append([x, np.ascontiguousarray(payload)], lane, 1, count, 0, None)

    def add_all(self, count: int) -> None:
        for lane in range(self.lanes):
            assert self.add(count, lane) == count

    def window(self, lane: int) -> list[int]:
        return list(range(self.control.tail(lane), self.control.total_count(lane)))

    def states(self) -> list[SlotState]:
        words = [self.control.slot_word(slot) for slot in range(self.control.slot_count)]
        return [SlotState(state) for _, state in words]

    def cut(self, control: EngineControl, entry: Entry, sequence: int) -> RingCut:
        with self.core.locked():
            self.core.hold(control.arena.mapping, entry.snapshot_word_offset, sequence)
            lanes = tuple(
                LaneRecord(
                    self.control.tail(lane),
                    self.control.total_count(lane),
                    self.control.break_pending(lane),
                )
                for lane in range(self.lanes)
            )
        header = {
            "schema": self.schema.to_record(),
            "capacity": self.capacity,
            "num_lanes": self.lanes,
            "segment_rows": self.segment_rows,
            "sampler": {},
        }
        return RingCut(self.name, lanes, header, arena=self.arena.identity)

    def close(self) -> None:
        self.core.close()
        self.control.release()
        self.arena.close()
        os.close(self.seal_event)


class TrainerSide:
    """Owns the claim, the arenas and the writer process."""

    def __init__(self, run_dir: Path, *, keep_last: int = 3, plan: list[Any] | None = None) -> None:
        self.claim = claim_run(str(run_dir), wait_seconds=WAIT_SECONDS)
        self.run_dir = Path(self.claim.run_dir)
        self.line = open_line(str(run_dir), self.claim.generation, parent=None, start_rows={})
        self.control = EngineControl.create(
            Arena.create(CONTROL_BYTES, "control"),
            generation=self.claim.generation,
            run_id=self.claim.run_id,
            line=self.line.id,
        )
        self.keep_last = keep_last
        self.rings: dict[str, Ring] = {}
        self.stagings = [Arena.create(STAGING_BYTES, f"staging-{i}") for i in range(2)]
        for arena in self.stagings:
            arena.reserve(0, STAGING_BYTES)
        self.sequence = 0
        self.messages: list[Message] = []
        self.start_writer(plan)

    def start_writer(self, plan: list[Any] | None = None, *, pidfd: int | None = None) -> None:
        """Start a writer that watches this process, or the one of a pidfd, as its trainer."""
        self.channel, theirs = Channel.pair()
        pidfd = os.pidfd_open(os.getpid()) if pidfd is None else pidfd
        with theirs:
            root = str(Path(pyengine.__file__).parent.parent)
            environment = {**os.environ, "PYTHONPATH": root}
            environment.pop("PYENGINE_FAULT_PLAN", None)
            if plan is not None:
                environment["PYENGINE_FAULT_PLAN"] = json.dumps(plan)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyengine.writer", str(theirs.fileno()), str(pidfd)],
                pass_fds=[theirs.fileno(), pidfd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
                cwd="/",
            )
            os.close(pidfd)
        self.channel.send(
            "hello",
            fds=[self.control.arena.fd],
            run_dir=str(self.run_dir),
            generation=self.claim.generation,
            keep_last=self.keep_last,
            keep_best=None,
            size=CONTROL_BYTES,
        )
        for ring in self.rings.values():
            self._send_ring(ring)
        for index, arena in enumerate(self.stagings):
            self.channel.send(
                "staging", fds=[arena.fd], index=index, version=1, size=arena.size_bytes
            )

    def _send_ring(self, ring: Ring) -> None:
        self.channel.send(
            "ring",
            fds=[ring.arena.fd, ring.seal_event],
            name=ring.name,
            size=ring.arena.size_bytes,
            schema=ring.schema.to_record(),
        )

    def add_ring(self, name: str = "replay", *, capacity: int = 256, lanes: int = 1) -> Ring:
        ring = Ring(name, capacity, lanes)
        ring.control.line = self.line.id
        self.rings[name] = ring
        with contextlib.suppress(ClosedError):  # without a writer the next one is given it
            self._send_ring(ring)
        return ring

    def stage(
        self,
        step: int,
        *,
        files: dict[str, bytes] | None = None,
        components: tuple[ComponentRecord, ...] = (),
        static: tuple[str, ...] = (),
        rings: tuple[str, ...] | None = None,
    ) -> Snapshot:
        """Fill a free staging slot and publish the snapshot."""
        self.sequence += 1
        sequence = self.sequence
        entry = next(entry for entry in self.control.entries if entry.claim(sequence))
        arena = self.stagings[entry.index]
        at = 0
        plans = []
        for path, data in (files or {}).items():
            arena.view(at, len(data))[:] = data
            plans.append(FilePlan(path, (SlotRange(at, len(data)),)))
            at += -(-len(data) // 4096) * 4096
        entry.begin(sequence)
        chosen = [self.rings[name] for name in (rings if rings is not None else self.rings)]
        cuts = tuple(ring.cut(self.control, entry, sequence) for ring in chosen)
        records = tuple(ComponentRecord(ring.name, "ring", "saved") for ring in chosen)
        descriptor = SnapshotDescriptor(
            sequence=sequence,
            generation=self.claim.generation,
            global_step=step,
            created_at="2026-01-01T00:00:00Z",
            line=names.line_text(self.line.id),
            components=components + records,
            files=tuple(plans),
            rings=cuts,
            static=static,
        ).pack()
        arena.view(at, len(descriptor))[:] = descriptor
        entry.descriptor = DescriptorPlace(1, at, len(descriptor))
        assert entry.move_staging(sequence, StagingState.STAGING, StagingState.STAGED)
        with contextlib.suppress(ClosedError):
            self.channel.send("wake", timeout=0)
        return Snapshot(self, entry, sequence, step)

    def snapshot(self, step: int, **arguments: Any) -> Path:
        """Stage a snapshot, wait until it is committed, return its directory."""
        return self.stage(step, **arguments).committed()

    def receive(self) -> Message | None:
        """Wait a moment for a message; it is remembered in `messages`."""
        received = self.channel.receive(0.2)
        if received is None:
            return None
        message, fds = received
        close_all(fds)
        self.messages.append(message)
        return message

    def wait_for(self, kind: str) -> Message:
        """Wait for the first message of a kind; it may have arrived before."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            for message in self.messages:
                if message["kind"] == kind:
                    return message
            self.receive()
        raise AssertionError(f"no message {kind!r}; log:\n{self.log()}")

    def wait_until(self, condition: Any) -> None:
        """Wait until `condition()` holds, with a living writer."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"it never came; log:\n{self.log()}")
            with contextlib.suppress(ClosedError):
                self.receive()
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"the writer ended; log:\n{self.log()}")

    def texts(self, kind: str) -> list[str]:
        return [message["text"] for message in self.messages if message["kind"] == kind]

    def log(self) -> str:
        path = self.run_dir / "generations" / names.generation_log_name(self.claim.generation)
        return path.read_text() if path.exists() else ""

    def pool(self, ring: str = "replay") -> list[str]:
        """Return the files of a ring's pool, whose directory comes with the first one."""
        directory = self.run_dir / "segments" / ring
        return sorted(os.listdir(directory)) if directory.exists() else []

    def close_writer(self, grace_seconds: float = WAIT_SECONDS) -> int:
        self.channel.send("close", grace_seconds=grace_seconds)
        return self.process.wait(WAIT_SECONDS)

    def kill_writer(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)
        self.channel.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(WAIT_SECONDS)
        self.channel.close()
        for ring in self.rings.values():
            ring.close()
        for arena in self.stagings:
            arena.close()
        self.control.release()
        self.control.arena.close()
        self.claim.release()


class Snapshot:
    """One staged snapshot and its fate."""

    def __init__(self, trainer: TrainerSide, entry: Entry, sequence: int, step: int) -> None:
        self.trainer = trainer
        self.entry = entry
        self.sequence = sequence
        self.name = names.snapshot_name(step, trainer.claim.generation, sequence)

    @property
    def state(self) -> SnapshotState:
        sequence, state = self.entry.snapshot
        assert sequence == self.sequence
        return state

    def wait(self) -> SnapshotState:
        """Wait until the fate is decided and the staging slot is free."""
        self.trainer.wait_until(
            lambda: self.state.is_terminal and self.entry.staging[1] == StagingState.FREE
        )
        return self.state

    def committed(self) -> Path:
        state = self.wait()
        assert state == SnapshotState.COMMITTED, (self.entry.error, self.trainer.log())
        return self.trainer.run_dir / "snapshots" / self.name


def rows_of(snapshot: Path, ring: str = "replay") -> list[list[int]]:
    """Decode a snapshot's ring from its files alone; return field "x" by lane, oldest first."""
    directory = snapshot / "buffer" / ring
    data = (directory / names.BUFFER_HEADER).read_bytes()
    header = BufferHeader.from_bytes(data, path="header")
    lanes: list[list[int]] = [[] for _ in header.lanes]
    for extent in sorted(header.extents, key=lambda extent: (extent.lane, extent.first_row)):
        x = column(directory / extent.file)
        lanes[extent.lane] += x[extent.file_row : extent.file_row + extent.row_count].tolist()
    return lanes


def column(path: Path) -> Any:
    """Return field "x" of a verified segment file or part, all runs one after the other."""
    data = path.read_bytes()
    header = parse_header(data, str(path))
    verify_checksum(data, header, str(path))
    field = next(field for field in header.fields if field.name == "x")
    return np.frombuffer(data, np.int64, header.row_count, field.offset)


def expected(ring: Ring, windows: list[list[int]] | None = None) -> list[list[int]]:
    """Return what `rows_of` should give for a ring's window now, or for given windows."""
    windows = windows or [ring.window(lane) for lane in range(ring.lanes)]
    return [[1000 * lane + row for row in window] for lane, window in enumerate(windows)]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@contextlib.contextmanager
def trainer_on(run_dir: Path, **arguments: Any) -> Iterator[TrainerSide]:
    trainer = TrainerSide(run_dir, **arguments)
    try:
        yield trainer
    finally:
        trainer.close()
