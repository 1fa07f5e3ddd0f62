"""How the costs grow with the rows of the ring, 1e4 to 1e7, and with the model, 1 MB to 4 GB.

All rings are there at once and take turns, so that a round compares the largest with the smallest.
Nothing that the trainer does may grow with the rows: stall and processor time of a tick. What the
writer does for a snapshot grows with the open rows, whose segments are larger in larger rings up to
32 MiB; a restore's, with the number of segment files. Of a model everything is copied and written,
so that all of it grows.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cold import resume
from benchmarks.disk import drop_page_cache, regular_files
from benchmarks.figure import Curves, Figure, Measured, NotEnough, Setting
from benchmarks.judgement import Finding, Verdict, at_most, worst
from benchmarks.paired_ticks import PairedTicks, balanced, paired_ticks
from benchmarks.process import held_libraries, private_bytes, shared_memory_bytes
from benchmarks.replay_run import SETUP_SECONDS, WAIT_SECONDS, ReplayShape, make_engine
from benchmarks.statistics import summarize

FIGURE = Figure(
    name="scale",
    claim="growth with 1e4 to 1e7 rows of vectors, and with 1 MB to 4 GB of model and Adam",
)

STALL_BAR_MS = 0.2
FLAT_MS = 0.1
"""By so much may the largest ring's stall, and its processor time, exceed the smallest one's."""

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
QUICK_ROWS = (10_000, 100_000)
OBS_BYTES = 17 * 4
ROUNDS = 120
QUICK_ROUNDS = 12
"""Two of them make one sample."""

RESUMES = 4
LARGE_RESUMES = 2
"""Of a gigabyte of model or more: what takes seconds varies little."""


STATES = (1e6, 1e7, 1e8, 1e9)
LARGEST_STATES = (4e9, 2e9)
"""The first that memory and disk take."""

QUICK_STATES = (1e6, 1e7)
STATES_IN_MEMORY = 3.2
"""The model and two staging slots; then the model, what was read of it, and one slot."""

STATES_ON_DISK = 3
STATE_BYTES_IN_ALL = 6e9
"""So much is saved of a size: few snapshots of large models."""

FEWEST_SAVES = 3
WARM_UPS = 2

Samples = dict[str, list[float]]


def measure(setting: Setting) -> Measured:
    rows = QUICK_ROWS if setting.quick else ROWS
    samples: Samples = {}
    _measure_rows(setting.part("rows"), rows, samples)
    states, left_out = _measure_states(setting.part("states"), samples)
    findings = [_stall_finding(rows, samples), _flat_finding(rows, samples)]
    findings.append(_state_finding(states, samples, left_out))
    curves = [
        *_curves("rows", "rows in the ring", rows, samples),
        *_curves("state", "bytes of model and optimizer", states, samples),
    ]
    shape = ReplayShape(rows[0], OBS_BYTES)
    facts = {"rows": list(rows), "row_bytes": shape.row_bytes, "state_bytes": list(states)}
    return Measured(findings, samples, facts, curves)


def _measure_rows(setting: Setting, sizes: tuple[int, ...], samples: Samples) -> None:
    shapes = [ReplayShape(rows, OBS_BYTES) for rows in sizes]
    whole = sum(shape.rows * shape.row_bytes for shape in shapes)
    setting.need_memory(1.2 * whole)
    setting.need_disk(2 * whole)
    with ExitStack() as stack:
        rings = [stack.enter_context(paired_ticks(setting.directory, shape)) for shape in shapes]
        for ticks in rings:
            ticks.warm_up()
        for number in range(QUICK_ROUNDS if setting.quick else ROUNDS):
            for ticks in reversed(rings) if number % 2 else rings:
                ticks.measure()
        for ticks in rings:
            _note_ticks(ticks, samples)
    for shape in shapes:
        run = setting.directory / f"{shape.rows}"
        resumed = [resume(run, shape) for _ in range(2 if setting.quick else RESUMES)]
        _note_files("rows", shape.rows, run, samples)
        for what, key, scale in (
            ("restore_ms", "restore_seconds", 1e3),
            ("first_batch_ms", "first_batch_seconds", 1e3),
            ("resumed_private_MB", "private_bytes_after", 1e-6),
        ):
            samples[f"rows_{shape.rows}_{what}"] = [scale * result[key] for result in resumed]


def _note_ticks(ticks: PairedTicks, samples: Samples) -> None:
    storage, writer = ticks.ring.storage, ticks.engine.writer_pid
    assert storage is not None
    assert writer is not None
    for what, values in (
        ("stall_ms", balanced(ticks.due_to_rows)),
        ("trainer_cpu_ms", balanced(ticks.cpu_due_to_rows)),
        ("snapshot_ms", ticks.persists),
        ("written_MB", [size / 1e6 for size in ticks.written_bytes]),
        ("shared_MB", [storage.arena.taken_bytes / 1e6]),
        ("writer_private_MB", [private_bytes(writer) / 1e6]),
    ):
        samples[f"rows_{ticks.shape.rows}_{what}"] = list(values)


def _note_files(kind: str, size: float, run: Path, samples: Samples) -> None:
    """Note the files of the newest snapshot; those of the pool are the same ones, under links."""
    newest = sorted((run / "snapshots").iterdir())[-1]
    samples[f"{kind}_{size:.0f}_files"] = [float(len(regular_files(newest)))]


def _measure_states(setting: Setting, samples: Samples) -> tuple[list[float], str]:
    """Measure each size that fits; return these, and what of the others is to be said."""
    sizes = QUICK_STATES if setting.quick else STATES
    for size in sizes:
        _measure_state(setting, size, samples)
    if setting.quick:
        return [*sizes], ""
    left_out = ""
    for size in LARGEST_STATES:
        try:
            _measure_state(setting, size, samples)
        except NotEnough as lack:
            left_out += f"; {size / 1e9:.0f} GB left out: {lack}"
        else:
            return [*sizes, size], left_out
    return [*sizes], left_out


def _measure_state(setting: Setting, size: float, samples: Samples) -> None:
    # Not before: what a process with torch has saved is restored with torch; rows do not need it.
    from benchmarks.models import change, model_of, state_tensors

    setting.need_memory(STATES_IN_MEMORY * size)
    setting.need_disk(STATES_ON_DISK * size)
    rounds = max(FEWEST_SAVES, min(setting.pairs, round(STATE_BYTES_IN_ALL / size)))
    run = setting.directory / f"{size:.0f}"
    model, optimizer = model_of(size)
    found: Samples = {}

    def note(what: str, value: float) -> None:
        found.setdefault(f"state_{size:.0f}_{what}", []).append(value)

    with make_engine(run, keep_last=1) as engine:
        engine.track(model=model, optimizer=optimizer)
        engine.declare_static("optimizer")
        for step in range(WARM_UPS + rounds):
            change(model)
            cpu_begin, begin = time.process_time(), time.perf_counter()
            pending = engine.snapshot(step)
            end, cpu_end = time.perf_counter(), time.process_time()
            pending.wait(WAIT_SECONDS)
            if step >= WARM_UPS:
                assert pending.outcome is not None
                note("stall_ms", (end - begin) * 1e3)
                note("trainer_cpu_ms", (cpu_end - cpu_begin) * 1e3)
                note("snapshot_ms", pending.outcome.persist_ns / 1e6)
                note("written_MB", pending.outcome.bytes_written / 1e6)
        assert engine.writer_pid is not None
        note("shared_MB", shared_memory_bytes() / 1e6)
        note("writer_private_MB", private_bytes(engine.writer_pid) / 1e6)
    for _ in range(LARGE_RESUMES if size >= 1e9 else RESUMES):
        with make_engine(run, keep_last=1) as engine:
            engine.track(model=model, optimizer=optimizer)
            time.sleep(SETUP_SECONDS)
            with held_libraries():
                drop_page_cache(run)
                begin = time.perf_counter()
                engine.restore()
                note("restore_ms", (time.perf_counter() - begin) * 1e3)
    note("tensors_MB", sum(t.nbytes for t in state_tensors(model, optimizer).values()) / 1e6)
    samples |= found
    _note_files("state", size, run, samples)
    shutil.rmtree(run)


def _stall_finding(rows: tuple[int, ...], samples: Samples) -> Finding:
    """Judge the median over all sizes; one size that is beyond the bar by itself misses it too."""
    stalls = [samples[f"rows_{size}_stall_ms"] for size in rows]
    text = " / ".join(f"{1e3 * summarize(stall).median:.0f}" for stall in stalls)
    every = summarize([one for stall in stalls for one in stall])
    beyond = [Verdict.MISSED for stall in stalls if at_most(stall, STALL_BAR_MS) is Verdict.MISSED]
    return Finding(
        f"stall due to append fields: median at most {1e3 * STALL_BAR_MS:.0f} us, at no size more",
        f"{1e3 * every.median:.0f} us ({1e3 * every.low:.0f} to {1e3 * every.high:.0f}): "
        f"{text} us at {' / '.join(f'{size:.0e}' for size in rows)} rows",
        worst(at_most([one for stall in stalls for one in stall], STALL_BAR_MS), *beyond),
    )


def _flat_finding(rows: tuple[int, ...], samples: Samples) -> Finding:
    """Judge what the largest ring takes beyond the smallest one, round by round."""
    texts, verdicts = [], []
    for words, what in (("stall", "stall_ms"), ("processor time", "trainer_cpu_ms")):
        small, large = (samples[f"rows_{size}_{what}"] for size in (rows[0], rows[-1]))
        more = [one - other for one, other in zip(large, small, strict=True)]
        found = summarize(more)
        texts.append(
            f"{words} {1e3 * found.median:+.0f} us "
            f"({1e3 * found.low:+.0f} to {1e3 * found.high:+.0f})"
        )
        verdicts.append(at_most(more, FLAT_MS))
    bar = f"trainer, {rows[-1]:.0e} beyond {rows[0]:.0e} rows: at most {1e3 * FLAT_MS:.0f} us each"
    return Finding(bar, ", ".join(texts), worst(*verdicts))


def _state_finding(states: list[float], samples: Samples, left_out: str) -> Finding:
    parts = []
    for what in ("stall", "snapshot", "restore"):
        medians = [summarize(samples[f"state_{size:.0f}_{what}_ms"]).median for size in states]
        parts.append(f"{what} {' / '.join(f'{median:.3g}' for median in medians)} ms")
    sizes = " / ".join(f"{size / 1e6:.0f}" for size in states)
    return Finding("none", f"{sizes} MB of state: {'; '.join(parts)}{left_out}", Verdict.UNJUDGED)


def _curves(
    kind: str, words: str, sizes: tuple[int, ...] | list[float], samples: Samples
) -> list[Curves]:
    """Return one panel a unit of all that was measured over these sizes."""
    panels = []
    for unit, whats in (
        ("ms", ("stall", "trainer_cpu", "snapshot", "restore", "first_batch")),
        ("MB", ("shared", "resumed_private", "writer_private", "written")),
        ("files", ("files",)),
    ):
        points = {}
        for what in whats:
            suffix = what if what == unit else f"{what}_{unit}"
            if f"{kind}_{sizes[0]:.0f}_{suffix}" in samples:
                found = [
                    (size, summarize(samples[f"{kind}_{size:.0f}_{suffix}"])) for size in sizes
                ]
                points[what.replace("_", " ")] = [
                    (float(size), one.median, one.low, one.high) for size, one in found
                ]
        panels.append(Curves(words, unit, points))
    return panels
