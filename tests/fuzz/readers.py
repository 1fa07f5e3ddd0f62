"""Every reader of bytes that come from a run directory, as a function of those bytes.

Each returns for bytes that it accepts and raises a PyengineError for those it refuses; whatever
else comes out of one is a fault. Used by the property tests here and by tools/fuzz.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyengine._native import hashing
from pyengine.capture.load import load_component
from pyengine.capture.tensorfile import TensorFile
from pyengine.catalog import generation, lines, markers, quarantine, run_record
from pyengine.errors import DamageError, PyengineError
from pyengine.format import names, segment
from pyengine.format.buffer_header import BufferHeader
from pyengine.format.descriptor import SnapshotDescriptor
from pyengine.format.evaluations import read_evaluations
from pyengine.format.manifest import Manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
COMPONENTS = GOLDEN / "components"

Reader = Callable[[bytes], object]


def read_segment(data: bytes) -> None:
    """A segment file or part, as a restore reads it, the native verification last."""
    image = bytearray(data)
    header = segment.parse_header(image, "fuzz.seg")
    segment.verify_checksum(image, header, "fuzz.seg")
    segment.block_hashes(image, header)
    hashing.verify_image(image)


def verify_image(data: bytes) -> None:
    """The native verification alone: its refusal is a ValueError."""
    try:
        hashing.verify_image(data)
    except ValueError as error:
        raise PyengineError(str(error)) from error


def read_tensors(data: bytes) -> None:
    """A safetensors file, every value of it."""
    file = TensorFile(data, "fuzz.safetensors")
    for name in file.names:
        # NumPy and torch do not know all of one another's dtypes.
        with contextlib.suppress(DamageError):
            file.array(name)
        with contextlib.suppress(DamageError):
            file.tensor(name)


def component_reader(name: str, kind: str, path: str) -> Reader:
    """Return a reader of one file of a component whose other files are whole."""
    whole = {
        file.relative_to(COMPONENTS).as_posix(): file.read_bytes()
        for file in COMPONENTS.rglob("*")
        if file.is_file()
    }

    def read(data: bytes) -> object:
        return load_component({**whole, path: data}, name, kind)

    return read


def record_reader(folder: str, file: str, read: Callable[[str], object]) -> Reader:
    """Return a reader of one small file in a run directory, which is given to `read`."""

    def read_bytes(data: bytes) -> object:
        with run_directory() as run:
            os.makedirs(os.path.join(run, folder), exist_ok=True)
            Path(run, folder, file).write_bytes(data)
            return read(run)

    return read_bytes


@contextmanager
def run_directory() -> Iterator[str]:
    """A directory for one reading, in memory where that can be had."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = tempfile.mkdtemp(prefix="pe-fuzz-", dir=base)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _read_quarantine(run: str) -> None:
    os.makedirs(os.path.join(run, names.QUARANTINE, _SNAPSHOT))
    quarantine.damaged_files(run)
    quarantine.lost_snapshots(run)


_LINE_FILE = names.line_file_name(0xAB)
_SNAPSHOT = "step-00000100.g0001.s0001"

READERS: dict[str, Reader] = {
    "segment": read_segment,
    "image": verify_image,
    "manifest": lambda data: Manifest.from_bytes(data, path="manifest.json"),
    "older_manifest": lambda data: Manifest.from_bytes(data, path="manifest.json"),
    "buffer_header": lambda data: BufferHeader.from_bytes(data, path="buffer_header.json"),
    "descriptor": SnapshotDescriptor.unpack,
    "evaluations": lambda data: read_evaluations(data, "meta.json", expected=1),
    "tensors": read_tensors,
    "module": component_reader("policy", "module", "model/policy.safetensors"),
    "optimizer": component_reader("optimizer", "optimizer", "optimizer/optimizer.msgpack"),
    "rng": component_reader("explorer", "rng", "rng/explorer.msgpack"),
    "counters": component_reader("counters", "counters", "meta.json"),
    "line": record_reader("lines", _LINE_FILE, lines.read_lines),
    "run": record_reader(".", names.RUN_JSON, run_record.read_run_id),
    "branched": record_reader(".", names.RUN_JSON, run_record.read_branched_from),
    "generation": record_reader(
        names.GENERATIONS, "0001", lambda run: generation.read_party(run, 1, "owner")
    ),
    "marker": record_reader(
        names.RECOVERY, names.restoring_marker_name(_SNAPSHOT), markers.restore_deaths
    ),
    "quarantine": record_reader(
        names.QUARANTINE, names.quarantine_record_name(_SNAPSHOT), _read_quarantine
    ),
}
