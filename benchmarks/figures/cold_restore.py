"""From restore() to the first sampled batch of a 1.4 GB replay, with the page cache dropped."""

from __future__ import annotations

from benchmarks.cold import BATCH, own_files, prepare, resume
from benchmarks.disk import DEPTH, random_read_rate, regular_files
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, at_most, format_ratio, limit, worst
from benchmarks.process import held_libraries
from benchmarks.statistics import paired_ratios, summarize

FIGURE = Figure(
    name="cold_restore",
    claim=f"restore() to a first batch of {BATCH}, 1.4 GB replay, page cache dropped",
)

BAR_RATIO = 2.0
BAR_SECONDS = 0.5
READS = 2_000


def measure(setting: Setting) -> Measured:
    run = setting.directory / "run"
    shape = prepare(run, quick=setting.quick)
    segments = [path for path in regular_files(run / "segments") if path.suffix == ".seg"]
    times, limits, alone, rates, restores, needed = [], [], [], [], [], []
    dropped = ""
    for pair in range(setting.pairs):
        alone.append(random_read_rate(segments, reads=READS // DEPTH, seed=pair) / 1e6)
        rates.append(random_read_rate(segments, reads=READS, seed=pair, depth=DEPTH) / 1e6)
        with held_libraries():
            result = resume(run, shape)
        dropped = result["dropped"]
        needed.append(result["needed_bytes"] + own_files(run))
        times.append(result["first_batch_seconds"])
        restores.append(result["restore_seconds"])
        limits.append(needed[-1] / (rates[-1] * 1e6))
    ratios = paired_ratios(times, limits)
    seconds = summarize(times)
    return Measured(
        [
            Finding(
                f"at most 2 x (bytes needed / random read rate, {DEPTH} x 64 KiB), under 0.5 s",
                f"{format_ratio(ratios)}, {seconds.median:.3f} s (p99 {seconds.p99:.3f} s)",
                worst(at_most(ratios, BAR_RATIO), limit(reached=seconds.p99 < BAR_SECONDS)),
            )
        ],
        samples={
            "first_batch_s": times, "restore_s": restores, "limit_s": limits,
            "random_read_MB_per_s": rates, "one_at_a_time_MB_per_s": alone, "ratio": ratios,
            "needed_MB": [value / 1e6 for value in needed],
        },
        facts={"rows": shape.rows, "row_bytes": shape.row_bytes, "cache": dropped},
    )  # fmt: skip
