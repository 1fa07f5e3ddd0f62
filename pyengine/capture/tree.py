"""The tagged tree: nested Python state as a JSON value, with tensors and arrays set apart.

A node is what JSON and msgpack both hold exactly (None, bool, 64-bit int, finite float, str, list,
dict with text keys) or a dict with the key "$" that names its kind; this is the whole grammar:

    {"$": int | float | complex | str | bytes, "v": ...}      what JSON would not keep bit for bit
    {"$": bytes | array | tensor | numbers, "e": entry, ...}  payload in an entry (see Encoded)
    {"$": tuple | set | frozenset | deque | map | odict | counter | defaultdict | range, "v": ...}
    {"$": npscalar | npdtype | dtype | device | size, "v": ...}
    {"$": rng | dataclass | namedtuple | enum | object, ..., "v": node}
    {"$": ref, "v": path}                                     the object met before at that path

Paths are JSON pointers. Objects that share identity are encoded once, so aliasing and cycles come
back. Nothing that is read names code to run, and pickle plays no part.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyengine.capture.dtypes import numpy_storage
from pyengine.capture.lazy_torch import is_of_torch, is_tensor, is_torch_loaded
from pyengine.capture.protocol import name_with_article, state_methods, type_name
from pyengine.capture.rngs import rng_kind, rng_state
from pyengine.capture.tensorfile import Value
from pyengine.errors import CaptureError

if TYPE_CHECKING:
    import torch

Node: TypeAlias = Any

MAX_DEPTH = 100
INLINE_BYTES = 256
"""Longer byte strings become entries."""
INLINE_NUMBERS = 64
"""Longer runs of plain floats or ints become entries."""

FACTORIES: dict[str, type[Any] | None] = {
    "None": None,
    **{kind.__name__: kind for kind in (int, float, list, dict, set, str, bool, tuple)},
}
"""Factories of a defaultdict that can be made again; others are taken from the live object."""


def join(path: str, key: str) -> str:
    """Return the JSON pointer to `key` under `path`."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


_SCALARS = ("dtype", "device")


