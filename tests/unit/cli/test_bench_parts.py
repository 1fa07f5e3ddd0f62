"""What `pyengine bench` is made of: sizes, arguments, room, intervals, workloads of any shape."""

from __future__ import annotations

import math
import os

import pytest

from pyengine.cli.measure import workload as workload_module
from pyengine.cli.measure.figures import Interval, Spread
from pyengine.cli.measure.learner import BATCH, Learner, Noise, played_rows
from pyengine.cli.measure.scratch import scratch_directory
from pyengine.cli.measure.workload import Workload
from pyengine.cli.words import format_bytes, parse_bytes
from pyengine.errors import ConfigError, NoSpaceError, PyengineError, SchemaError, SharedMemoryError
from pyengine.format.schema import Field, Schema
from pyengine.replay.ring import ReplayBuffer

GIVEN = {
    "env": None,
    "obs_shape": "17",
    "obs_dtype": "float32",
    "action_shape": None,
    "model_bytes": "1MB",
    "every_steps": "100",
    "steps": None,
    "capacity": None,
}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("100MB", 100_000_000),
        ("1.5 GB", 1_500_000_000),
        ("64KiB", 65_536),
        ("2g", 2_000_000_000),
        ("1TiB", 1 << 40),
        ("4096", 4096),
        ("7 b", 7),
    ],
)
def test_a_size_is_read_as_people_write_it(text, count):
    assert parse_bytes("--size", text) == count


@pytest.mark.parametrize("count", [7, 1_500, 2_500_000, 3_200_000_000, 1_000_000_000_000])
def test_a_size_that_was_printed_is_read_back(count):
    assert parse_bytes("--size", format_bytes(count)) == count


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1e6", "1 PB", "10 MBs", "١MB"])
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="--size: expected a size such as 100MB") as caught:
        parse_bytes("--size", text)
    assert (caught.value.field, caught.value.got) == ("--size", text)


@pytest.mark.parametrize(
    ("changed", "error", "word"),
    [
        ({"obs_shape": None}, ConfigError, "either --env ID, or --obs-shape"),
        ({"env": "CartPole-v1"}, ConfigError, "either --env ID, or --obs-shape"),
        ({"obs_shape": "4,x"}, ConfigError, "--obs-shape: expected an integer"),
        ({"obs_shape": "0"}, ConfigError, "--obs-shape: expected an integer"),
        ({"action_shape": ""}, ConfigError, "--action-shape: expected an integer"),
        ({"obs_dtype": "complex64"}, SchemaError, "dtype 'complex64' cannot be stored"),
        ({"model_bytes": "huge"}, ConfigError, "--model-bytes: expected a size"),
        ({"model_bytes": "1kB"}, ConfigError, "--model-bytes: expected an integer from 10000"),
        ({"every_steps": "0"}, ConfigError, "--every-steps: expected an integer from 1"),
        ({"every_steps": "ten"}, ConfigError, "--every-steps: expected an integer from 1"),
        ({"steps": "17"}, ConfigError, "--steps: expected an integer from 18"),
        ({"capacity": "1.5"}, ConfigError, "--capacity: expected an integer from 2"),
        ({"env": "Nothing-v0", "obs_shape": None}, ConfigError, "--env Nothing-v0: Gymnasium"),
    ],
)
def test_an_argument_that_cannot_work_is_named(changed, error, word):
    with pytest.raises(error) as caught:
        Workload.check(**{**GIVEN, **changed})
    assert word in str(caught.value)


def test_numbers_and_shapes_are_read_as_people_write_them():
    work = Workload.check(
        **{
            **GIVEN,
            "obs_shape": "(4, 84,84)",
            "obs_dtype": "uint8",
            "action_shape": "scalar",
            "every_steps": "10_000",
            "capacity": "1,000",
        }
    )
    assert (work.schema["obs"].shape, work.schema["action"].shape) == ((4, 84, 84), ())
    assert (work.every_steps, work.capacity) == (10_000, 1_000)


def test_rows_that_nobody_counted_fit_into_half_a_gigabyte():
    rows = [
        Workload.check(**{**GIVEN, "obs_shape": shape}) for shape in ("17", "4,84,84", "9000000000")
    ]
    assert rows[0].capacity == 100_000
    assert rows[1].capacity * rows[1].schema.row_bytes <= 500_000_000
    assert rows[2].capacity == 2


