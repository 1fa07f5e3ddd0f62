"""From the tagged tree back to values, with leaves where objects have to be found or made.

Reads what a file holds, so it trusts nothing: a malformed node is a DamageError that names the
file and the path in the tree.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyengine.capture.dtypes import Array, numpy_dtype
from pyengine.capture.leaves import (
    DataclassLeaf,
    EnumLeaf,
    NamedTupleLeaf,
    ObjectLeaf,
    RngLeaf,
    TensorLeaf,
    lost_factory,
)
from pyengine.capture.tree import FACTORIES, MAX_DEPTH, Node, join, pair_places
from pyengine.errors import DamageError

if TYPE_CHECKING:
    import torch


class EntrySource(Protocol):
    """Where entries are read from; a TensorFile is one."""

    def tensor(self, name: str) -> torch.Tensor: ...
    def array(self, name: str) -> Array: ...


class Decoder:
    """Decodes the nodes of one component; `path` names the file in errors."""

    def __init__(self, entries: EntrySource | None, path: str) -> None:
        self._entries = entries
        self._path = path
        self._made: dict[str, Any] = {}

    def decode(self, node: Node) -> Any:
        """Return the value of a whole tree."""
        return self.value(node, "", 0)

    def value(self, node: Node, path: str, depth: int) -> Any:
        """Return the value of the node at `path`."""
        if node is None or type(node) in (bool, int, float, str):
            return node
        if depth > MAX_DEPTH:
            raise self._damage(path, "the tree is nested too deep")
        try:
            if type(node) is list:
                return self._fill(self._keep(path, []), node, path, depth)
            if type(node) is not dict:
                raise self._damage(path, f"a tree holds no {type(node).__name__}")
            kind = node.get("$")
            if kind is None:
                return self._fields(self._keep(path, {}), node, path, depth)
            decode = _KINDS.get(kind)
            if decode is None:
                raise self._damage(path, f"unknown kind of node {kind!r}")
            return decode(self, node, path, depth)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            IndexError,
            OverflowError,
            RuntimeError,
            struct.error,
            binascii.Error,
        ) as error:
            raise self._damage(path, f"malformed node: {type(error).__name__}: {error}") from None

    def _keep(self, path: str, value: Any) -> Any:
        """Remember an object with an identity, before its parts, for refs to its path."""
        self._made[path] = value
        return value

    def _fill(self, made: list[Any], nodes: Node, path: str, depth: int) -> list[Any]:
        made.extend(self._items(nodes, path, depth))
        return made

    def _items(self, nodes: Node, path: str, depth: int) -> list[Any]:
        if type(nodes) is dict and nodes["$"] == "numbers":
            numbers: list[Any] = self._source().array(nodes["e"]).tolist()
            return numbers
        if type(nodes) is not list:
            raise self._damage(path, "items are no list")
        return [self.value(item, f"{path}/{i}", depth + 1) for i, item in enumerate(nodes)]

    def _numbers(self, node: Node, path: str, depth: int) -> Any:
        return self._keep(path, self._items(node, path, depth))

    def _fields(self, made: dict[str, Any], nodes: Node, path: str, depth: int) -> dict[str, Any]:
        for key, node in nodes.items():
            made[key] = self.value(node, join(path, key), depth + 1)
        return made

    def _pairs(self, made: Any, nodes: Node, path: str, depth: int) -> Any:
        keys = [self.value(key, f"{path}/{i}/key", depth + 1) for i, (key, _) in enumerate(nodes)]
        for key, place, (_, node) in zip(keys, pair_places(keys, path), nodes, strict=True):
            made[key] = self.value(node, place, depth + 1)
        return made

    def _map(self, node: Node, path: str, depth: int) -> Any:
        return self._pairs(self._keep(path, _MAPS[node["$"]]()), node["v"], path, depth)

    def _defaultdict(self, node: Node, path: str, depth: int) -> Any:
        name = node["factory"]
        factory = lost_factory if name is None else FACTORIES[name]
        return self._pairs(self._keep(path, defaultdict(factory)), node["v"], path, depth)

    def _deque(self, node: Node, path: str, depth: int) -> Any:
        made: deque[Any] = self._keep(path, deque(maxlen=node["maxlen"]))
        made.extend(self._items(node["v"], path, depth))
        return made

    def _set(self, node: Node, path: str, depth: int) -> Any:
        return self._keep(path, set(self._items(node["v"], path, depth)))

    def _bytes(self, node: Node, path: str, depth: int) -> bytes:
        if "e" in node:
            return self._source().array(node["e"]).tobytes()
        return base64.b64decode(node["v"], validate=True)

    def _bytearray(self, node: Node, path: str, depth: int) -> Any:
        return self._keep(path, bytearray(self._bytes(node, path, depth)))

    def _array(self, node: Node, path: str, depth: int) -> Any:
        return self._keep(path, self._source().array(node["e"]))

    def _objects(self, node: Node, path: str, depth: int) -> Any:
        made = self._keep(path, np.empty(node["shape"], dtype=object))
        flat = made.reshape(-1)
        for i, item in enumerate(self._items(node["v"], path, depth)):
            flat[i] = item
        return made

    def _tensor(self, node: Node, path: str, depth: int) -> Any:
        stride = node.get("stride")
        leaf = TensorLeaf(
            value=self._source().tensor(node["e"]),
            device=node.get("device", "cpu"),
            requires_grad=node.get("grad", False),
            parameter=node.get("parameter", False),
            stride=None if stride is None else tuple(stride),
        )
        return self._keep(path, leaf)

    def _scalar(self, node: Node, path: str, depth: int) -> Any:
        dtype = numpy_dtype("", node["dtype"])
        if not dtype.itemsize:
            return np.zeros((), dtype=dtype)[()]
        return np.frombuffer(bytes.fromhex(node["v"]), dtype=dtype, count=1)[0]

    def _rng(self, node: Node, path: str, depth: int) -> Any:
        leaf = self._keep(path, RngLeaf(node["kind"]))
        state = self.value(node["v"], path + "/state", depth + 1)
        leaf.state = _without_leaves(state)
        return leaf

    def _dataclass(self, node: Node, path: str, depth: int) -> Any:
        leaf = self._keep(path, DataclassLeaf(node["type"]))
        self._fields(leaf.fields, node["v"], path, depth)
        return leaf

    def _namedtuple(self, node: Node, path: str, depth: int) -> Any:
        return NamedTupleLeaf(node["type"], self._fields({}, node["v"], path, depth))

    def _object(self, node: Node, path: str, depth: int) -> Any:
        leaf = self._keep(path, ObjectLeaf(node["type"], node["how"]))
        leaf.state = self.value(node["v"], path + "/state", depth + 1)
        return leaf

    def _ref(self, node: Node, path: str, depth: int) -> Any:
        return self._made[node["v"]]

    def _source(self) -> EntrySource:
        if self._entries is None:
            raise DamageError(
                f"{self._path}: its tree needs tensors, and the snapshot holds none for it",
                path=self._path,
            )
        return self._entries

    def _damage(self, path: str, what: str) -> DamageError:
        place = f" at {path}" if path else ""
        return DamageError(f"{self._path}{place}: {what}", path=self._path)


def _without_leaves(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.value.clone() if type(value) is TensorLeaf else value
        for key, value in state.items()
    }


def _float(text: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def _dtype(text: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, text.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{text!r} is no dtype")
    return dtype


def _device(text: str) -> torch.device:
    import torch

    return torch.device(text)


def _size(items: list[Any]) -> torch.Size:
    import torch

    return torch.Size(items)


_Kind = Callable[[Decoder, Node, str, int], Any]
_MAPS: dict[str, Callable[[], dict[Any, Any]]] = {
    "map": dict,
    "odict": OrderedDict,
    "counter": Counter,
}
_KINDS: dict[str, _Kind] = {
    "int": lambda d, node, p, n: int(node["v"], 16),
    "float": lambda d, node, p, n: _float(node["v"]),
    "str": lambda d, node, p, n: bytes.fromhex(node["v"]).decode("utf-8", "surrogatepass"),
    "complex": lambda d, node, p, n: complex(*d._items(node["v"], p, n)),
    "range": lambda d, node, p, n: range(*d._items(node["v"], p, n)),
    "tuple": lambda d, node, p, n: tuple(d._items(node["v"], p, n)),
    "frozenset": lambda d, node, p, n: frozenset(d._items(node["v"], p, n)),
    "size": lambda d, node, p, n: _size(d._items(node["v"], p, n)),
    "dtype": lambda d, node, p, n: _dtype(node["v"]),
    "device": lambda d, node, p, n: _device(node["v"]),
    "npdtype": lambda d, node, p, n: numpy_dtype("", node["v"]),
    "enum": lambda d, node, p, n: EnumLeaf(node["type"], node["v"]),
    "numbers": Decoder._numbers,
    "map": Decoder._map,
    "odict": Decoder._map,
    "counter": Decoder._map,
    "defaultdict": Decoder._defaultdict,
    "deque": Decoder._deque,
    "set": Decoder._set,
    "bytes": Decoder._bytes,
    "bytearray": Decoder._bytearray,
    "array": Decoder._array,
    "objects": Decoder._objects,
    "tensor": Decoder._tensor,
    "npscalar": Decoder._scalar,
    "rng": Decoder._rng,
    "dataclass": Decoder._dataclass,
    "namedtuple": Decoder._namedtuple,
    "object": Decoder._object,
    "ref": Decoder._ref,
}
