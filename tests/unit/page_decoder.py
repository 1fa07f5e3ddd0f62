"""A reader of whole snapshots made from FORMAT.md alone; nothing of pyengine is imported.

Byte tables, codes and paths are taken from the page itself, the rest follows its words.
"""

from __future__ import annotations

import json
import re
import struct
from math import prod
from pathlib import Path

import msgpack
import numpy as np
import xxhash
from page_values import TensorFile, Tree, join

PAGE = (Path(__file__).parents[2] / "pyengine" / "format" / "FORMAT.md").read_text("utf-8")


def chapter(title):
    """Return the text under a heading, up to the next heading of any level."""
    text = re.split(rf"^##+ {re.escape(title)}\n", PAGE, flags=re.MULTILINE)[1]
    return re.split(r"^##+ ", text, flags=re.MULTILINE)[0]


def table_rows(title):
    """Return the cells of all rows of a chapter's tables."""
    rows = re.findall(r"^\| (.*) \|$", chapter(title), re.MULTILINE)
    return [row.split(" | ") for row in rows if not row.startswith("---")]


def numbered_rows(title):
    """Return the cells of the rows of a chapter's tables that begin with a number."""
    lines = re.findall(r"^\| *(\d.*?) *\|$", chapter(title), re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines]


def byte_table(title):
    """Return (name, offset, bytes, type) of each row of a byte table."""
    return [
        (name.strip("`"), int(offset), int(size), kind)
        for offset, size, kind, name, _ in (row for row in numbered_rows(title) if len(row) == 5)
    ]


def decode_segment(data):
    """Return ({field: array of all rows}, runs), every hash compared."""
    at = {name: (offset, size) for name, offset, size, _ in byte_table("Header record")}

    def number(table, name, base=0):
        offset, size = table[name]
        return int.from_bytes(data[base + offset : base + offset + size], "little")

    assert data[:8] == b"PESEGMNT"
    file_bytes, table_at = number(at, "file_bytes"), number(at, "block_table_offset")
    assert len(data) == file_bytes
    covered = data[: number(at, "header_bytes")] + data[table_at : file_bytes - 8]
    assert xxhash.xxh3_64_intdigest(covered) == int.from_bytes(data[-8:], "little")
    dtypes = {int(r[0]): r[1] for r in numbered_rows("Field record") if len(r) == 3}
    columns = {name: (offset, size) for name, offset, size, _ in byte_table("Field record")}
    run_columns = {name: (offset, size) for name, offset, size, _ in byte_table("Run record")}
    fields, rows = {}, number(at, "row_count")
    for index in range(number(at, "field_count")):
        base = 128 + 192 * index
        name = data[base : base + 64].rstrip(b"\0").decode()
        dims = number(columns, "dimensions", base)
        shape = struct.unpack_from(f"<{dims}Q", data, base + 72)
        kind = dtypes[number(columns, "dtype", base)]
        item = np.dtype("uint16" if kind == "bfloat16" else kind).newbyteorder("<")
        assert number(columns, "row_bytes", base) == prod(shape) * item.itemsize
        start, size = number(columns, "offset", base), number(columns, "region_bytes", base)
        step = number(columns, "row_bytes", base) << number(columns, "block_shift", base)
        blocks = number(columns, "block_count", base)
        for block in range(blocks):
            end = size if block == blocks - 1 else (block + 1) * step
            (stored,) = struct.unpack_from(
                "<Q", data, table_at + 8 * (number(columns, "first_block", base) + block)
            )
            assert xxhash.xxh3_64_intdigest(data[start + block * step : start + end]) == stored
        fields[name] = np.frombuffer(data, item, rows * prod(shape), start).reshape(rows, *shape)
    table = 128 + 192 * number(at, "field_count")
    runs = [
        tuple(
            number(run_columns, column, table + 24 * i)
            for column in ("lane", "first_row", "row_count")
        )
        for i in range(number(at, "run_count"))
    ]
    return fields, runs


def decode_snapshot(read, manifest):
    """Return (manifest, {component: value}); `read` gives a file's bytes by its path."""
    body, last = manifest.rstrip(b"\n").rsplit(b"\n", 1)
    assert last == b'"xxh3_64": "%s"}' % xxhash.xxh3_64_hexdigest(body + b"\n").encode()
    document = json.loads(manifest)
    assert document["schema_version"] in (1, 2, 3)
    files = {}
    for record in document["files"]:
        data = files[record["path"]] = bytes(read(record["path"]))
        assert len(data) == record["size_bytes"]
        if record["covers"] == "all":
            assert xxhash.xxh3_64_hexdigest(data) == record["xxh3_64"]
        else:
            assert f"{int.from_bytes(data[-8:], 'little'):016x}" == record["xxh3_64"]
    values = {}
    for component in document["components"]:
        mine = {path: files[path] for path in component["files"]}
        if component["kind"] == "ring":
            values[component["name"]] = decode_ring(mine)
        elif component["kind"] == "pickle":
            (values[component["name"]],) = mine.values()
        elif component["kind"] != "excluded":
            values[component["name"]] = decode_component(mine, component["name"], component["kind"])
    return document, values


