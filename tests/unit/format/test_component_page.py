"""FORMAT.md, component files and trees: the page lists what the code reads and writes."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

import numpy as np
import page_decoder
import page_values
import pytest
import torch
from page_decoder import chapter, table_rows

from pyengine.capture import decode, dtypes, files, rngs, tree
from pyengine.capture.kinds.module import ModuleComponent
from pyengine.capture.kinds.optimizer import OptimizerComponent
from pyengine.engine.describe import meta_of
from pyengine.format.descriptor import SnapshotDescriptor

MAY_IMPORT = {
    "__future__", "base64", "collections", "json", "math", "msgpack", "numpy", "page_values",
    "pathlib", "re", "safetensors", "struct", "xxhash",
}  # fmt: skip


def _marked(text):
    return re.findall(r"`([^`]+)`", text)


def _keys(text):
    """Keys in the first column of the tables of a text."""
    return [
        key for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE) for key in _marked(row)
    ]


@pytest.mark.parametrize("module", [page_decoder, page_values])
def test_the_decoder_of_the_page_imports_nothing_of_pyengine(module):
    imported = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported <= MAY_IMPORT


def test_page_lists_the_files_of_every_kind():
    rows = {row[0].strip("`"): row[1:] for row in table_rows("Component files")[1:]}
    kinds = set(files._FOLDERS)
    assert kinds <= set(rows)
    for kind in kinds:
        structure, values = (_marked(cell)[-1] for cell in rows[kind])
        assert structure == files.structure_path("NAME", kind)
        assert values == files.tensor_path("NAME", kind)
        assert ("metadata" in rows[kind][0]) == files.is_in_metadata(kind)


def test_page_lists_the_keys_of_an_envelope():
    assert _keys(chapter("Envelope")) == list(files.envelope("", "", None))
    assert f"| `version` | {files.STATE_VERSION};" in chapter("Envelope")


def test_page_lists_the_keys_of_meta_json():
    draft = SnapshotDescriptor(1, 1, 1, "", "0" * 16)
    document = json.loads(files.meta_bytes(meta_of(draft, "[]"), {}))
    assert _keys(chapter("meta.json")) == list(document)


def test_page_lists_the_keys_of_modules_and_optimizers():
    text = chapter("Structures")
    optimizer_at = text.index("`optimizer` has")
    net = torch.nn.Linear(1, 1)
    module = ModuleComponent("m", net).capture().structure
    optimizer = OptimizerComponent("o", torch.optim.SGD(net.parameters())).capture().structure
    assert _keys(text[:optimizer_at]) == list(module)
    assert ["mode", *_keys(text[optimizer_at:])] == list(optimizer)


def test_page_lists_the_tags_of_safetensors():
    row = next(row for row in table_rows("Files of values") if row[0].startswith("bool"))
    assert set(_marked(row[1])) == set(dtypes.TAG_BYTES) == set(page_values.ELEMENTS)


def test_page_lists_every_kind_of_node():
    heading, *tags = _keys(chapter("Trees"))
    assert heading == "$"
    assert sorted(tags) == sorted(decode._KINDS)
    assert {f"_tag_{tag}" for tag in tags} <= set(dir(page_values.Tree))


def test_page_names_the_factories_and_the_depth():
    assert f"Factories: {', '.join(tree.FACTORIES)}." in chapter("Trees")
    assert f"more than {tree.MAX_DEPTH} levels" in chapter("Trees")


def test_page_lists_the_generators():
    generators = [
        np.random.default_rng(),
        np.random.PCG64(),
        np.random.RandomState(),
        random.Random(),
        torch.Generator(),
    ]
    rows = {row[0].strip("`"): row[1] for row in table_rows("Generators")[1:]}
    assert list(rows) == [rngs.rng_kind(generator) for generator in generators]
    for generator in generators[3:]:
        assert set(rngs.rng_state(generator)) == set(_marked(rows[rngs.rng_kind(generator)]))
