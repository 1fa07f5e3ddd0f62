"""Valid files for the readers, and what an attacker makes of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import xxhash
from hypothesis import strategies as st
from readers import COMPONENTS, GOLDEN

from pyengine.format.buffer_header import LaneRecord
from pyengine.format.descriptor import FilePlan, RingCut, SlotRange, SnapshotDescriptor
from pyengine.format.manifest import ComponentRecord
from pyengine.format.sealed import record_bytes, seal

LINE = {
    "line": "00000000000000ab", "generation": 2, "parent": "step-00000500.g0001.s0005",
    "parent_line": "edc440a156fdcc5b", "start_rows": {"replay": [500]},
    "opened_at": "2026-11-30T12:43:32.740Z",
}  # fmt: skip
PARTY = {
    "role": "owner", "host": "vm", "boot_id": "f2a3c5de", "pid_namespace": 4026531836, "pid": 7,
    "start_ticks": 9, "rank": 0, "since": "2026-11-30T12:43:27.770Z", "pyengine": "0.1.0",
}  # fmt: skip
RECORD = {
    "file": "model/policy.safetensors", "kind": "damage", "offset": 0, "expected": "1", "got": "2",
    "text": "damaged", "found_at": "2026-11-30T12:43:27.770Z",
}  # fmt: skip
RUN = {
    "run_id": "7a58d54464a3f6f0", "created_at": "2026-11-30T12:43:27.769Z",
    "pyengine": "0.1.0",
    "branched_from": {"run": "/other", "snapshot": "step-00000100.g0001.s0001"},
}  # fmt: skip


def _golden(path: str) -> bytes:
    return (GOLDEN / path).read_bytes()


def _component(path: str) -> bytes:
    return (COMPONENTS / path).read_bytes()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


DESCRIPTOR = SnapshotDescriptor(
    sequence=3,
    generation=1,
    global_step=7,
    created_at="2026-11-30T10:00:00Z",
    line="00000000000000ab",
    algorithm=None,
    versions={"pyengine": "0.1.0"},
    metrics={"a": 1.0},
    evaluations=0,
    notes={},
    components=(ComponentRecord("policy", "module", "saved", None, ("model/p",), 10),),
    files=(FilePlan("model/p", (b"head", SlotRange(0, 10))),),
    rings=(RingCut("replay", (LaneRecord(1, 10, False),), {"num_lanes": 1}, None, "1:2"),),
)
EVALUATIONS = {
    "evaluations": [{"step": 3, "metrics": {"a": 1.5}, "recorded_at": "2026-11-30T10:00:00Z"}]
}

SEEDS: dict[str, bytes] = {
    "segment": _golden("segment.seg"),
    "image": _golden("part.seg"),
    "manifest": (GOLDEN.with_name("v4") / "manifest.json").read_bytes(),
    "older_manifest": _golden("manifest.json"),
    "buffer_header": _golden("buffer_header.json"),
    "descriptor": DESCRIPTOR.pack(),
    "evaluations": _json(EVALUATIONS),
    "tensors": _component("state/counters.safetensors"),
    "module": _component("model/policy.safetensors"),
    "optimizer": _component("optimizer/optimizer.msgpack"),
    "rng": _component("rng/explorer.msgpack"),
    "counters": _component("meta.json"),
    "line": record_bytes(LINE),
    "run": record_bytes(RUN, indent=1),
    "branched": record_bytes(RUN, indent=1),
    "generation": record_bytes(PARTY),
    "marker": record_bytes({"attempts": 1}),
    "quarantine": record_bytes(RECORD, indent=1),
}

MSGPACK = {"descriptor", "optimizer", "rng"}
SAFETENSORS = {"tensors", "module"}
BINARY = {"segment", "image"}
SEALED = {
    "manifest",
    "older_manifest",
    "line",
    "run",
    "branched",
    "generation",
    "marker",
    "quarantine",
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


LEAVES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 0.5,
    float("nan"), float("inf"), -float("inf"), 1e308, "", "a", "..", "../x", "/etc/passwd", "a/b",
    "a\0b", "\udc80", "\u202e", "x" * 5000, "$", "F32", "BF16", "float32", "nan", "0x1p5000",
    "torch.float32", "cuda:99", [], {}, [0], [[]], [-1], [2**40, 2**40], [0] * 64, {"$": "ref"},
    {"$": "ref", "p": ""}, {"$": "numbers", "e": "x"}, {"$": "tensor"}, {"$": []}, {"": ""},
]  # fmt: skip
DEEP = [_nested(40), _nested(400)]

Change = Callable[[Any], Any]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        found += _paths(item, (*at, key))
    return found


def _exchange(value: Any, path: tuple[Any, ...], draw: Any) -> Any:
    """Return the value with what lies at a path exchanged, removed, or given under another key."""
    if not path:
        return draw(st.sampled_from([*LEAVES, *DEEP]))
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = _exchange(value[key], tuple(rest), draw)
        return copy
    action = draw(st.sampled_from(["leaf", "leaf", "leaf", "remove", "wrap", "rename", "again"]))
    if action == "leaf":
        copy[key] = draw(st.sampled_from([*LEAVES, *DEEP]))
    elif action == "remove":
        del copy[key]
    elif action == "wrap":
        copy[key] = [value[key]]
    elif isinstance(copy, dict):
        copy[draw(st.sampled_from(["", "$", "e", "p", "zz", str(key) + "x"]))] = value[key]
    else:
        copy.append(value[key])
    return copy


def _parse(name: str, data: bytes) -> Any:
    if name in MSGPACK:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    if name in SAFETENSORS:
        (length,) = struct.unpack_from("<Q", data)
        return json.loads(data[8 : 8 + length])
    return json.loads(data)


def _build(name: str, value: Any, original: bytes) -> bytes:
    if name in MSGPACK:
        return msgpack.packb(value, unicode_errors="surrogatepass", default=str)
    if name in SAFETENSORS:
        (length,) = struct.unpack_from("<Q", original)
        header = json.dumps(value).encode()
        return struct.pack("<Q", len(header)) + header + original[8 + length :]
    if name in SEALED and isinstance(value, dict):
        value.pop("xxh3_64", None)
        return seal(json.dumps(value, indent=1 if name.endswith("manifest") else None)) + b"\n"
    return json.dumps(value).encode()


def _metadata_too(name: str, value: Any, draw: Any) -> Any:
    """The structure of a safetensors file is JSON in a string of its header."""
    metadata = value.get("__metadata__") if isinstance(value, dict) else None
    if (
        name not in SAFETENSORS
        or not isinstance(metadata, dict)
        or not metadata
        or not draw(st.booleans())
    ):
        return None
    key = draw(st.sampled_from(sorted(metadata)))
    try:
        inner = json.loads(metadata[key])
    except (ValueError, TypeError):
        return None  # an earlier change
    changed = _exchange(inner, draw(st.sampled_from(_paths(inner))), draw)
    return {**value, "__metadata__": {**metadata, key: json.dumps(changed)}}


@st.composite
def structures(draw: Any, name: str) -> bytes:
    """Files of a reader whose structure was changed, and whose checksum fits again."""
    original = SEEDS[name]
    value = _parse(name, original)
    for _ in range(draw(st.integers(1, 3))):
        changed = _metadata_too(name, value, draw)
        if changed is None:
            changed = _exchange(value, draw(st.sampled_from(_paths(value))), draw)
        value = changed
    return _build(name, value, original)


@st.composite
def exchanged(draw: Any, original: Any) -> Any:
    """Values with one to three things exchanged, removed, wrapped, or given under another key."""
    value = original
    for _ in range(draw(st.integers(1, 3))):
        value = _exchange(value, draw(st.sampled_from(_paths(value))), draw)
    return value


@st.composite
def with_metadata(draw: Any, header: dict[str, Any]) -> Any:
    """Headers of a safetensors file with something exchanged in the JSON of their metadata."""
    metadata = header["__metadata__"]
    key = draw(st.sampled_from(sorted(metadata.keys() - {"format"})))
    changed = draw(exchanged(json.loads(metadata[key])))
    return {**header, "__metadata__": {**metadata, key: json.dumps(changed)}}


EXTREMES = [0, 1, 7, 2**16, 2**31, 2**32 - 1, 2**50, 2**62 + 1, 2**63, 2**64 - 1]


@st.composite
def mangled(draw: Any, name: str) -> bytes:
    """Files of a reader with bits flipped, lengths set to extremes, chunks cut, swapped."""
    data = bytearray(SEEDS[name])
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["bit", "extreme", "cut", "drop", "swap", "insert"]))
        if kind == "bit":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "extreme":
            width = draw(st.sampled_from([4, 8]))
            # Headers first: their lengths are what everything else is found by.
            at = draw(st.sampled_from([at, at % 256, at % 1024])) // 4 * 4
            number = draw(st.sampled_from(EXTREMES)) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "swap":
            other = draw(st.integers(0, len(data) - 1))
            data[at : at + 16], data[other : other + 16] = (
                data[other : other + 16],
                data[at : at + 16],
            )
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=32))
    return reseal(name, bytes(data))


def reseal(name: str, data: bytes) -> bytes:
    """Make the checksum of a changed file right where it has one, so that readers go on."""
    start = data.rfind(b'"xxh3_64"')
    if name not in SEALED or start < 0:
        return data
    return data[:start] + b'"xxh3_64": "%s"}\n' % xxhash.xxh3_64_hexdigest(data[:start]).encode()
