"""Segment files with random rows, whose hashes are right."""

from __future__ import annotations

import numpy as np

from pyengine._native.hashing import seal_image
from pyengine.format.schema import Schema
from pyengine.format.segment import KIND_SEGMENT, Run, header_image, plan_layout

ROWS = 9000
ONE_RUN = (Run(2, ROWS, ROWS),)
FIELDS = Schema({"obs": ((4, 5), "int16"), "half": "float16", "flag": "bool"}).append_fields


def segment_image(kind=KIND_SEGMENT, runs=ONE_RUN):
    """Return a whole file with the rows of `runs`; the same bytes at every call."""
    count = sum(run.row_count for run in runs)
    layout = plan_layout(FIELDS, count, run_capacity=len(runs))
    data = bytearray(layout.file_bytes)
    data[: layout.header_bytes] = header_image(layout, line=77, kind=kind, runs=runs)
    random = np.random.default_rng(5)
    for field in layout.fields:
        size = count * field.row_bytes
        data[field.offset : field.offset + size] = random.bytes(size)
    seal_image(data)
    return bytes(data)