class Encoder:
    """Encodes values of one component; `names` and `values` gather the entries.

    Raises CaptureError that names the component and the path of what cannot be saved. Entries are
    the live tensors and arrays themselves: copy them before anything changes them.
    """

    def __init__(self, component: str) -> None:
        self.component = component
        self.names: list[str] = []
        self.values: list[Value] = []
        # Objects are kept alive here, so that no id is taken by another one in the meantime.
        self._met: dict[int, tuple[Any, str]] = {}

    def encode(self, value: Any, path: str = "", depth: int = 0) -> Node:
        """Return the node of `value`."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        encode = _PLAIN.get(kind)
        if encode is not None:
            return encode(value)
        if kind is bytes:
            return self._bytes(value, path)
        if depth > MAX_DEPTH:
            raise self.error(path, f"it is nested more than {MAX_DEPTH} levels deep")
        method = _SHARED.get(kind) or _shared_kind(value)
        if method is not None:
            met = self._met.get(id(value))
            if met is not None:
                return {"$": "ref", "v": met[1]}
            self._met[id(value)] = (value, path)
            return method(self, value, path, depth + 1)
        return self._encode_value(value, path, depth + 1)

    def add(self, path: str, value: Value) -> str:
        """Make `value` an entry and return its name."""
        name = path[1:] if len(path) > 1 else "value"
        self.names.append(name)
        self.values.append(value)
        return name

    def _encode_value(self, value: Any, path: str, depth: int) -> Node:
        kind = type(value)
        if kind is tuple:
            return {"$": "tuple", "v": self._items(value, path, depth)}
        if kind is frozenset:
            return {"$": "frozenset", "v": self._members(value, path, depth)}
        if isinstance(value, enum.Enum):
            return {"$": "enum", "type": type_name(value), "v": value.name}
        if isinstance(value, np.generic):
            return self._scalar(value, path)
        if isinstance(value, np.dtype) and not value.hasobject:
            return {"$": "npdtype", "v": np.lib.format.dtype_to_descr(value)}
        if is_of_torch(value, "Size"):
            return {"$": "size", "v": self._items(value, path, depth)}
        if is_of_torch(value, *_SCALARS):
            return {"$": kind.__name__, "v": str(value)}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = dict(zip(value._fields, value, strict=True))
            node = self._fields(fields, path, depth)
            return {"$": "namedtuple", "type": type_name(value), "v": node}
        raise self.error(path, f"{_describe(value)} cannot be saved")

    def _scalar(self, value: np.generic, path: str) -> Node:
        array = np.asarray(value)
        try:
            numpy_storage(array.dtype)
        except ValueError as error:
            raise self.error(path, str(error)) from None
        descr = np.lib.format.dtype_to_descr(array.dtype)
        return {"$": "npscalar", "dtype": descr, "v": array.tobytes().hex()}

    def _list(self, value: Any, path: str, depth: int) -> Node:
        return self._items(value, path, depth)

    def _items(self, value: Iterable[Any], path: str, depth: int) -> Node:
        items = list(value)
        if len(items) > INLINE_NUMBERS:
            numbers = _numbers(items)
            if numbers is not None:
                return {"$": "numbers", "e": self.add(path, numbers)}
        return [self.encode(item, f"{path}/{i}", depth) for i, item in enumerate(items)]

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Node:
        if all(type(key) is str for key in value) and "$" not in value and _is_text(value):
            return self._fields(value, path, depth)
        return {"$": "map", "v": self._pairs(value, path, depth)}

    def _fields(self, value: dict[str, Any], path: str, depth: int) -> dict[str, Node]:
        return {key: self.encode(item, join(path, key), depth) for key, item in value.items()}

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> list[list[Node]]:
        places = pair_places(value, path)
        pairs = []
        for place, (key, item) in zip(places, value.items(), strict=True):
            if not _is_key(key):
                raise self.error(place, f"{_describe(key)} cannot be saved as a key")
            pairs.append([self.encode(key, f"{place}/key", depth), self.encode(item, place, depth)])
        return pairs

    def _ordered(self, value: Any, path: str, depth: int) -> Node:
        kind = "odict" if type(value) is OrderedDict else "counter"
        return {"$": kind, "v": self._pairs(value, path, depth)}

    def _defaultdict(self, value: defaultdict[Any, Any], path: str, depth: int) -> Node:
        names = [name for name, made in FACTORIES.items() if made is value.default_factory]
        factory = names[0] if names else None
        return {"$": "defaultdict", "factory": factory, "v": self._pairs(value, path, depth)}

    def _deque(self, value: deque[Any], path: str, depth: int) -> Node:
        return {"$": "deque", "maxlen": value.maxlen, "v": self._items(value, path, depth)}

    def _set(self, value: set[Any], path: str, depth: int) -> Node:
        return {"$": "set", "v": self._members(value, path, depth)}

    def _members(self, value: Iterable[Any], path: str, depth: int) -> list[Node]:
        """Encode members of a set in an order that does not depend on hashes."""
        nodes = []
        for i, member in enumerate(value):
            if not _is_key(member):
                raise self.error(f"{path}/{i}", f"{_describe(member)} cannot be saved in a set")
            nodes.append(self.encode(member, f"{path}/{i}", depth))
        return sorted(nodes, key=repr)

    def _bytes(self, value: bytes | bytearray, path: str, depth: int = 0) -> Node:
        kind = "bytes" if type(value) is bytes else "bytearray"
        if len(value) <= INLINE_BYTES:
            return {"$": kind, "v": base64.b64encode(value).decode()}
        return {"$": kind, "e": self.add(path, np.frombuffer(value, dtype=np.uint8))}

    def _array(self, value: np.ndarray[Any, Any], path: str, depth: int) -> Node:
        if value.dtype.kind == "O":
            shape = list(value.shape)
            items = self._items(value.ravel().tolist(), path, depth)
            return {"$": "objects", "shape": shape, "v": items}
        try:
            numpy_storage(value.dtype)
        except ValueError as error:
            raise self.error(path, str(error)) from None
        return {"$": "array", "e": self.add(path, value)}

    def _tensor(self, value: torch.Tensor, path: str, depth: int) -> Node:
        from pyengine.capture.tensor_node import tensor_node

        node = tensor_node(self.component, value, path)
        node["e"] = self.add(path, value)
        return node

    def _rng(self, value: Any, path: str, depth: int) -> Node:
        state = self.encode(rng_state(value), path + "/state", depth)
        return {"$": "rng", "kind": rng_kind(value), "v": state}

    def _dataclass(self, value: Any, path: str, depth: int) -> Node:
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
        node = self._fields(fields, path, depth)
        return {"$": "dataclass", "type": type_name(value), "v": node}

    def _object(self, value: Any, path: str, depth: int) -> Node:
        if _is_module_or_optimizer(value):
            raise self.error(path, f"{_describe(value)} must be tracked under a name of its own")
        methods = state_methods(value)
        assert methods is not None
        node = self.encode(methods.get(), path + "/state", depth)
        return {"$": "object", "type": type_name(value), "how": methods.how, "v": node}

    def error(self, path: str, what: str) -> CaptureError:
        """Return the error for what cannot be saved at `path`."""
        place = f" at {path}" if path else ""
        return CaptureError(f"{self.component!r}{place}: {what}", component=self.component)


def pair_places(keys: Iterable[Any], path: str) -> list[str]:
    """Return the paths of a map's values: by key where all are texts or ints, else by index."""
    listed = list(keys)
    if all(type(key) is str for key in listed):
        return [join(path, key) for key in listed]
    if all(type(key) is int for key in listed):
        return [f"{path}/{key}" for key in listed]
    return [f"{path}/{i}" for i in range(len(listed))]