@pytest.fixture
def huge():
    return Workload.check(**{**GIVEN, "model_bytes": "100TB"})


def test_too_little_memory_is_told_with_numbers(huge, tmp_path):
    with pytest.raises(SharedMemoryError, match="take a smaller --capacity or --model-bytes") as e:
        huge.check_space(str(tmp_path), 1 << 20)
    assert e.value.needed_bytes > 100e12 > e.value.free_bytes


def test_too_little_disk_is_told_with_numbers(huge, tmp_path, monkeypatch):
    monkeypatch.setattr(workload_module, "headroom", lambda with_shm: 1 << 60)
    with pytest.raises(NoSpaceError, match="or another --dir") as caught:
        huge.check_space(str(tmp_path), 1 << 20)
    assert caught.value.needed_bytes > 100e12 > caught.value.free_bytes


def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ConfigError, match="is no directory: make it first"):
        Workload.check(**GIVEN).check_space(str(tmp_path / "absent"), 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("count", range(6, 120))
def test_an_interval_holds_the_median_with_95_per_cent_and_no_narrower_one_does(count):
    found = Interval.of(range(count))
    outside = [sum(math.comb(count, k) for k in range(end)) / 2**count for end in range(count)]
    rank = found.low + 1
    assert 1 - 2 * outside[rank] >= 0.95 > 1 - 2 * outside[rank + 1]
    assert found.median - found.low == found.high - found.median


@pytest.mark.parametrize("count", range(1, 6))
def test_of_five_samples_there_is_no_interval(count):
    with pytest.raises(ValueError, match="too few"):
        Interval.of(range(count))


def test_a_percentile_is_a_sample_that_was_there():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 3.0, 3)
    assert Spread.of([*range(1, 201)]) == Spread(100.5, 198, 200)


@pytest.mark.parametrize("wanted", [10_000, 100_000, 1_000_000, 30_000_000])
def test_a_learner_has_the_size_that_was_asked_for(wanted):
    schema = Workload.check(**GIVEN).schema
    learner = Learner(schema, wanted)
    with ReplayBuffer(schema, 100) as ring:
        for block in Noise(schema).blocks(100):
            ring.extend(block)
        learner.learn(ring.sample(BATCH, device="cpu"))
    assert learner.state_bytes == pytest.approx(wanted, rel=0.1)


FIELDS = {
    "scalar": Field((), "bool"),
    "bits": Field((3,), "bfloat16"),
    "image": Field((2, 4, 4), "uint8"),
    "deep": {"counts": Field((2,), "int64"), "half": Field((1,), "float16")},
}


@pytest.mark.parametrize("first", FIELDS)
def test_rows_of_noise_fit_any_schema_and_can_be_learned_from(first):
    schema = Schema({first: FIELDS[first], **FIELDS, "reward": "float32"})
    noise = Noise(schema)
    learner = Learner(schema, 10_000)
    rows = noise.rows()
    with ReplayBuffer(schema, 5_000) as ring:
        for block in noise.blocks(4_500):
            ring.extend(block)
        ring.add(next(rows))
        assert len(ring) == 4_501
        before = [parameter.clone() for parameter in learner.model.parameters()]
        learner.learn(ring.sample(BATCH, device="cpu"))
        after = list(learner.model.parameters())
    assert all(value.isfinite().all() for value in after)
    assert any((old != new).any() for old, new in zip(before, after, strict=True))


def test_an_environment_is_played_through_the_end_of_its_episodes():
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1")
    rows = played_rows(env)
    with ReplayBuffer(Schema.from_env(env), 200) as ring:
        for _ in range(200):
            ring.add(next(rows))
        batch = ring[ring.refs()]
    env.close()
    ends = batch["terminated"] | batch["truncated"]
    assert ends.sum() > 1
    goes_on = (batch["next_obs"][:-1] == batch["obs"][1:]).all(axis=1)
    assert (goes_on == ~ends[:-1]).all()


def test_a_scratch_directory_goes_with_its_block_and_spares_a_living_one(tmp_path):
    with scratch_directory(str(tmp_path)) as first:
        with scratch_directory(str(tmp_path)) as second:
            assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (first, second)))
        with pytest.raises(PyengineError), scratch_directory(str(tmp_path)):
            raise PyengineError
        assert os.listdir(tmp_path) == [os.path.basename(first)]
    assert os.listdir(tmp_path) == []
