"""What a second snapshot writes after 10 % new rows: all that the writer hands to write()."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figure import Figure, Measured, Setting
from benchmarks.process import children, written_bytes
from benchmarks.replay_run import WAIT_SECONDS, ReplayShape, make_engine

FIGURE = Figure(
    name="increment",
    claim="payload written for a second snapshot after 10 % new rows",
    bar_text="at most 1.2 x the new rows",
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
    facts: dict[str, int] = {}
    for name, shape in SHAPES.items():
        if setting.quick and name.startswith("512"):
            continue
        ratios = []
        for repeat in range(3):
            written, new = _second_snapshot(shape, setting.directory / f"{name}-{repeat}", repeat)
            ratios.append(written / new)
            facts |= {f"{name}_written_bytes": written, f"{name}_new_bytes": new}
        samples[f"{name}_ratio"] = ratios
    worst = max(max(ratios) for ratios in samples.values())
    text = ", ".join(f"{max(ratios):.2f}" for ratios in samples.values())
    return Measured(worst <= BAR, f"{text} x (worst of 3 places in a lap)", samples, facts)


def _second_snapshot(shape: ReplayShape, directory: Path, place: int) -> tuple[int, int]:
    """Return bytes written for the second snapshot and bytes of the new rows.

    `place` moves the first cut within a segment: what is open then is written twice.
    """
    first, new = shape.rows + 17 * place + 5, shape.rows // 10
    with shape.make_ring() as ring, make_engine(directory) as engine:
        engine.track(replay=ring, counters={"step": 0})
        shape.fill(ring, 0, first)
        engine.snapshot(1).wait(WAIT_SECONDS)
        (writer,) = children()
        before = written_bytes(writer)
        shape.fill(ring, first, new)
        engine.snapshot(2).wait(WAIT_SECONDS)
        return written_bytes(writer) - before, new * shape.row_bytes
