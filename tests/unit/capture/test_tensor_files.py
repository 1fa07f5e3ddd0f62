"""Files of values: memory is shared or copied, and a file that lies is damage."""

from __future__ import annotations

import json

import pytest
import torch
from live_snapshot import Snapshot

from pyengine.capture.tensorfile import TensorFile
from pyengine.errors import DamageError, TruncatedFileError


def _file():
    return bytes(Snapshot({"x": torch.arange(10)}).files["state/x.safetensors"])


def test_values_share_a_writable_buffer_and_copy_a_readonly_one():
    data = bytearray(_file())
    value = TensorFile(data, "x").tensor("value")
    data[-8:] = (99).to_bytes(8, "little")
    assert value[-1] == 99
    value = TensorFile(bytes(data), "x").tensor("value")
    value[-1] = 5
    assert data[-8:] == (99).to_bytes(8, "little")


@pytest.mark.parametrize("size", [0, 7, 8, 100, 4095, -1])
def test_shortened_file_is_damage(size):
    with pytest.raises(DamageError, match="x"):
        TensorFile(_file()[:size], "x")


def test_longer_file_is_damage():
    with pytest.raises(TruncatedFileError):
        TensorFile(_file() + b"\0", "x")


def _with_header(change):
    data = _file()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    change(table)
    text = json.dumps(table).encode().ljust(length)
    return data[:8] + text + data[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["value"].update(dtype="X9"),
        lambda table: table["value"].update(shape=[11]),
        lambda table: table["value"].update(shape=[-10]),
        lambda table: table["value"].update(data_offsets=[8, 88]),
        lambda table: table["value"].update(data_offsets=[0]),
        lambda table: table["value"].pop("shape"),
        lambda table: table.update(value=3),
        lambda table: table.update(other=dict(table["value"])),
        lambda table: table.update(__metadata__=[]),
        lambda table: table["__metadata__"].update({"pyengine.dtypes": "{"}),
        lambda table: table["__metadata__"].update({"pyengine.dtypes": '{"value": "<M8[ns"}'}),
        lambda table: table["__metadata__"].update({"pyengine.dtypes": '{"value": [1, 2]}'}),
    ],
)
def test_header_that_lies_is_damage(change):
    with pytest.raises(DamageError):
        TensorFile(_with_header(change), "x").array("value")


def test_header_of_absurd_length_is_damage():
    with pytest.raises(DamageError, match="claims"):
        TensorFile((1 << 62).to_bytes(8, "little") + b"{}", "x")
