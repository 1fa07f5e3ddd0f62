"""Any damage to any blocks, with both policies, against a model of the ring in plain sets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_rings import save

from pyengine import Field, ReplayBuffer
from pyengine.errors import DamageError, DroppedRowError, EmptyRingError
from pyengine.format.segment import block_rows, iter_blocks

FIELDS = {
    "id": "int64",
    "obs": ((256,), "uint8"),
    "mark": Field((), "int32", mutable=True, default=0),
}
PER_LANE = 4096
"""1024 rows a segment; a block has 256 rows of `obs`, or all of `id`."""


class Model:
    """Which row ids a lane has, and which of them were spoilt."""

    def __init__(self, lanes):
        self.totals = [0] * lanes
        self.spoilt = [set() for _ in range(lanes)]
        self.marks = {}

    def add(self, lane, count):
        self.totals[lane] += count

    def window(self, lane):
        return range(max(0, self.totals[lane] - PER_LANE), self.totals[lane])

    def valid(self):
        """Refs whose rows are whole."""
        lanes = len(self.totals)
        return {
            row * lanes + lane
            for lane in range(lanes)
            for row in set(self.window(lane)) - self.spoilt[lane]
        }

    def lost(self):
        lanes = len(self.totals)
        return {
            row * lanes + lane
            for lane in range(lanes)
            for row in set(self.window(lane)) & self.spoilt[lane]
        }


def new_ring(lanes):
    return ReplayBuffer(FIELDS, PER_LANE * lanes, num_envs=lanes, seed=3)


def values(refs):
    refs = np.asarray(refs, np.int64)
    return {"id": refs, "obs": np.repeat((refs % 241).astype(np.uint8)[:, None], 256, axis=1)}


def extend(ring, model, lane, count):
    lanes = ring.num_envs
    ids = np.arange(model.totals[lane], model.totals[lane] + count)
    ring.extend(**values(ids * lanes + lane), lane=lane)
    model.add(lane, count)


def spoil(saved, model, layout, random, blocks):
    """Change a byte in `blocks` blocks of the saved files, and note whose rows they are."""
    names = sorted(saved.files)
    spoilt_open = False
    for _ in range(blocks):
        name = names[random.integers(len(names))]
        lane, segment = map(int, name.removesuffix(".seg").split("-"))
        # The last block has the starts, which a gather of rows does not read.
        block, offset, size = list(iter_blocks(layout))[random.integers(layout.block_count - 1)]
        in_block = block_rows(layout, block)
        first = segment * layout.row_capacity
        rows = {first + row for row in in_block if row < layout.row_capacity}
        if saved.files[name].record is None:
            rows &= set(range(model.totals[lane]))
            if not rows & set(model.window(lane)):
                continue  # rows that are not there yet: nobody reads that block
            spoilt_open = True
        # A second change of the same byte must not mend it.
        place = offset + int(random.integers(size))
        with Path(saved.files[name].path).open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte + 1 & 255]))
        model.spoilt[lane] |= rows
    return spoilt_open


def check_rows(batch):
    refs = batch.indices
    np.testing.assert_array_equal(batch["id"], refs)
    np.testing.assert_array_equal(batch["obs"], values(refs)["obs"])


def touch_all(ring):
    """Gather every row until all that are left are whole."""
    while True:
        try:
            check_rows(ring.gather(ring.refs()))
            return
        except DroppedRowError:
            continue


def check_dropping(ring, model, random):
    """Whatever is touched is right; when all was, exactly the spoilt rows are gone."""
    valid, lost = model.valid(), model.lost()
    for _ in range(3):
        if not valid:
            break
        batch = ring.sample(int(random.integers(1, 300)))
        check_rows(batch)
        assert not set(batch.indices.tolist()) & lost
    touch_all(ring)
    refs = ring.refs()
    assert refs.tolist() == sorted(valid)
    assert len(ring) == len(valid)
    gone = {
        (run.first_row + i) * ring.num_envs + run.lane
        for run in ring.dropped
        for i in range(run.row_count)
    }
    assert gone == lost
    if not valid:
        with pytest.raises(EmptyRingError):
            ring.sample(1)
        return
    for ref in random.choice(sorted(lost), 5).tolist() if lost else []:
        with pytest.raises(DroppedRowError):
            ring.gather([ref])
    chosen = random.choice(sorted(valid | lost), 64, replace=False)
    assert ring.update(chosen, mark=7) == len(set(chosen.tolist()) & lost)


def check_raising(ring, model, random):
    """Whole rows can be had; a spoilt one is an error that names its file, again and again."""
    valid, lost = sorted(model.valid()), sorted(model.lost())
    for ref in random.choice(lost, 5).tolist() if lost else []:
        with pytest.raises(DamageError) as caught:
            ring.gather([ref])
        row, lane = divmod(ref, ring.num_envs)
        segment = row // ring.storage.plan.segment_rows
        assert caught.value.path == ring.storage.paths[lane, segment]
    if valid:
        check_rows(ring.gather(valid))
    assert len(ring) == len(valid) + len(lost)
    assert ring.dropped == ()


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(0, 12), st.integers(0, 2**16))
def test_any_damage_costs_exactly_the_rows_of_its_blocks(lanes, blocks, seed):
    random = np.random.default_rng(seed)
    model = Model(lanes)
    with tempfile.TemporaryDirectory() as root, new_ring(lanes) as source:
        directories = [Path(root) / name for name in ("first", "second")]
        for directory in directories:
            directory.mkdir()
        for lane in range(lanes):
            extend(source, model, lane, int(random.integers(1, 2 * PER_LANE)))
        saved = save(source, directories[0])
        layout = source.storage.plan.layout
        is_open_spoilt = spoil(saved, model, layout, random, blocks)
        with new_ring(lanes) as raising, new_ring(lanes) as dropping, new_ring(lanes) as again:
            try:
                saved.install(raising)
                assert not is_open_spoilt
                check_raising(raising, model, random)
            except DamageError:
                assert is_open_spoilt
            saved.install(dropping, on_damage="drop", eager=bool(random.integers(2)))
            check_dropping(dropping, model, random)
            for lane in range(lanes):
                extend(dropping, model, lane, int(random.integers(0, PER_LANE)))
            check_dropping(dropping, model, random)
            # A second snapshot, of rows with holes, and more damage to its files.
            saved = save(dropping, directories[1])
            if saved.files:
                spoil(saved, model, layout, random, blocks // 2)
            saved.install(again, on_damage="drop")
            assert again.dropped[: len(dropping.dropped)] or not dropping.dropped
            check_dropping(again, model, random)
            for lane in range(lanes):
                extend(again, model, lane, int(random.integers(0, 2 * PER_LANE)))
            check_dropping(again, model, random)
