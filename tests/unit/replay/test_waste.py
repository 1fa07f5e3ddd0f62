"""A ring that takes much more memory than its rows says why, and what would take less."""

from __future__ import annotations

import logging

import pytest

from pyengine import Field, ReplayBuffer, Schema
from pyengine.replay.plan import plan_ring

SMALL_FIELDS = {f"f{i}": ((3,), "float32") for i in range(700)}
LARGE = {"x": ((1 << 20,), "uint8")}


@pytest.mark.parametrize(
    ("fields", "capacity", "lanes", "cause"),
    [
        (SMALL_FIELDS, 2048, 1, "each of its 701 fields takes whole pages"),
        (SMALL_FIELDS, 16384, 8, "each of its 701 fields takes whole pages"),
        (LARGE, 300, 300, "each of its 300 lanes has segments of its own"),
        (LARGE, 128, 64, "each of its 64 lanes has segments of its own"),
        ({"x": "float32"}, 512_000, 512, "each of its 512 lanes has segments of its own"),
        ({"x": ((84, 84), "uint8")}, 20_480, 1024, "in 5120 segment files: each of its 1024 lanes"),
        ({"x": "float32"}, 5000, 250, "in 1250 segment files: each of its 250 lanes"),
    ],
)
def test_the_cause_is_named(caplog, fields, capacity, lanes, cause):
    with caplog.at_level(logging.WARNING, "pyengine"):
        ReplayBuffer(fields, capacity, num_envs=lanes).close()
    assert cause in caplog.text


def test_files_that_are_many_because_the_ring_is_large_are_no_waste(caplog):
    frames = Schema({"x": ((4, 84, 84), "uint8")})
    with caplog.at_level(logging.WARNING, "pyengine"):
        assert plan_ring(frames, 8_000_000, 8).segment_count > 1024
        assert plan_ring(Schema({"x": "float32"}), 2000, 100).segment_count < 1024
    assert caplog.text == ""


def test_mutable_fields_are_no_waste(caplog):
    fields = {"x": ((4,), "float32"), "p": Field((), "float64", mutable=True, default=1)}
    with caplog.at_level(logging.WARNING, "pyengine"):
        ReplayBuffer(fields, 4_000_000).close()
        ReplayBuffer(LARGE, 1000).close()
    assert caplog.text == ""
