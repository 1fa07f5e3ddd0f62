"""A ring that takes much more memory than its rows says why, and what would take less."""

from __future__ import annotations

import logging

import pytest

from pyengine import Field, ReplayBuffer

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
    ],
)
def test_the_cause_is_named(caplog, fields, capacity, lanes, cause):
    with caplog.at_level(logging.WARNING, "pyengine"):
        ReplayBuffer(fields, capacity, num_envs=lanes).close()
    assert cause in caplog.text


def test_mutable_fields_are_no_waste(caplog):
    fields = {"x": ((4,), "float32"), "p": Field((), "float64", mutable=True, default=1)}
    with caplog.at_level(logging.WARNING, "pyengine"):
        ReplayBuffer(fields, 4_000_000).close()
        ReplayBuffer(LARGE, 1000).close()
    assert caplog.text == ""
