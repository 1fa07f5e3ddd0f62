"""What a schema refuses: names that collide, shapes, dtypes and defaults that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyengine import Field, ReplayBuffer, Schema
from pyengine.errors import SchemaError
from pyengine.format.dtypes import BY_NAME
from pyengine.format.schema import MAX_FIELDS

NAMES = [
    ({"a": {"b": "int8"}, "a/b": "int8"}, "a/b"),
    ({"a/b": "int8", "a": {"b": "int8"}}, "a/b"),
    ({"a": "int8", "a/b": "int8"}, "a"),
    ({"a/b/c": "int8", "a/b": "int8"}, "a/b"),
    ({"a/": "int8"}, "a/"),
    ({"/a": "int8"}, "/a"),
    ({"a//b": "int8"}, "a//b"),
    ({"": "int8"}, ""),
    ({"a": {"": "int8"}}, "a/"),
    ({"a/@start": "int8"}, "a/@start"),
    ({"@start": "int8"}, "@start"),
    ({"a": {}}, "a"),
    ({}, ""),
    (5, ""),
    ({1: "int8"}, "1"),
    ({"x" * 64: "int8"}, "x" * 64),
    ({"x\0": "int8"}, "x\0"),
    ({"\ud800": "int8"}, "\ud800"),
    ({"a": ((2,), "int8", 3)}, "a"),
]


@pytest.mark.parametrize(("fields", "name"), NAMES)
def test_names_that_collide_or_are_none_are_refused(fields, name):
    with pytest.raises(SchemaError) as caught:
        Schema(fields)
    assert caught.value.field == name
    assert caught.value.expected is not None


def test_nested_and_flat_names_mix_where_they_do_not_collide():
    schema = Schema({"a": {"b": "int8"}, "a/c": "int8", "ab": "int8"})
    assert list(schema) == ["a/b", "a/c", "ab"]


@pytest.mark.parametrize(
    "shape", [0, -1, 2.5, True, None, "ab", (2, 2.0), (2, 0), (1,) * 9, 1 << 60, {"x": 1}]
)
def test_shapes_are_positive_integers(shape):
    with pytest.raises(SchemaError) as caught:
        Field(shape, "uint8")
    assert caught.value.field == "shape"


def test_a_field_has_fewer_elements_than_two_to_the_fortieth():
    Field((1 << 20, (1 << 20) - 1), "uint8")
    with pytest.raises(SchemaError) as caught:
        Field((1 << 20, 1 << 20), "uint8")
    assert caught.value.field == "shape"


def test_one_field_of_a_file_is_kept_for_the_starts():
    fields = {f"f{i}": Field((), "int8") for i in range(MAX_FIELDS - 1)}
    Schema({**fields, "mark": Field(mutable=True)})
    with pytest.raises(SchemaError, match="up to 1024 fields, got 1025"):
        Schema({**fields, "mark": Field(mutable=True), "more": Field(mutable=True)})
    with pytest.raises(SchemaError, match="up to 1023 append fields, got 1024"):
        Schema({**fields, "more": Field()})


def test_shapes_take_what_is_an_index():
    for shape in (3, np.int64(3), [3], (np.uint8(3),), torch.Size([3]), np.array(3)):
        assert Field(shape).shape == (3,)


@pytest.mark.parametrize("text", [
    *(f"{order}{code}" for order in ("", "<", "=", "|") for code in [*"?bBhHiIlLqQpPefd", "f4"]),
    *("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f8", "<i8", "|u1", "=f2"),
    *("float", "int", "uint", "half", "single", "double", "byte", "ubyte", "short", "ushort"),
    *("intc", "uintc", "intp", "uintp", "long", "ulong", "longlong", "ulonglong", "int_", "bool_"),
])  # fmt: skip
def test_what_numpy_reads_as_a_type_of_the_table_is_that_type(text):
    assert Field((), text).dtype == np.dtype(text).name


@pytest.mark.filterwarnings("ignore:Data type alias")
def test_every_word_of_numpys_is_taken_where_its_type_can_be_stored():
    for text in map(str, np.sctypeDict):
        try:
            name = np.dtype(text).name
        except TypeError:
            continue
        if name in BY_NAME:
            assert Field((), text).dtype == name


def test_a_record_has_the_tables_own_names():
    record = Schema({"x": "f4"}).to_record()
    assert record["fields"][0]["dtype"] == "float32"
    for dtype in ("f4", "torch.float32", 5, [], None):
        record["fields"][0]["dtype"] = dtype
        with pytest.raises(SchemaError):
            Schema.from_record(record)


@pytest.mark.parametrize(
    "dtype",
    ["complex64", np.dtype(">f4"), "object", None, 5, "U8", ">f4", ">?", "<", "", "g", "<float"],
)
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(SchemaError) as caught:
        Field((), dtype)
    assert caught.value.field == "dtype"


DEFAULTS = [
    ("uint8", 256), ("uint8", -1), ("int8", 128), ("int64", 1 << 63), ("int32", 0.5),
    ("int32", 1.0), ("bool", 2), ("bool", 0.0), ("float16", 1e5), ("float32", 1e39),
    ("bfloat16", 3.4e38), ("float32", float("nan")), ("float32", float("inf")),
    ("float64", 1 << 2000), ("float32", [0.5]), ("float32", np.zeros(2)), ("float32", "1"),
    ("float32", 1j), ("float32", np.zeros((1, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "default"), DEFAULTS)
def test_a_default_that_does_not_fit_its_field_is_refused(dtype, default):
    with pytest.raises(SchemaError) as caught:
        Field((2,), dtype, mutable=True, default=default)
    assert caught.value.field == "default"
    assert caught.value.got is default
    assert dtype in caught.value.expected


def test_only_a_mutable_field_has_a_default():
    with pytest.raises(SchemaError):
        Field((), "float32", default=1.0)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_limits_of_a_dtype_are_defaults_that_come_back(name):
    spec = BY_NAME[name]
    for default in (spec.least, spec.most, 1, np.int8(0)):
        field = Field((2,), name, mutable=True, default=default)
        schema = Schema({"id": "int8", "x": field})
        assert Schema.from_record(schema.to_record()) == schema
        with ReplayBuffer(schema, 4) as ring:
            ring.add(id=1)
            stored = ring.gather([0], device="cpu")["x"]
            assert stored.dtype == getattr(torch, name)
            expected = torch.tensor([[field.default] * 2], dtype=stored.dtype)
            assert torch.equal(stored.view(torch.uint8), expected.view(torch.uint8))
            assert ring.column("x")[3].tobytes() == bytes(2 * spec.item_bytes)


@pytest.mark.parametrize("ends", ["end", ("x",), ("none",), (["end"],), (5,)])
def test_episode_end_names_flags(ends):
    with pytest.raises(SchemaError) as caught:
        Schema({"end": "bool", "x": "int8"}, episode_end=ends)
    assert caught.value.field == "episode_end"
