"""What a second snapshot writes after 10 % new rows.

The bar speaks of payload: rows in new segment files and parts, times their size. Beside it stands
all that the writer handed to write(): headers, block tables, page padding, manifest, metadata.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.disk import regular_files
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, limit
from benchmarks.process import children, written_bytes
from benchmarks.replay_run import WAIT_SECONDS, ReplayShape, make_engine
from pyengine.format.segment import parse_header

FIGURE = Figure(
    name="increment",
    claim="payload written for a second snapshot after 10 % new rows",
)

BAR = 1.2
MIB = 1 << 20
SHAPES = {
    "32_MiB_of_56_KB_rows": ReplayShape(32 * MIB // 56_462, 28_224),
    "32_MiB_of_1_KB_rows": ReplayShape(32 * MIB // 1_038, 512),
    "512_MiB_of_56_KB_rows": ReplayShape(512 * MIB // 56_462, 28_224),
}


def measure(setting: Setting) -> Measured:
    samples: dict[str, list[float]] = {}
    for name, shape in SHAPES.items():
        if setting.quick and name.startswith("512"):
            continue
        pairs = [_second_snapshot(shape, setting.directory / f"{name}-{n}", n) for n in range(4)]
        samples[f"{name}_payload_ratio"] = [payload for payload, _ in pairs]
        samples[f"{name}_all_writes_ratio"] = [written for _, written in pairs]
    payloads = [max(values) for name, values in samples.items() if "payload" in name]
    writes = max(max(values) for name, values in samples.items() if "all" in name)
    text = " / ".join(f"{ratio:.2f}" for ratio in payloads)
    text += f" x; with headers, padding and metadata at most {writes:.2f} x"
    verdict = limit(reached=max(payloads) <= BAR)
    return Measured([Finding(f"at most {BAR} x the new rows", text, verdict)], samples)


def _second_snapshot(shape: ReplayShape, directory: Path, place: int) -> tuple[float, float]:
    """Return payload and all bytes written for the second snapshot, each per byte of new rows.

    `place` moves the first cut within a segment: what is open then is written twice.
    """
    first, new = shape.rows + 17 * place + 5, shape.rows // 10
    with shape.make_ring() as ring, make_engine(directory) as engine:
        engine.track(replay=ring, counters={"step": 0})
        shape.fill(ring, 0, first)
        engine.snapshot(1).wait(WAIT_SECONDS)
        (writer,) = children()
        files, before = set(_rows_by_file(directory)), written_bytes(writer)
        shape.fill(ring, first, new)
        engine.snapshot(2).wait(WAIT_SECONDS)
        written = written_bytes(writer) - before
        rows = _rows_by_file(directory)
        payload = sum(count for inode, count in rows.items() if inode not in files)
        return payload / new, written / (new * shape.row_bytes)


def _rows_by_file(directory: Path) -> dict[int, int]:
    """Return the rows of the snapshots' segment files and parts, by inode: links count once."""
    files = [path for path in regular_files(directory / "snapshots") if path.suffix == ".seg"]
    return {
        path.stat().st_ino: parse_header(path.read_bytes(), str(path)).row_count for path in files
    }
