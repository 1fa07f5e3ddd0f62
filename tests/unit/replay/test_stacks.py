"""Frame stacks: what a schema takes, what is kept, what is refused, how rows are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mapped_rings import flip
from saved_rings import save

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import (
    BrokenStackError,
    ConfigError,
    DamageError,
    EmptyRingError,
    SchemaError,
    StateMismatchError,
    UnknownRefError,
)
from pyengine.format.buffer_header import BufferHeader
from pyengine.format.segment import iter_blocks, parse_header, verify_checksum
from pyengine.replay.segment_files import SegmentFile

GOLDEN = Path(__file__).parents[2] / "golden" / "v3"


def pair(shape=(3, 2), dtype="uint8", stack=3, **more):
    return {
        "obs": Field(shape, dtype, stack=stack),
        "next_obs": Field(shape, dtype, stack=stack, next_of="obs"),
        "end": "bool",
        **more,
    }


def new_ring(capacity=64, **options):
    schema = Schema(pair(), episode_end=("end",))
    return ReplayBuffer(schema, capacity, seed=1, **options)


def stack(*frames):
    return np.array([[frame, frame] for frame in frames], np.uint8)


def step(*frames, end=False):
    """A transition whose four frames these are."""
    return {"obs": stack(*frames[:3]), "next_obs": stack(*frames[1:]), "end": end}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"obs": Field((4, 2), stack=4)}, "obs"),
        ({"obs": Field((4, 2)), "next_obs": Field((4, 2), stack=4, next_of="obs")}, "next_obs"),
        ({"obs": Field((4, 2)), "next_obs": Field((4, 3), next_of="obs")}, "next_obs"),
        ({"obs": "int32", "next_obs": Field((), "int64", next_of="obs")}, "next_obs"),
        ({"next_obs": Field((4,), next_of="obs"), "a": "bool"}, "next_obs"),
        ({"obs": Field(mutable=True), "next_obs": Field((), next_of="obs")}, "next_obs"),
        ({"a": Field(next_of="a")}, "a"),
        ({"a": "float32", "b": Field(next_of="a"), "c": Field(next_of="a")}, "c"),
        ({"a": "float32", "b": Field(next_of="a"), "c": Field(next_of="b")}, "c"),
    ],
)
def test_pairs_that_make_no_sense_are_refused(fields, field):
    with pytest.raises(SchemaError) as caught:
        Schema(fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (5, 2), "stack": 4},
        {"shape": (), "stack": 2},
        {"shape": (4,), "stack": 0},
        {"shape": (4,), "stack": 2.0},
        {"shape": (4,), "next_of": 3},
        {"shape": (4,), "stack": 4, "mutable": True},
    ],
)
def test_fields_that_are_no_stacks_are_refused(options):
    with pytest.raises(SchemaError):
        Field(**options)


def test_a_row_keeps_one_frame():
    schema = Schema(pair((12, 84, 84), stack=4))
    assert list(schema.append_fields) == ["next_obs", "end", "@start"]
    assert schema.append_fields["next_obs"] == Field((3, 84, 84), "uint8")
    assert schema.row_bytes == 3 * 84 * 84 + 2
    assert Schema.from_record(schema.to_record()) == schema
    assert schema != Schema({**pair((12, 84, 84), stack=4), "end": "uint8"})


class Space:
    """A Box, or a Dict of them, as far as a schema looks."""

    def __init__(self, shape=None, dtype="uint8", spaces=None):
        self.shape, self.dtype, self.spaces = shape, dtype, spaces


class Box(Space):
    pass


class Dict(Space):
    pass


def test_a_schema_of_an_environment_takes_stacks():
    action = Box((2,), "float32")
    schema = Schema.from_spaces(Box((4, 84, 84)), action, stack=4)
    assert schema["obs"] == Field((4, 84, 84), "uint8", stack=4)
    assert schema["next_obs"] == Field((4, 84, 84), "uint8", stack=4, next_of="obs")
    both = Dict(spaces={"camera": Box((4, 8, 8)), "arm": Box((7,), "float32")})
    partly = Schema.from_spaces(both, action, stack={"camera": 4})
    assert partly["next_obs/camera"].next_of == "obs/camera"
    assert partly["next_obs/arm"] == Field((7,), "float32")
    assert [p.obs for p in Schema.from_spaces(both, action, stack=1).stacks] == [
        "obs/camera",
        "obs/arm",
    ]
    for wrong in ({"lidar": 4}, 3):
        with pytest.raises(SchemaError):
            Schema.from_spaces(both, action, stack=wrong)


@pytest.mark.parametrize(
    ("first", "opening_rows"), [((5, 5, 5), 1), ((0, 0, 5), 2), ((5, 5, 0), 2), ((1, 2, 3), 3)]
)
def test_a_sequence_opens_with_the_frames_it_needs(first, opening_rows):
    with new_ring() as ring:
        ring.add(step(*first, 9))
        assert (len(ring), ring.total_count) == (1, opening_rows + 1)
        assert ring.refs().tolist() == ring.breaks().tolist() == [opening_rows]
        batch = ring.gather(ring.refs())
        assert np.array_equal(batch["obs"][0], stack(*first))
        assert np.array_equal(batch["next_obs"][0], stack(*first[1:], 9))
        for opening in range(opening_rows):
            with pytest.raises(UnknownRefError):
                ring.gather([opening])


def test_what_follows_is_kept_once_and_what_does_not_opens_anew():
    with new_ring() as ring:
        ring.add(step(1, 1, 1, 2))
        ring.add(step(1, 1, 2, 3))
        assert ring.total_count == 3
        ring.add(step(1, 2, 9, 4))  # nobody said that an episode ended
        assert (ring.total_count, ring.breaks().tolist()) == (7, [1, 6])
        ring.break_episode()
        ring.add(step(2, 9, 4, 5))  # it would continue
        assert ring.breaks().tolist() == [1, 6, 10]
        ring.add(step(9, 4, 5, 6, end=True))
        ring.add(step(4, 5, 6, 7))
        assert ring.breaks().tolist() == [1, 6, 10, 15]
        obs = ring.gather(ring.refs())["obs"][:, :, 0].tolist()
        assert obs == [[1, 1, 1], [1, 1, 2], [1, 2, 9], [2, 9, 4], [9, 4, 5], [4, 5, 6]]


def test_a_next_stack_that_does_not_follow_changes_nothing():
    with new_ring(num_envs=2) as ring:
        good = {name: np.stack([value] * 2) for name, value in step(1, 1, 1, 2).items()}
        ring.add(good)
        before = ring.total_count.tolist(), ring.refs().tolist()
        bad = {name: value.copy() for name, value in good.items()}
        bad["next_obs"][1, 0] = 7
        for call in (
            lambda: ring.add(bad),
            lambda: ring.add({**bad, "end": [False, False]}),
            lambda: ring.extend({name: np.stack([good[name], bad[name]]) for name in bad}),
        ):
            with pytest.raises(BrokenStackError) as caught:
                call()
            assert caught.value.field == "next_obs"
            assert caught.value.got[1] == 1
            assert (ring.total_count.tolist(), ring.refs().tolist()) == before
        assert caught.value.got == (1, 1)
        ring.add(bad, mask=[True, False])
        ring.extend({n: v[None] for n, v in bad.items()}, mask=[[True, False]])


def test_bits_count_not_values():
    schema = Schema(pair((2,), "float32", stack=1), episode_end=("end",))
    with ReplayBuffer(schema, 64) as ring:
        nan = np.float32(np.nan)
        ring.add(obs=np.array([0.0, nan], "f4"), next_obs=np.array([0.0, nan], "f4"), end=False)
        ring.add(obs=np.array([0.0, nan], "f4"), next_obs=np.zeros(2, "f4"), end=False)
        assert ring.breaks().tolist() == [1]
        ring.add(obs=np.array([-0.0, 0.0], "f4"), next_obs=np.zeros(2, "f4"), end=False)
        assert ring.breaks().tolist() == [1, 4]
        assert np.signbit(ring.gather(ring.refs())["obs"][:, 0]).tolist() == [False, False, True]


def test_rows_whose_frames_left_the_window_left_with_them():
    with new_ring(16) as ring:
        for i in range(40):
            ring.add(step(*(max(0, j) for j in range(i - 2, i + 2))))
        assert ring.tail == ring.total_count - 16
        assert ring.refs().tolist() == list(range(ring.tail + 3, ring.total_count))
        assert len(ring) == 13
        column = np.asarray(ring.column("next_obs"))
        assert np.count_nonzero(column.any(axis=(1, 2))) == 13
        with pytest.raises(UnknownRefError):
            ring.gather([ring.tail])


def test_too_small_a_ring_is_refused_with_the_size_that_would_do():
    schema = Schema(pair())
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(schema, 15)
    assert "at least 16" in str(caught.value)
    ReplayBuffer(schema, 16).close()
    with pytest.raises(ConfigError, match="segment"):
        ReplayBuffer(Schema(pair((4, 1 << 24), stack=4)), 100_000)


def test_every_transition_is_drawn_alike_however_short_the_episodes():
    with new_ring(64) as ring:
        for i in range(40):
            ring.add(step(i, i + 1, i + 2, i + 3, end=True))  # three of four rows open
        refs = ring.refs()
        assert len(refs) == len(ring) == 16
        counts = np.bincount(np.searchsorted(refs, ring.sample(16_000).indices), minlength=16)
        assert np.isin(ring.sample(1000).indices, refs).all()
        # Chi-square with 15 degrees of freedom: 44 is exceeded once in 10,000.
        assert ((counts - 1000) ** 2 / 1000).sum() < 44


def test_where_next_to_nothing_is_valid_draws_end_and_are_alike():
    with new_ring(4096) as ring:
        ring.extend({name: np.stack([value] * 1000) for name, value in step(1, 1, 1, 1).items()})
        ring.storage.core.drop_rows(0, 10, 980)
        refs = ring.refs()
        assert len(refs) == 9 + 8
        counts = np.bincount(np.searchsorted(refs, ring.sample(17_000).indices), minlength=17)
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # 16 degrees of freedom
        ring.storage.core.drop_rows(0, 0, 10)
        ring.storage.core.drop_rows(0, 993, 8)
        assert len(ring) == 0
        with pytest.raises(EmptyRingError):
            ring.sample(1)


def test_outputs_and_devices_take_stacks():
    torch = pytest.importorskip("torch")
    with new_ring() as ring:
        for i in range(20):
            ring.add(step(*(max(0, j) for j in range(i - 2, i + 2))))
        refs = ring.refs()
        whole = ring.gather(refs)
        out = {"obs": np.zeros((20, 3, 2), np.uint8), "end": np.ones(20, bool)}
        ring.gather(refs, out=out)
        assert np.array_equal(out["obs"], whole["obs"])
        tensors = ring.gather(refs, device="cpu", out={"next_obs": torch.zeros(20, 3, 2).byte()})
        assert np.array_equal(tensors["next_obs"].numpy(), whole["next_obs"])
        assert ring.gather_at(refs % 64)["obs"].tolist() == whole["obs"].tolist()
        assert ring.refs_at([0, 1]).tolist() == [-1, 1]


def test_golden_rows_of_stacks_are_restored():
    header = BufferHeader.from_bytes((GOLDEN / "stacked_header.json").read_bytes(), path="h")
    data = (GOLDEN / "stacked.seg").read_bytes()
    parsed = parse_header(data, "s")
    checksum = verify_checksum(data, parsed, "s")
    record = (int(header.line, 16), 0, 0, 4, 1, checksum, len(data))
    files = {"stacked.seg": SegmentFile(str(GOLDEN / "stacked.seg"), checksum, record)}
    schema = Schema.from_record(header.schema)
    with ReplayBuffer(schema, 16) as ring:
        assert ring.install(header, files, {}, keep_breaks=True) == 2
        batch = ring.gather(ring.refs())
        assert batch.indices.tolist() == [2, 3]
        assert batch["obs"][:, :, 1].tolist() == [[0, 0, 1], [0, 1, 2]]
        assert batch["next_obs"][:, :, 1].tolist() == [[0, 1, 2], [1, 2, 3]]
        assert batch["reward"].tolist() == [1, 2]
        assert batch["done"].tolist() == [False, True]
    plain = {**schema, "obs": Field((3, 2), "uint8"), "next_obs": Field((3, 2), "uint8")}
    with (
        ReplayBuffer(Schema(plain, episode_end=("done",)), 16) as other,
        pytest.raises(StateMismatchError, match="stack of 3"),
    ):
        other.install(header, files, {})


@pytest.mark.parametrize("field", ["next_obs", "@start"])
def test_damaged_frames_and_start_flags_of_a_lazy_restore_are_met_before_use(tmp_path, field):
    with new_ring() as source, new_ring() as ring:
        for i in range(40):
            source.add(step(*(max(0, j) for j in range(i - 2, i + 2))))
        files = save(source, tmp_path)
        layout = source._plan.layout
        (number,) = (f.first_block for f in layout.fields if f.name == field)
        flip(tmp_path / "0-0.seg", next(at for b, at, _ in iter_blocks(layout) if b == number))
        if field == "@start":
            with pytest.raises(DamageError):
                files.install(ring)
            assert len(ring) == 0
            return
        assert files.install(ring) == len(source)
        rows = source._plan.segment_rows
        for ref in (rows - 1, rows + 2):  # its own frame, one of its stack's
            with pytest.raises(DamageError):
                ring.gather([ref])
        assert np.array_equal(ring.gather([rows + 3])["obs"], source.gather([rows + 3])["obs"])