def _shared_kind(value: Any) -> Callable[[Encoder, Any, str, int], Node] | None:
    """Return how to encode an object with an identity, met under a type of its own."""
    if is_tensor(value):
        return Encoder._tensor
    if rng_kind(value) is not None:
        return Encoder._rng
    if isinstance(value, np.memmap):
        return Encoder._array
    if isinstance(value, (enum.Enum, np.generic, type)):
        return None
    if state_methods(value) is not None:
        return Encoder._object
    return Encoder._dataclass if dataclasses.is_dataclass(value) else None


def _is_module_or_optimizer(value: Any) -> bool:
    if not is_torch_loaded():
        return False
    import torch

    return isinstance(value, (torch.nn.Module, torch.optim.Optimizer))


def _numbers(items: list[Any]) -> Value | None:
    """Return plain floats or plain 64-bit ints as an array, anything else as None."""
    kinds = set(map(type, items))
    if kinds == {float}:
        return np.array(items, dtype=np.float64)
    if kinds == {int} and min(items) >= -(1 << 63) and max(items) < 1 << 63:
        return np.array(items, dtype=np.int64)
    return None


def _is_key(key: Any) -> bool:
    """Return whether a key or member of a set has a value rather than an identity."""
    if type(key) in (tuple, frozenset) or (isinstance(key, tuple) and hasattr(key, "_fields")):
        return all(_is_key(part) for part in key)
    scalars = (bool, int, float, complex, str, bytes, enum.Enum, np.generic)
    return key is None or isinstance(key, (*scalars, np.dtype)) or is_of_torch(key, *_SCALARS)


def _is_text(keys: Iterable[str]) -> bool:
    return all(key.isascii() or _encodes(key) for key in keys)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(value: Any) -> str:
    shown = getattr(value, "__qualname__", None) or repr(value)
    return f"{name_with_article(value)} ({shown if len(shown) <= 60 else '...' + shown[-57:]})"


def _int(value: int) -> Node:
    return value if -(1 << 63) <= value < 1 << 63 else {"$": "int", "v": hex(value)}


def _float(value: float) -> Node:
    return value if math.isfinite(value) else {"$": "float", "v": struct.pack(">d", value).hex()}


def _str(value: str) -> Node:
    if value.isascii() or _encodes(value):
        return value
    return {"$": "str", "v": value.encode("utf-8", "surrogatepass").hex()}


_PLAIN: dict[type[Any], Callable[[Any], Node]] = {
    int: _int,
    float: _float,
    str: _str,
    complex: lambda value: {"$": "complex", "v": [_float(value.real), _float(value.imag)]},
    range: lambda value: {
        "$": "range",
        "v": [_int(n) for n in (value.start, value.stop, value.step)],
    },
}
_SHARED: dict[type[Any], Callable[[Encoder, Any, str, int], Node]] = {
    list: Encoder._list,
    dict: Encoder._dict,
    OrderedDict: Encoder._ordered,
    Counter: Encoder._ordered,
    defaultdict: Encoder._defaultdict,
    deque: Encoder._deque,
    set: Encoder._set,
    bytearray: Encoder._bytes,
    np.ndarray: Encoder._array,
}
