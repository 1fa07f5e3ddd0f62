"""The tagged tree: every value comes back the same, through JSON and msgpack, or is refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyengine.capture.decode import Decoder
from pyengine.capture.leaves import DataclassLeaf, RngLeaf, TensorLeaf, plain
from pyengine.capture.merge import Merge
from pyengine.capture.tree import MAX_DEPTH, Encoder
from pyengine.errors import CaptureError, DamageError, StateMismatchError

Point = namedtuple("Point", "x y")


class Mode(enum.Enum):
    TRAIN = 1
    EVAL = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Stats:
    count: int = 0
    values: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class Memory:
    """Entries without a file."""

    def __init__(self, encoder):
        self._values = dict(zip(encoder.names, encoder.values, strict=True))

    def array(self, name):
        return self._values[name]

    def tensor(self, name):
        return self._values[name]


def through(value):
    """Encode, pass both text forms, decode and make anew."""
    encoder = Encoder("test")
    node = encoder.encode(value)
    assert json.loads(json.dumps(node, allow_nan=False)) == node
    assert msgpack.unpackb(msgpack.packb(node), strict_map_key=False) == node
    return Merge("test").fresh(Decoder(Memory(encoder), "file").decode(node))


def bits(value):
    return struct.pack("<d", value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**63,
        2**127 + 12345,
        -(2**200),
        1.5,
        -0.0,
        5e-324,
        "",
        "täxt",
        "\ud800 lone",
        b"",
        b"\x00\xff",
        b"x" * 1000,
        1 + 2j,
        range(1, 10, 3),
        (),
        (1, (2, [3])),
        [],
        [1, "a", None],
        {},
        {"a": {"b": [1]}},
        {"$": 1, "v": 2},
        {1: "int", 2: "keys"},
        {(1, "x"): 1, None: 2, b"b": 3, 1.5: 4, True: 5},
        {1, 2, 3},
        pytest.param(frozenset({"a", "b"}), id="frozenset of text"),
        {(1, 2), (3, 4)},
        bytearray(b"abc"),
        bytearray(b"abc" * 500),
        OrderedDict([("b", 1), ("a", 2)]),
        Counter({"x": 3}),
        defaultdict(list, {"a": [1]}),
        defaultdict(None, {"a": 1}),
        deque([1, 2, 3], maxlen=5),
        torch.float32,
        torch.bfloat16,
        torch.device("cpu"),
        torch.Size([2, 3]),
        np.dtype("float32"),
        np.float32(1.5),
        np.int64(-3),
        np.bool_(True),
        np.str_("text"),
        np.str_(""),
        np.datetime64("2026-01-01T00:00:01", "s"),
        Mode.EVAL,
        Level.LOW,
        Point(1, [2, 3]),
        Frozen(4),
        Stats(3, [1.0]),
        [0.5] * 1000,
        list(range(1000)),
        tuple(range(500)),
        deque([1.0] * 300, maxlen=400),
        [2**63] * 300,
        [True] * 300,
    ],
    ids=repr,
)
def test_value_comes_back_with_its_type(value):
    back = through(value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, deque):
        assert back.maxlen == value.maxlen
    if isinstance(value, defaultdict):
        assert back.default_factory is value.default_factory
    if isinstance(value, (list, tuple, deque)):
        assert [type(item) for item in back] == [type(item) for item in value]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_floats_keep_their_bits(value):
    assert bits(through(value)) == bits(value)
    assert bits(through([value] * 300)[7]) == bits(value)


def test_nan_keeps_its_payload():
    odd = struct.unpack("<d", bytes.fromhex("010000000000f47f"))[0]
    assert bits(through(odd)) == bits(odd)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.array(3.0),
        np.zeros((0, 3)),
        np.array([1 + 2j]),
        np.array(["a", "bcd"]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.arange(4, dtype=">f4"),
        np.arange(10)[::-2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_array_keeps_dtype_and_values(value):
    back = through(value)
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert back.tobytes() == value.tobytes()


def test_array_of_objects_keeps_its_objects():
    value = np.array([[1, "a"], [None, {"x": 2}]], dtype=object)
    back = through(value)
    assert back.shape == (2, 2)
    assert back.tolist() == value.tolist()


def test_shared_objects_stay_shared():
    shared = [1]
    array = np.zeros(2)
    back = through({"a": shared, "b": {"c": shared}, "x": array, "y": [array]})
    assert back["a"] is back["b"]["c"]
    assert back["x"] is back["y"][0]


def test_equal_objects_stay_apart():
    back = through({"a": [1], "b": [1]})
    assert back["a"] is not back["b"]


def test_cycle_comes_back():
    value = {"name": "root"}
    value["self"] = [value]
    back = through(value)
    assert back["self"][0] is back


def test_shared_generator_stays_shared():
    rng = np.random.default_rng(3)
    back = through({"a": rng, "b": rng, "c": np.random.default_rng(4)})
    assert back["a"] is back["b"]
    assert back["a"] is not back["c"]


def test_set_is_encoded_in_one_order():
    encode = lambda value: Encoder("t").encode(value)  # noqa: E731
    assert encode({"b", "a", "c"}) == encode({"c", "b", "a"})


def test_metadata_shares_nothing_with_live_objects():
    live = {"list": [1, 2], "nested": {"x": deque([1])}}
    node = Encoder("t").encode(live)
    before = json.dumps(node)
    live["list"].append(3)
    live["nested"]["x"].append(2)
    assert json.dumps(node) == before


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, lambda: 0]}, "/a/1"),
        ({"f": print}, "/f"),
        ({"o": object()}, "/o"),
        ({"t": int}, "/t"),
        ({"g": (i for i in ())}, "/g"),
        ({"a/b": {"~": object()}}, "/a~1b/~0"),
        ({"k": {object(): 1}}, "/k/0"),
        ({"m": torch.nn.Linear(1, 1)}, "/m"),
        ({"s": torch.eye(2).to_sparse()}, "/s"),
        ({"d": torch.zeros(2, device="meta")}, "/d"),
        ({"x": np.ma.masked_array([1], [True])}, "/x"),
        ({"r": np.array([(object(),)], dtype=[("a", object)])}, "/r"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value, place):
    with pytest.raises(CaptureError, match="'counters'") as caught:
        Encoder("counters").encode(value)
    assert f" at {place}: " in str(caught.value)
    assert caught.value.component == "counters"


def test_depth_is_bounded_and_the_deepest_comes_back():
    def nest(levels):
        value = [0]
        for _ in range(levels - 1):
            value = [(value,)] if isinstance(value, list) and len(value) == 2 else [value]
        return value

    assert through(nest(MAX_DEPTH)) == nest(MAX_DEPTH)
    with pytest.raises(CaptureError, match="levels deep"):
        Encoder("t").encode(nest(MAX_DEPTH + 2))


@pytest.mark.parametrize(
    "node",
    [
        {"$": "what"},
        {"$": "int", "v": "zz"},
        {"$": "float", "v": "00"},
        {"$": "tuple"},
        {"$": "map", "v": [[1]]},
        {"$": "map", "v": [[[], 1]]},
        {"$": "ref", "v": "/nowhere"},
        {"$": "array", "e": "gone"},
        {"$": "bytes", "v": "***"},
        {"$": "dtype", "v": "torch.nn"},
        {"$": "defaultdict", "factory": "eval", "v": []},
        {"$": "rng", "kind": "x", "v": 3},
        {"$": ["unhashable"]},
        {"a": b"bytes"},
    ],
    ids=repr,
)
def test_malformed_node_is_damage(node):
    with pytest.raises(DamageError, match="file"):
        Decoder(None, "file").decode(node)


def test_too_deep_a_tree_is_damage():
    node = []
    for _ in range(MAX_DEPTH + 50):
        node = [node]
    with pytest.raises(DamageError, match="too deep"):
        Decoder(None, "file").decode(node)


def test_type_that_is_not_imported_is_a_mismatch_and_is_not_imported():
    leaf = DataclassLeaf("antigravity:Thing", {})
    with pytest.raises(StateMismatchError, match="antigravity"):
        Merge("t").fresh(leaf)


def test_only_dataclasses_are_made_from_names():
    with pytest.raises(StateMismatchError, match="not a dataclass"):
        Merge("t").fresh(DataclassLeaf("subprocess:Popen", {"args": "true"}))


def test_plain_data_needs_no_types():
    stats = Stats(1, [2.0])
    encoder = Encoder("t")
    node = encoder.encode({"s": stats, "m": Mode.EVAL, "p": Point(1, 2), "t": torch.ones(2)})
    back = plain(Decoder(Memory(encoder), "file").decode(node))
    assert back["s"] == {"count": 1, "values": [2.0]}
    assert back["m"] == "EVAL"
    assert back["p"] == {"x": 1, "y": 2}
    assert torch.equal(back["t"], torch.ones(2))


def test_generator_is_a_leaf_with_its_state():
    encoder = Encoder("t")
    node = encoder.encode([np.random.default_rng(5), torch.Generator()])
    numpy_leaf, torch_leaf = Decoder(Memory(encoder), "file").decode(node)
    assert isinstance(numpy_leaf, RngLeaf)
    seeds = numpy_leaf.state.pop("seed_sequence", {"entropy": 5})
    assert seeds["entropy"] == 5
    assert numpy_leaf.state == np.random.default_rng(5).bit_generator.state
    assert not isinstance(torch_leaf.state["bytes"], TensorLeaf)


def _trees():
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=8)
        | st.binary(max_size=8)
    )
    keys = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(keys, inner, max_size=4)
            | st.tuples(inner, inner)
            | st.builds(deque, st.lists(inner, max_size=3))
        ),
        max_leaves=20,
    )


@given(_trees())
def test_any_tree_comes_back(value):
    assert through(value) == value
