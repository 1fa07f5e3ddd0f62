"""Figures over a size: they pass between processes as JSON, and have a picture of their own."""

from __future__ import annotations

import json

import pytest

from benchmarks.figure import Curves, Figure, Measured
from benchmarks.judgement import Finding, Verdict
from benchmarks.models import model_of, state_tensors
from benchmarks.plots import draw

GROWTH = Measured(
    [Finding("flat", "flat", Verdict.REACHED)],
    {"rows_10_stall_ms": [1.0, 2.0]},
    {"rows": [10, 100]},
    [
        Curves("rows", "ms", {"stall": [(10.0, 1.0, 0.5, 2.0), (100.0, -1.0, -2.0, 0.5)]}),
        Curves("rows", "MB", {"shared": [(10.0, 1.0, 1.0, 1.0), (100.0, 9.0, 9.0, 9.0)]}),
        Curves("bytes", "ms", {"stall": [(1e6, 1.0, 1.0, 1.0)]}),
    ],
)


def test_what_a_figures_process_prints_is_read_back():
    read = Measured.from_json(json.loads(json.dumps(GROWTH.to_json())))
    assert json.dumps(read.to_json()) == json.dumps(GROWTH.to_json())
    assert [curves.unit for curves in read.curves] == ["ms", "MB", "ms"]


@pytest.mark.parametrize("curves", [GROWTH.curves, []])
def test_curves_and_samples_are_drawn(tmp_path, curves):
    pytest.importorskip("matplotlib")
    measured = Measured(GROWTH.findings, GROWTH.samples, GROWTH.facts, curves)
    draw(Figure("growth", "it grows"), measured, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("size", [1e6, 1e7, 6e7])
def test_a_model_has_the_size_that_was_asked_for(size):
    tensors = state_tensors(*model_of(size)).values()
    assert sum(tensor.nbytes for tensor in tensors) == pytest.approx(size, rel=0.01)
