"""PrioritizedReplayBuffer as its callers meet it: draws, weights, outputs, errors, threads."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from mapped_rings import block_place, flip, path_of
from reference_priorities import ReferenceTree
from saved_rings import save

from pyengine import Batch, LinearSchedule, PrioritizedReplayBuffer, ReplayBuffer, Schema
from pyengine.errors import (
    ClosedError,
    ConfigError,
    DamageError,
    EmptyRingError,
    FieldDtypeError,
    FieldShapeError,
    ForkedProcessError,
    MissingFieldError,
    PriorityError,
    SchemaError,
    StateMismatchError,
    UnknownFieldError,
    UnknownRefError,
)
from pyengine.format.schema import PRIORITY_FIELD

FIELDS = {"id": "int64", "obs": ((3,), "float32")}


def new_ring(capacity=100, rows=None, **options):
    ring = PrioritizedReplayBuffer(FIELDS, capacity, seed=3, **options)
    count = capacity if rows is None else rows
    ids = np.arange(count)
    ring.extend(id=ids, obs=np.repeat(ids[:, None], 3, 1).astype(np.float32))
    return ring


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_in_proportion_to_their_priorities(stratified, alpha):
    with new_ring(100, alpha=alpha, stratified=stratified) as ring:
        errors = np.linspace(0.1, 3, 100).astype(np.float32)
        ring.update_priorities(ring.refs(), errors)
        counts = np.zeros(100)
        for _ in range(400):
            np.add.at(counts, ring.sample(500)["id"], 1)
        chances = (errors.astype(float) + 1e-6) ** alpha
        expected = 200_000 * chances / chances.sum()
        # Chi-square with 99 degrees of freedom; the seed is fixed. Strata take variance away.
        assert ((counts - expected) ** 2 / expected).sum() < (100 if stratified else 160)


@pytest.mark.parametrize("normalize", ["buffer", "batch"])
def test_weights_undo_what_the_draw_prefers(normalize):
    with new_ring(100, normalize=normalize) as ring:
        errors = np.linspace(0, 3, 100)
        ring.update_priorities(ring.refs(), errors)
        chances = (errors + 1e-6) ** 0.6
        chances /= chances.sum()
        batch = ring.sample(64, beta=0.7)
        weights = (100 * chances) ** -0.7
        largest = weights.max() if normalize == "buffer" else weights[batch["id"]].max()
        np.testing.assert_allclose(batch.weights, weights[batch["id"]] / largest, rtol=1e-4)
        assert ring.sample(64, beta=0).weights.tolist() == [1] * 64


def test_a_batch_is_gathered_and_weighed_wherever_it_goes():
    with new_ring() as ring, new_ring() as other:
        fresh, out = ring.sample(8), Batch({"id": np.zeros(8, np.int64)}, np.zeros(8, np.int64))
        assert list(fresh) == ["id", "obs"]
        assert other.sample(8, out=out) is out
        assert out.indices.tolist() == fresh.indices.tolist() == fresh["id"].tolist()
        assert (fresh["obs"] == fresh["id"][:, None]).all()
        ring.update_priorities(fresh.indices, np.arange(8))
        other.update_priorities(out.indices, np.arange(8))
        tensors = ring.sample(8, device="cpu")
        again = other.sample(8, out={"obs": torch.zeros(8, 3)})
        assert isinstance(tensors.weights, torch.Tensor)
        assert tensors.weights.dtype == torch.float32
        assert tensors.weights.numpy().tolist() == again.weights.tolist()
        assert len(set(again.weights.tolist())) > 1
        # A batch filled anew has no weights of rows it held before.
        assert ring.gather([1, 2], out={"id": np.zeros(2, int)}).weights.tolist() == [1, 1]
        other.sample(8, out=out)
        other.gather(np.arange(8), out=out)
        assert out.weights.tolist() == [1] * 8
        assert len(ring.sample(0).weights) == 0


def test_new_rows_get_the_highest_priority_so_far():
    with new_ring(8, 2) as ring:
        column = ring.column(PRIORITY_FIELD)
        assert column[:2].tolist() == [1, 1]
        ring.add(id=2, obs=np.zeros(3), priority=0.25)
        ring.add(id=3, obs=np.zeros(3))
        ring.update_priorities([0], [5.0])
        ring.add(id=4, obs=np.zeros(3))
        ring.update_priorities([0], [0.0])
        ring.extend(id=[5, 6], obs=np.zeros((2, 3)), priority=[7.0, 0.5])
        ring.add(id=7, obs=np.zeros(3))
        expected = np.array([0, 1, 0.25, 1, 5, 7, 0.5, 7])
        expected[[0, 2, 4, 5, 6, 7]] += 1e-6
        assert column[:].tolist() == expected.astype(np.float32).tolist()
        assert ring.max_priority == np.float32(7 + 1e-6)


def test_masked_priorities_are_not_looked_at():
    with PrioritizedReplayBuffer({"id": "int8"}, 8, num_envs=2) as ring:
        ring.add(id=[1, 2], priority=[np.nan, 0.5], mask=[False, True])
        ring.extend(id=[[3, 4]], priority=[[2.0, -1.0]], mask=[[True, False]])
        assert ring.total_count.tolist() == [1, 1]
        for call in (ring.add, lambda **f: ring.extend(**{k: [v] for k, v in f.items()})):
            with pytest.raises(PriorityError, match="priority 1 "):
                call(id=[1, 2], priority=[1.0, np.nan])
        assert ring.total_count.tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["list", "array", "double", "tensor", "strided", "numbers"])
def test_priorities_come_in_many_forms(kind):
    values = [0.5, 2.0, 3.0]
    forms = {
        "list": values,
        "array": np.array(values, np.float32),
        "double": np.array(values),
        "tensor": torch.tensor(values, requires_grad=True),
        "strided": np.repeat(np.array(values, np.float32), 2)[::2],
        "numbers": [1, 2, 3],
    }
    with new_ring(epsilon=0) as ring:
        assert ring.update_priorities(np.array([7, 1, 9]), forms[kind]) == 0
        found = ring.column(PRIORITY_FIELD)[[7, 1, 9]].tolist()
        assert found == ([1, 2, 3] if kind == "numbers" else values)


REFUSED = {
    "nan": ([1, 2], [1, np.nan], PriorityError),
    "negative": ([1, 2], [1, -1e-9], PriorityError),
    "infinite": ([1, 2], [1, np.inf], PriorityError),
    "too large for float32": ([1, 2], np.array([1, 1e300]), PriorityError),
    "too few": ([1, 2], [1], FieldShapeError),
    "too many": (np.array([1, 2]), np.ones(3, np.float32), FieldShapeError),
    "one for all": ([1, 2], 1.0, FieldShapeError),
    "another shape": ([1, 2], [[1], [2]], FieldShapeError),
    "text": ([1, 2], ["a", "b"], FieldDtypeError),
    "refs that are no integers": ([1.0, 2.0], [1, 2], FieldDtypeError),
    "a ref never handed out": ([1, 100], [3, 3], UnknownRefError),
    "a negative ref": (np.array([1, -1]), np.ones(2, np.float32), UnknownRefError),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_stored_changes_nothing(case):
    refs, priorities, error = REFUSED[case]
    with new_ring() as ring:
        before, tree = np.asarray(ring.column(PRIORITY_FIELD)), ring.storage.core.priority_tree()
        with pytest.raises(error):
            ring.update_priorities(refs, priorities)
        with pytest.raises(error):
            ring.update_priorities(np.asarray(refs), np.asarray(priorities))
        assert np.array_equal(ring.column(PRIORITY_FIELD), before)
        assert ring.storage.core.priority_tree() == tree
        assert (ring.max_priority, ring.lost_updates) == (1, 0)


def test_the_field_itself_takes_priorities_only():
    with new_ring() as ring:
        for call in (
            lambda: ring.update([1, 2], **{PRIORITY_FIELD: [1.0, np.nan]}),
            lambda: ring.column(PRIORITY_FIELD).__setitem__(slice(2, 4), [1.0, -1.0]),
        ):
            with pytest.raises(PriorityError):
                call()
        assert (np.asarray(ring.column(PRIORITY_FIELD)) == 1).all()


def test_updates_of_rows_that_left_are_counted():
    with new_ring(10, 10) as ring:
        ring.extend(id=np.arange(4), obs=np.zeros((4, 3)))
        assert ring.update_priorities([0, 3, 4, 13], [9, 9, 2, 3]) == 2
        assert ring.lost_updates == 2
        assert ring.max_priority == np.float32(3 + 1e-6)


def test_nothing_to_draw_is_an_error():
    with PrioritizedReplayBuffer(FIELDS, 4, epsilon=0) as ring:
        with pytest.raises(EmptyRingError):
            ring.sample(1)
        with pytest.raises(UnknownRefError):
            ring.update_priorities([0], [1])
        assert ring.update_priorities([], []) == 0
        ring.add(id=1, obs=np.zeros(3), priority=0)
        with pytest.raises(EmptyRingError, match="priorities are 0"):
            ring.sample(1)
        assert ring.draw_count == 0
        ring.add(id=2, obs=np.zeros(3))
        assert ring.sample(100)["id"].tolist() == [2] * 100


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("alpha", -0.1), ("alpha", 1.5), ("alpha", "much"), ("alpha", float("nan")), ("beta", -1),
        ("beta", float("inf")), ("beta", None), ("epsilon", -1e-6), ("epsilon", 1e39),
        ("normalize", "sum"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_named(argument, value):
    with pytest.raises(ConfigError) as error:
        PrioritizedReplayBuffer(FIELDS, 4, **{argument: value})
    assert error.value.field == argument


def test_beta_follows_its_schedule():
    schedule = LinearSchedule(0.4, 1.0, 3)
    assert [schedule(i) for i in range(5)] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])
    with new_ring(beta=schedule) as ring:
        ring.update_priorities(ring.refs(), np.arange(100))
        for number, beta in enumerate((0.4, 0.6, 0.8, 1.0, 1.0)):
            assert (ring.draw_count, ring.beta) == (number, pytest.approx(beta))
            ring.sample(4)
    with new_ring(beta=lambda number: -1.0) as ring, pytest.raises(ConfigError):
        ring.sample(1)
    for numbers in ((-1, 1, 5), (0, 1, 0), (0, float("nan"), 5), (0, 1, 2.5)):
        with pytest.raises(ConfigError):
            LinearSchedule(*numbers)


def test_a_schema_keeps_priority_for_the_ring():
    for fields in ({"priority": "float32", "id": "int8"}, {"priority": {"of": "int8"}}):
        with pytest.raises(SchemaError):
            PrioritizedReplayBuffer(fields, 4)
    with pytest.raises(SchemaError):
        Schema({PRIORITY_FIELD: "float32"})
    with pytest.raises(SchemaError):
        Schema({f"f{i}": "int8" for i in range(1024)}).with_priorities()
    schema = Schema(FIELDS).with_priorities()
    assert Schema.from_record(schema.to_record()) == schema == schema.with_priorities()
    record = schema.to_record()
    record["fields"][-1]["dtype"] = "float64"
    with pytest.raises(SchemaError):
        Schema.from_record(record)
    with new_ring() as ring:
        with pytest.raises(UnknownFieldError):
            ring.add(id=1, obs=np.zeros(3), other=1)
        with pytest.raises(MissingFieldError):
            ring.add(id=1, priority=1.0)
        with pytest.raises(ValueError, match="priorities already"):
            ring.storage.core.keep_priorities(0, 0.6, 0, True, False)


def test_a_plain_rings_rows_get_priority_1(tmp_path):
    with ReplayBuffer(FIELDS, 64, seed=3) as plain, new_ring(64, 0) as ring:
        plain.extend(id=np.arange(90), obs=np.zeros((90, 3)))
        saved = save(plain, tmp_path)
        assert saved.install(ring) == 64
        assert (np.asarray(ring.column(PRIORITY_FIELD)) == 1).all()
        assert (ring.max_priority, ring.draw_count) == (1, 0)
        assert ring.sample(16).weights.tolist() == [1] * 16
        (tmp_path / "back").mkdir()
        with pytest.raises(StateMismatchError, match="@priority"):
            save(ring, tmp_path / "back").install(plain)


@pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
def test_what_a_file_has_in_place_of_a_priority_is_never_drawn(tmp_path, value):
    with new_ring(64) as source, new_ring(64, 0) as ring:
        saved = save(source, tmp_path)
        saved.mutable[PRIORITY_FIELD][::2] = value
        saved.install(ring)
        assert (ring.sample(500)["id"] % 2 == 1).all()
        leaves = np.frombuffer(ring.storage.core.priority_tree()[0][0])
        assert ReferenceTree(leaves.tolist()).total == 32


def test_rows_of_a_damaged_block_are_drawn_no_more(tmp_path):
    with new_ring(4096) as source:
        source.update_priorities(np.arange(4096), np.arange(4096))
        saved = save(source, tmp_path)
    with new_ring(4096, 0) as ring, new_ring(4096, 0) as other:
        saved.install(ring, on_damage="drop")
        offset, _ = block_place(ring, "obs")
        flip(path_of(ring, 1), offset)
        batches = [ring.sample(256) for _ in range(8)]
        (run,) = ring.dropped
        gone = range(run.first_row, run.first_row + run.row_count)
        for batch in batches:
            assert not np.isin(batch["id"], gone).any()
            assert (batch["obs"] == batch["id"][:, None]).all()
            expected = (1e-6 / (batch["id"] + 1e-6)) ** 0.24
            np.testing.assert_allclose(batch.weights, expected, rtol=1e-4)
        assert ring.update_priorities(list(gone)[:5], np.ones(5)) == 5
        saved.install(other)
        with pytest.raises(DamageError):
            other.sample(4096)


def test_a_forked_child_leaves_priorities_alone():
    with new_ring() as ring:
        ring.sample(4)
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (
                lambda: ring.sample(1),
                lambda: ring.update_priorities([0], [1]),
                lambda: ring.max_priority,
                lambda: ring._parents_storage.core.draws,
                lambda: ring._parents_storage.core.priority_tree(),
            ):
                try:
                    call()
                except ForkedProcessError:
                    refused += 1
            ring.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        ring.sample(4)
    for call in (lambda: ring.sample(1), lambda: ring.update_priorities([0], [1])):
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ClosedError):
        ring.add(id=1, obs=np.zeros(3), priority=1.0)


def test_threads_that_draw_and_update_beside_an_appender_keep_the_tree_right(frequent_switches):
    with new_ring(512, 1) as ring:
        stop, wrong = threading.Event(), []

        def learn():
            while not stop.is_set():
                batch = ring.sample(64)
                if (batch["obs"] != batch["id"][:, None]).any() or (batch.weights > 1).any():
                    wrong.append(batch)
                ring.update_priorities(batch.indices, batch["id"] % 7)

        threads = [threading.Thread(target=learn) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for i in range(1, 3000):
                ring.add(id=i, obs=np.full(3, i, np.float32))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong
        leaves = [float(p) ** 0.6 for p in np.asarray(ring.column(PRIORITY_FIELD))]
        tree = ReferenceTree(leaves)
        sums, lows = ring.storage.core.priority_tree()[-1]
        assert np.frombuffer(sums)[0] == tree.total
        assert np.frombuffer(lows)[0] == tree.lowest
