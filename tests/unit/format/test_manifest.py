"""The manifest: reads back what was written, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pyengine.errors import ConfigError, DamageError, FormatVersionError
from pyengine.format import manifest as manifest_module
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest, check_notes
from pyengine.format.migrations import migrate

MANIFEST = Manifest(
    run_id="9f0c",
    generation=2,
    sequence=17,
    line="00000000000000ab",
    global_step=2345,
    created_at="2026-11-30T10:00:00Z",
    parent="step-00002000.g0002.s0016",
    algorithm="dqn",
    versions={"pyengine": "0.1.0", "python": "3.11.7"},
    components=(
        ComponentRecord("policy", "module", "saved", None, ("model/policy.safetensors",), 12),
        ComponentRecord("replay", "ring", "excluded", "too large"),
    ),
    files=(
        FileRecord("model/policy.safetensors", 12, "0123456789abcdef", "all"),
        FileRecord("buffer/replay/segment-x.seg", 4096, "fedcba9876543210", "segment"),
    ),
    metrics={"return": 1.5},
    notes={"seed": 3, "nested": {"a": [1, 2, None]}},
)


def _sealed(document, **changes):
    text = json.dumps({**document, **changes}, indent=1)
    return _seal(text.removesuffix("\n}").encode() + b",\n")


def _seal(body):
    return body + b'"xxh3_64": "%s"}' % xxhash.xxh3_64_hexdigest(body).encode()


@pytest.fixture
def document():
    values = json.loads(MANIFEST.to_bytes())
    del values["xxh3_64"]
    return values


def test_manifest_round_trips():
    assert Manifest.from_bytes(MANIFEST.to_bytes(), path="m") == MANIFEST
    assert MANIFEST.name == "step-00002345.g0002.s0017"
    assert MANIFEST.size_bytes == 4108


def test_last_line_is_the_checksum_of_all_bytes_before_it():
    data = MANIFEST.to_bytes()
    start = data.rindex(b"\n") + 1
    assert data[start:] == b'"xxh3_64": "%s"}' % xxhash.xxh3_64_hexdigest(data[:start]).encode()
    assert json.loads(data)["global_step"] == 2345


def test_trailing_newline_is_accepted():
    assert Manifest.from_bytes(MANIFEST.to_bytes() + b"\n", path="m") == MANIFEST


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1 + 0.2, -0.0, 5])
def test_metrics_keep_every_float(value):
    data = dataclasses.replace(MANIFEST, metrics={"m": value}).to_bytes()
    json.loads(data, parse_constant=pytest.fail)
    got = Manifest.from_bytes(data, path="m").metrics["m"]
    assert math.isnan(got) if math.isnan(value) else got == value


def test_every_flipped_byte_is_found():
    data = MANIFEST.to_bytes()
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 0x04
        with pytest.raises(DamageError):
            Manifest.from_bytes(bytes(damaged), path="m")


def test_every_truncation_is_found():
    data = MANIFEST.to_bytes()
    for size in range(len(data)):
        with pytest.raises(DamageError):
            Manifest.from_bytes(data[:size], path="m")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_as_damage(data):
    for candidate in (data, _seal(data + b"\n"), _seal(b'{"a": ' + data + b",\n")):
        with pytest.raises((DamageError, FormatVersionError)):
            Manifest.from_bytes(candidate, path="m")


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "a/../../x", "", "a//b", "./a", "a/.", "a\0b", "a\\b", "x" * 5000],
)
def test_paths_that_leave_the_snapshot_are_refused(document, path):
    document["files"][0]["path"] = path
    with pytest.raises(DamageError):
        Manifest.from_bytes(_sealed(document), path="m")


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": -1},
        {"generation": 2**63},
        {"generation": True},
        {"generation": "2"},
        {"sequence": 1.0},
        {"global_step": None},
        {"line": "AB"},
        {"line": 7},
        {"parent": "../x"},
        {"run_id": ["x"]},
        {"files": {}},
        {"files": [1]},
        {"files": None},
        {"components": [{"name": "x"}]},
        {"metrics": {"m": "many"}},
        {"metrics": {"m": 10**400}},
        {"metrics": []},
        {"notes": 3},
        {"versions": {"torch": 2}},
        {"created_at": "x" * 100},
    ],
)
def test_wrong_fields_are_named(document, changes):
    with pytest.raises(DamageError, match=next(iter(changes))):
        Manifest.from_bytes(_sealed(document, **changes), path="m")


def test_repeated_paths_and_names_are_refused(document):
    for name in ("files", "components"):
        doubled = {**document, name: document[name] + document[name][:1]}
        with pytest.raises(DamageError, match=name):
            Manifest.from_bytes(_sealed(doubled), path="m")


def test_component_with_an_unlisted_file_is_refused(document):
    document["components"][0]["files"] = ["model/other.safetensors"]
    with pytest.raises(DamageError, match="components"):
        Manifest.from_bytes(_sealed(document), path="m")


@pytest.mark.parametrize("depth", [40, 100_000])
def test_deep_nesting_is_refused(depth):
    body = b'{"notes": ' + b"[" * depth + b"]" * depth + b",\n"
    with pytest.raises(DamageError):
        Manifest.from_bytes(_seal(body), path="m")


def test_repeated_keys_and_constants_are_refused():
    for text in (b'{"a": 1, "a": 2,\n', b'{"a": NaN,\n', b'{"a": -Infinity,\n'):
        with pytest.raises(DamageError, match="not valid JSON"):
            Manifest.from_bytes(_seal(text), path="m")


def test_oversized_manifest_is_refused(monkeypatch):
    data = MANIFEST.to_bytes()
    monkeypatch.setattr(manifest_module, "MANIFEST_MAX_BYTES", 100)
    with pytest.raises(DamageError, match="more than"):
        Manifest.from_bytes(data, path="m")


def test_newer_version_says_so(document):
    with pytest.raises(FormatVersionError, match="newer") as caught:
        Manifest.from_bytes(_sealed(document, schema_version=99), path="m")
    assert caught.value.version == 99


def test_missing_version_is_typed(document):
    with pytest.raises(FormatVersionError):
        Manifest.from_bytes(_sealed(document, schema_version=None), path="m")


def test_manifest_that_could_not_be_read_is_never_written():
    for changes in (
        {"line": "x"},
        {"notes": {"a": math.nan}},
        {"notes": {"a": object()}},
        {"files": (FileRecord("../x", 1, "0" * 16, "all"),)},
        {"parent": "x"},
    ):
        with pytest.raises(ConfigError):
            dataclasses.replace(MANIFEST, **changes).to_bytes()


def test_migrations_run_one_step_at_a_time():
    steps = {
        1: lambda document: {**document, "a": document["schema_version"]},
        2: lambda document: {**document, "b": document["schema_version"]},
    }
    got = migrate({"schema_version": 1}, "m", steps=steps, target=3)
    assert got == {"schema_version": 3, "a": 1, "b": 2}


def test_missing_migration_is_typed():
    with pytest.raises(FormatVersionError, match="no longer"):
        migrate({"schema_version": 1}, "m", steps={}, target=2)


def test_notes_are_checked_before_they_are_staged():
    check_notes({"a": [1, "x", None, 1.5]})
    deep = {}
    for _ in range(20):
        deep = {"a": deep}
    for notes in ([], {"a": {1, 2}}, {"a": math.inf}, deep, {"a": "x" * (2 << 20)}):
        with pytest.raises(ConfigError):
            check_notes(notes)