def decode_ring(files):
    """Return {"rows": {(lane, row id): {field: value}}, "header": ...}."""
    (path,) = (path for path in files if path.endswith("/buffer_header.json"))
    directory = path.rsplit("/", 1)[0]
    header = json.loads(files[path])
    fields = header["schema"]["fields"]
    assert header["version"] == (2 if any("next_of" in field for field in fields) else 1)
    per_lane = header["capacity"] // header["num_lanes"]
    mutable = {}
    if header["mutable_file"]:
        mutable = TensorFile(files[f"{directory}/{header['mutable_file']}"]).values
    rows, decoded = {}, {}
    for lane, first, count, file, at in header["extents"]:
        if file not in decoded:
            decoded[file] = decode_segment(files[f"{directory}/{file}"])[0]
        for i in range(count):
            row = {name: column[at + i] for name, column in decoded[file].items()}
            place = lane * per_lane + (first + i) % per_lane
            row.update((name, column[place]) for name, column in mutable.items())
            rows[lane, first + i] = row
    pairs = [field for field in fields if "next_of" in field]
    return {"rows": with_stacks(rows, pairs) if pairs else rows, "header": header}


def with_stacks(rows, pairs):
    """Return the transitions whose frames are all there, with both stacks of each pair."""
    whole = {}
    for (lane, row), values in rows.items():
        if values["@start"] & 2:
            continue
        depths = [pair.get("stack", 1) for pair in pairs]
        first = row
        while first >= row - max(depths) and (lane, first) in rows:
            if rows[lane, first]["@start"] & 1:
                break
            first -= 1
        needed = range(max(first, row - max(depths)), row)
        if any((lane, other) not in rows for other in needed):
            continue
        whole[lane, row] = dict(values)
        for pair, depth in zip(pairs, depths, strict=True):
            name, shape = pair["name"], pair["shape"]
            frames = [rows[lane, max(first, other)][name] for other in range(row - depth, row + 1)]
            whole[lane, row][name] = np.array(frames[1:]).reshape(shape)
            whole[lane, row][pair["next_of"]] = np.array(frames[:-1]).reshape(shape)
    return whole


def decode_component(files, name, kind):
    """Return the value of a component that is no ring."""
    rows = {row[0].strip("`"): row[1:] for row in table_rows("Component files")}
    structure_path, values_path = (
        re.findall("`([^`]+)`", cell)[-1].replace("NAME", name) for cell in rows[kind]
    )
    values = TensorFile(files[values_path]) if values_path in files else TensorFile(None)
    if structure_path.endswith(".safetensors"):
        envelope = json.loads(values.metadata["pyengine"])
    elif structure_path.endswith(".msgpack"):
        envelope = msgpack.unpackb(files[structure_path], strict_map_key=False)
    else:
        envelope = json.loads(files[structure_path])["state"][name]
    assert (envelope["version"], envelope["name"], envelope["kind"]) == (1, name, kind)
    structure, tree = envelope["structure"], Tree(values)
    if kind == "module":
        return _module(structure, values, tree)
    if kind == "optimizer" and structure["mode"] == "standard":
        return _optimizer(structure, values, tree)
    return tree.value(structure["tree"], "")


def _module(structure, values, tree):
    state = {n: v for n, v in values.values.items() if n not in structure["inner"]}
    state.update((name, state[other]) for name, other in structure["tied"].items())
    for name, node in structure["extra"].items():
        state[name] = tree.value(node, join("/extra", name))
    tree.value(structure["versions"], "/versions")
    return state


def _optimizer(structure, values, tree):
    groups, state, first = [], {}, 0
    for i, group in enumerate(structure["groups"]):
        options = tree.value(group["options"], f"/groups/{i}")
        last = first + group["count"]
        groups.append({**options, "params": list(range(first, last))})
        first = last
    assert len(structure["parameters"]) == first
    for name, value in values.values.items():
        if name.startswith("state/"):
            _, index, key = name.split("/", 2)
            state.setdefault(int(index), {})[key] = value
    for name, other in structure["tied"].items():
        _, index, key = name.split("/", 2)
        state.setdefault(int(index), {})[key] = values.values[other]
    for index, nodes in structure["values"].items():
        for key, node in nodes.items():
            value = tree.value(node, join(f"/values/{index}", key))
            state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": groups}
