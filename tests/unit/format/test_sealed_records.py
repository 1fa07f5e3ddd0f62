"""Records of a run directory hold their checksum: no changed bit of one passes."""

from __future__ import annotations

import json

import pytest
import xxhash

from pyengine.errors import DamageError, FormatVersionError
from pyengine.format.sealed import RECORD_VERSION, parse_record, record_bytes

RECORD = {"run_id": "5f0c2a", "start_rows": {"replay": [8, 9]}, "note": "é \" 'xxh3_64'"}


def read(data):
    return parse_record(data, "record.json", limit_bytes=4096)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_record_reads_back(indent):
    data = record_bytes(RECORD, indent=indent)
    record = read(data)
    assert json.loads(data) == record
    assert {key: record[key] for key in RECORD} == RECORD
    assert record["schema_version"] == RECORD_VERSION
    body = data[: data.rindex(b'"xxh3_64"')]
    assert record["xxh3_64"] == xxhash.xxh3_64_hexdigest(body)


@pytest.mark.parametrize("indent", [None, 1])
def test_no_changed_bit_of_a_record_passes(indent):
    data = record_bytes(RECORD, indent=indent)
    for at in range(len(data) - 1):  # a line break, or none, may follow
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises((DamageError, FormatVersionError)):
                read(bytes(changed))


def test_no_shortened_record_passes():
    data = record_bytes(RECORD)
    for length in range(len(data) - 1):
        with pytest.raises(DamageError):
            read(data[:length])


@pytest.mark.parametrize("version", [{}, {"schema_version": 1}])
def test_records_of_version_1_have_no_checksum(version):
    record = {**version, **RECORD}
    assert read(json.dumps(record).encode()) == record


def test_a_newer_record_says_so_where_its_checksum_holds():
    with pytest.raises(FormatVersionError) as caught:
        read(record_bytes({"schema_version": 3}))
    assert caught.value.version == 3
    with pytest.raises(DamageError):
        read(b'{"schema_version": 3}')
