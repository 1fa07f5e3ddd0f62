"""A ring whose rows take ten times its memory limit: adding and sampling at the disk's speed.

Adds are timed in the steady state, where each new segment waits for an older one to be on disk.
Batches are sampled with nothing in the page cache, as where the rows are many times what it holds:
first of blocks that nobody has touched, which are read whole and verified, then of blocks that were
verified before, of which only the rows' pages are read. The limits are an O_DIRECT write with
fsync, and random O_DIRECT reads of 64 KiB one at a time, in the same round.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import pyengine
from benchmarks.disk import (
    drop_page_cache,
    plain_write_seconds,
    random_read_rate,
    regular_files,
)
from benchmarks.figure import Figure, Measured, Setting
from benchmarks.judgement import Finding, at_least, at_most, format_ratio
from benchmarks.replay_run import ReplayShape, make_engine
from benchmarks.statistics import paired_ratios, summarize
from pyengine.replay.storage import Storage

BATCH = 256
SHAPE = ReplayShape(25_000, 28_224)
QUICK_SHAPE = ReplayShape(5_000, 28_224)
SHARE = 10
ADD_BAR = 0.8
SAMPLE_BAR = 2.0
READS = 400
SOURCE_BYTES = 64 << 20
FIGURE = Figure(
    "larger_than_memory",
    f"add, and sample({BATCH}) cold, of a replay of {SHARE} x its memory_limit (1.4 GB)",
)


def measure(setting: Setting) -> Measured:
    shape = QUICK_SHAPE if setting.quick else SHAPE
    whole_bytes = shape.rows * shape.row_bytes
    setting.need_disk(2.5 * whole_bytes)
    samples: dict[str, list[float]] = {
        name: []
        for name in (
            "add_MB_per_s", "plain_write_MB_per_s", "sample_new_ms", "limit_new_ms",
            "sample_known_ms", "limit_known_ms",
        )
    }  # fmt: skip
    with _limited_ring(setting, shape, whole_bytes // SHARE) as ring:
        shape.fill(ring, 0, shape.rows + shape.rows // SHARE)
        _measure_adds(setting, shape, ring, samples)
        _measure_samples(setting, shape, ring, samples)
        facts = {
            "rows": shape.rows,
            "row_bytes": shape.row_bytes,
            "memory_limit_bytes": whole_bytes // SHARE,
            "mapped_segments": len(_storage(ring).mapped),
        }
    writes = paired_ratios(samples["add_MB_per_s"], samples["plain_write_MB_per_s"])
    findings = [
        Finding(
            f"at least {ADD_BAR} x a plain O_DIRECT write + fsync",
            f"add {format_ratio(writes)}, {summarize(samples['add_MB_per_s']).median:.0f} MB/s",
            at_least(writes, ADD_BAR),
        )
    ]
    for kind, what in (("new", "first touch"), ("known", "later")):
        ratios = paired_ratios(samples[f"sample_{kind}_ms"], samples[f"limit_{kind}_ms"])
        milliseconds = summarize(samples[f"sample_{kind}_ms"]).median
        findings.append(
            Finding(
                f"at most {SAMPLE_BAR:g} x (bytes needed / random 64 KiB read rate), {what}",
                f"sample, {what}: {format_ratio(ratios)}, {milliseconds:.0f} ms",
                at_most(ratios, SAMPLE_BAR),
            )
        )
    return Measured(findings, samples, facts)


@contextmanager
def _limited_ring(
    setting: Setting, shape: ReplayShape, limit_bytes: int
) -> Iterator[pyengine.ReplayBuffer]:
    ring = pyengine.ReplayBuffer(shape.schema(), shape.rows, seed=1, memory_limit=limit_bytes)
    with make_engine(setting.directory / "run") as engine, ring:
        engine.track(replay=ring)
        engine.restore()
        yield ring


def _measure_adds(
    setting: Setting,
    shape: ReplayShape,
    ring: pyengine.ReplayBuffer,
    samples: dict[str, list[float]],
) -> None:
    count = shape.rows // SHARE  # as many as the limit holds
    rows = shape.rows_from(0, 64)
    with mmap.mmap(-1, SOURCE_BYTES) as source:
        source.write(os.urandom(SOURCE_BYTES))
        for _ in range(setting.pairs):
            begin = time.perf_counter()
            for _ in range(count // 64):
                ring.extend(**rows)
            seconds = time.perf_counter() - begin
            size = count // 64 * 64 * shape.row_bytes
            limit = plain_write_seconds(setting.directory / "plain", size, source)
            samples["add_MB_per_s"].append(size / seconds / 1e6)
            samples["plain_write_MB_per_s"].append(size / limit / 1e6)


def _measure_samples(
    setting: Setting,
    shape: ReplayShape,
    ring: pyengine.ReplayBuffer,
    samples: dict[str, list[float]],
) -> None:
    pool = setting.directory / "run" / "segments"
    for number in range(setting.pairs):
        files = [path for path in regular_files(pool) if path.suffix == ".seg"]
        rate = random_read_rate(files, reads=READS, seed=number)
        _forget(setting, ring, is_verified=False)
        new, refs = _sample(ring)
        samples["sample_new_ms"].append(new)
        samples["limit_new_ms"].append(shape.needed_bytes(_in_files(ring, refs)) / rate * 1e3)
        _forget(setting, ring, is_verified=True)
        known, refs = _sample(ring)
        samples["sample_known_ms"].append(known)
        needed = len(np.unique(_in_files(ring, refs))) * shape.row_bytes
        samples["limit_known_ms"].append(needed / rate * 1e3)


def _sample(ring: pyengine.ReplayBuffer) -> tuple[float, np.ndarray]:
    begin = time.perf_counter()
    batch = ring.sample(BATCH)
    return (time.perf_counter() - begin) * 1e3, batch.indices


def _storage(ring: pyengine.ReplayBuffer) -> Storage:
    assert ring.storage is not None, "the ring has no rows yet"
    return ring.storage


def _in_files(ring: pyengine.ReplayBuffer, refs: np.ndarray) -> np.ndarray:
    storage = _storage(ring)
    return refs[np.isin(refs // storage.plan.segment_rows, [key[1] for key in storage.mapped])]


def _forget(setting: Setting, ring: pyengine.ReplayBuffer, *, is_verified: bool) -> None:
    """Let nothing of the files be cached, nor, unless `is_verified`, count as verified."""
    storage = _storage(ring)
    blocks = storage.plan.layout.block_count
    for lane, segment in list(storage.mapped):
        storage.core.forget_segment(lane, segment)
        if is_verified:
            storage.control.mark_verified(lane, segment, 0, blocks)
    drop_page_cache(setting.directory / "run")
