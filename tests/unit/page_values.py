"""The values of components as FORMAT.md tells them: files of values, and trees.

Objects that only their own program can rebuild come back as dicts with their tag under "$", torch's
dtypes and devices as text, tensors as arrays: bfloat16 and 8-bit floats as unsigned integers.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import safetensors

ELEMENTS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U16": "<u2", "U32": "<u4", "U64": "<u8", "F16": "<f2", "BF16": "<u2", "F32": "<f4",
    "F64": "<f8", "F8_E4M3": "u1", "F8_E5M2": "u1",
}  # fmt: skip
FACTORIES = {
    "None": None, "int": int, "float": float, "list": list, "dict": dict, "set": set,
    "str": str, "bool": bool, "tuple": tuple,
}  # fmt: skip


class TensorFile:
    """A safetensors file: arrays by name."""

    def __init__(self, data):
        self.values, self.metadata = {}, {}
        if data is None:
            return
        (length,) = struct.unpack_from("<Q", data)
        assert (8 + length) % 4096 == 0
        self.metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        dtypes = json.loads(self.metadata.get("pyengine.dtypes", "{}"))
        for name, entry in sorted(safetensors.deserialize(data), key=lambda pair: pair[0]):
            array = np.frombuffer(bytes(entry["data"]), ELEMENTS[entry["dtype"]])
            shape = entry["shape"]
            if name in dtypes:
                dtype = _dtype(dtypes[name])
                array, shape = np.frombuffer(array.tobytes(), dtype), shape[:-1]
            self.values[name] = array.reshape(shape)


def _dtype(described):
    if isinstance(described, str) and described.startswith("torch."):
        return {"torch.complex64": "<c8", "torch.complex128": "<c16"}.get(described, "u1")
    return np.lib.format.descr_to_dtype(_tuples(described))


def _tuples(described):
    if isinstance(described, str):
        return described
    if isinstance(described[0], (str, list)) and all(type(n) is int for n in described[1]):
        return _tuples(described[0]), tuple(described[1])
    return [
        (
            tuple(name) if isinstance(name, list) else name,
            _tuples(dtype),
            *(tuple(shape) for shape in rest),
        )
        for name, dtype, *rest in described
    ]


def join(path, key):
    """Return the JSON pointer to a key."""
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


class Tree:
    """The nodes of one structure, read in their order."""

    def __init__(self, file):
        self._values = file.values
        self._met = {}

    def value(self, node, path):
        """Return the value of the node at `path`."""
        if isinstance(node, list):
            made = self._met[path] = []
            made += self._items(node, path)
            return made
        if not isinstance(node, dict):
            return node
        if "$" not in node:
            return self._fields(self._met.setdefault(path, {}), node, path)
        return getattr(self, f"_tag_{node['$']}")(node, path)

    def _items(self, nodes, path):
        if isinstance(nodes, dict):
            assert nodes["$"] == "numbers"
            return self._values[nodes["e"]].tolist()
        return [self.value(node, f"{path}/{i}") for i, node in enumerate(nodes)]

    def _fields(self, made, nodes, path):
        for key, node in nodes.items():
            made[key] = self.value(node, join(path, key))
        return made

    def _pairs(self, made, pairs, path):
        self._met[path] = made
        keys = [self.value(key, f"{path}/?") for key, _ in pairs]
        named = all(type(k) is str for k in keys) or all(type(k) is int for k in keys)
        for i, (key, (_, node)) in enumerate(zip(keys, pairs, strict=True)):
            made[key] = self.value(node, join(path, key if named else i))
        return made

    def _keep(self, path, value):
        self._met[path] = value
        return value

    def _tag_int(self, node, path):
        return int(node["v"], 16)

    def _tag_float(self, node, path):
        return struct.unpack(">d", bytes.fromhex(node["v"]))[0]

    def _tag_str(self, node, path):
        return bytes.fromhex(node["v"]).decode("utf-8", "surrogatepass")

    def _tag_complex(self, node, path):
        return complex(*self._items(node["v"], path))

    def _tag_range(self, node, path):
        return range(*self._items(node["v"], path))

    def _tag_bytes(self, node, path):
        return self._values[node["e"]].tobytes() if "e" in node else base64.b64decode(node["v"])

    def _tag_bytearray(self, node, path):
        return self._keep(path, bytearray(self._tag_bytes(node, path)))

    def _tag_tuple(self, node, path):
        return tuple(self._items(node["v"], path))

    _tag_size = _tag_tuple

    def _tag_set(self, node, path):
        return self._keep(path, set(self._items(node["v"], path)))

    def _tag_frozenset(self, node, path):
        return frozenset(self._items(node["v"], path))

    def _tag_deque(self, node, path):
        made = self._keep(path, deque(maxlen=node["maxlen"]))
        made.extend(self._items(node["v"], path))
        return made

    def _tag_numbers(self, node, path):
        return self._keep(path, self._items(node, path))

    def _tag_map(self, node, path):
        return self._pairs({}, node["v"], path)

    def _tag_odict(self, node, path):
        return self._pairs(OrderedDict(), node["v"], path)

    def _tag_counter(self, node, path):
        return self._pairs(Counter(), node["v"], path)

    def _tag_defaultdict(self, node, path):
        name = node["factory"]
        return self._pairs(defaultdict(name and FACTORIES[name]), node["v"], path)

    def _tag_array(self, node, path):
        return self._keep(path, self._values[node["e"]])

    _tag_tensor = _tag_array

    def _tag_objects(self, node, path):
        made = self._keep(path, np.empty(node["shape"], dtype=object))
        items = self._items(node["v"], path)
        for place, item in zip(np.ndindex(*node["shape"]), items, strict=True):
            made[place] = item
        return made

    def _tag_npscalar(self, node, path):
        dtype = np.lib.format.descr_to_dtype(_tuples(node["dtype"]))
        raw = bytes.fromhex(node["v"])
        return np.frombuffer(raw, dtype)[0] if raw else np.zeros((), dtype)[()]

    def _tag_npdtype(self, node, path):
        return np.lib.format.descr_to_dtype(_tuples(node["v"]))

    def _tag_dtype(self, node, path):
        return node["v"]

    _tag_device = _tag_dtype

    def _tag_rng(self, node, path):
        made = self._keep(path, {"$": "rng", "kind": node["kind"]})
        made["state"] = self.value(node["v"], path + "/state")
        return made

    def _tag_object(self, node, path):
        made = self._keep(path, {"$": "object", "type": node["type"], "how": node["how"]})
        made["state"] = self.value(node["v"], path + "/state")
        return made

    def _tag_dataclass(self, node, path):
        made = self._keep(path, {"$": node["$"], "type": node["type"]})
        made["fields"] = self._fields({}, node["v"], path)
        return made

    def _tag_namedtuple(self, node, path):
        fields = self._fields({}, node["v"], path)
        return {"$": "namedtuple", "type": node["type"], "fields": fields}

    def _tag_enum(self, node, path):
        return f"{node['type']}.{node['v']}"

    def _tag_ref(self, node, path):
        return self._met[node["v"]]
