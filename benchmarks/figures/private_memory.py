"""Private memory of a process that has resumed a 1.4 GB replay and sampled one batch.

All of it counts: interpreter, NumPy, engine, the rows that go on in shared memory, the batch. What
was touched are the blocks of segment files that the batch needs.
"""

from __future__ import annotations

from benchmarks.cold import prepare, resume
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, limit
from benchmarks.statistics import summarize

FIGURE = Figure(
    name="private_memory",
    claim="private memory after restore() and a first batch, 1.4 GB replay",
)

BAR_MB = 100.0


def measure(setting: Setting) -> Measured:
    run = setting.directory / "run"
    shape = prepare(run, quick=setting.quick)
    after, excess = [], []
    for _ in range(3 if setting.quick else setting.pairs):
        result = resume(run, shape)
        after.append(result["private_bytes_after"] / 1e6)
        excess.append((result["private_bytes_after"] - result["needed_bytes"]) / 1e6)
    worst = summarize(excess).largest
    return Measured(
        [
            Finding(
                "under 100 MB + what was touched",
                f"{worst:.0f} MB + what was touched; {summarize(after).median:.0f} MB with it",
                limit(reached=worst < BAR_MB),
            )
        ],
        samples={"private_MB": after, "beyond_touched_MB": excess},
        facts={"rows": shape.rows, "row_bytes": shape.row_bytes},
    )
