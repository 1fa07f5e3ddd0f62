"""FORMAT.md, run directory to buffer header: the page names what the code writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pyengine.format
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader, LaneRecord
from pyengine.format.manifest import ComponentRecord, FileRecord, Manifest

MANIFEST = Manifest(
    run_id="r",
    generation=1,
    sequence=1,
    line="0" * 16,
    global_step=1,
    created_at="",
    components=(ComponentRecord("policy", "module", "saved"),),
    files=(FileRecord("x", 1, "0" * 16, "all"),),
)
HEADER = BufferHeader(
    ring="replay",
    schema={},
    capacity=4,
    num_lanes=1,
    segment_rows=1,
    line="0" * 16,
    lanes=(LaneRecord(0, 0, False),),
    extents=(),
    dropped=(),
    sampler={},
    mutable_file=None,
)
PAGE = Path(pyengine.format.__file__).with_name("FORMAT.md").read_text(encoding="utf-8")


def _chapter(title):
    return ("\n" + PAGE).split(f"\n## {title}\n")[-1].split("\n## ")[0]


def _keys(title):
    rows = re.findall(r"^\| (`[^|]+) \|", _chapter(title), re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


def test_page_lists_exactly_the_keys_of_a_manifest():
    document = json.loads(MANIFEST.to_bytes())
    assert _keys("Manifest") == set(document) - {"xxh3_64"}
    for record in (document["files"][0], document["components"][0]):
        for key in record:
            assert f"`{key}`" in _chapter("Manifest")


def test_page_lists_exactly_the_keys_of_a_buffer_header():
    document = json.loads(HEADER.to_bytes())
    assert _keys("Buffer header") == set(document)
    for key in document["lanes"][0]:
        assert f"`{key}`" in _chapter("Buffer header")


@pytest.mark.parametrize(
    "name",
    [
        names.RUN_JSON,
        names.LOCK,
        names.LATEST,
        names.GENERATIONS,
        names.LINES,
        names.SEGMENTS,
        names.SNAPSHOTS,
        names.QUARANTINE,
        names.RECOVERY,
        names.MANIFEST,
        names.META,
        names.BUFFER_HEADER,
        names.TMP_PREFIX,
        names.TRASH_PREFIX,
    ],
)
def test_page_names_every_fixed_name(name):
    assert name in PAGE
