"""Which files a component becomes, and how they are read back.

    module       model/<name>.safetensors, structure in its metadata
    tensor       state/<name>.safetensors, structure in its metadata
    optimizer    optimizer/<name>.msgpack + .safetensors
    rng          rng/<name>.msgpack + .safetensors
    environment  environment/<name>.msgpack + .safetensors
    state        state/<name>.msgpack + .safetensors
    counters, scheduler, scaler   meta.json["state"][<name>], arrays in state/<name>.safetensors
    pickle       legacy/<name>.pkl, nothing else

A .safetensors file beside a structure exists only where the structure refers to tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgpack

from pyengine.capture.tensorfile import TensorFile, Value
from pyengine.capture.tree import Node
from pyengine.errors import DamageError, FormatVersionError, PyengineError
from pyengine.format.document import parse_json, unique
from pyengine.format.names import MANIFEST, META, path_part

STATE_VERSION = 1
"""Version of the structures in msgpack files, metadata and meta.json."""

_FOLDERS = {
    "module": "model",
    "tensor": "state",
    "optimizer": "optimizer",
    "rng": "rng",
    "environment": "environment",
    "state": "state",
    "counters": "state",
    "scheduler": "state",
    "scaler": "state",
}
PICKLE = "pickle"
"""The kind of objects that a script saves by pickle; see pyengine.capture.pickled."""

_IN_METADATA = frozenset({"module", "tensor"})
_IN_META = frozenset({"counters", "scheduler", "scaler"})
FIXED_KINDS = frozenset({"module", "tensor", "optimizer", "rng"})
"""Kinds whose tensors keep their shapes from one snapshot to the next."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A safetensors file to be: names, live values, and JSON for its metadata."""

    path: str
    component: str
    names: Sequence[str]
    values: Sequence[Value]
    structure: str
    fixed: bool


@dataclass(frozen=True, slots=True)
class BlobPart:
    """A file whose bytes are known."""

    path: str
    data: bytes


def tensor_path(name: str, kind: str) -> str:
    """Return the relative path of a component's safetensors file."""
    return f"{_FOLDERS[kind]}/{path_part(name)}.safetensors"


def structure_path(name: str, kind: str) -> str:
    """Return the relative path of the file that holds a component's structure."""
    if kind in _IN_META:
        return META
    if kind == PICKLE:
        return pickle_path(name)
    if kind in _IN_METADATA:
        return tensor_path(name, kind)
    return f"{_FOLDERS[kind]}/{path_part(name)}.msgpack"


def pickle_path(name: str) -> str:
    """Return the relative path of the pickle of a component."""
    return f"legacy/{path_part(name)}.pkl"


def component_paths(name: str, kind: str, *, has_tensors: bool) -> tuple[str, ...]:
    """Return the relative paths of all files of a component, the structure's first."""
    structure = structure_path(name, kind)
    if not has_tensors or kind in _IN_METADATA:
        return (structure,)
    return (structure, tensor_path(name, kind))


def envelope(name: str, kind: str, structure: Node) -> dict[str, Any]:
    """Return what is stored around a structure."""
    return {"version": STATE_VERSION, "name": name, "kind": kind, "structure": structure}


def to_json(value: Any) -> str:
    """Return strict JSON (the tree keeps nan and inf out of it)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Json(str):
    """Text that is JSON already, for values of meta.json that would cost a tick to write anew."""

    __slots__ = ()


def meta_bytes(meta: Mapping[str, Any], structures: Mapping[str, tuple[str, Node]]) -> bytes:
    """Return meta.json: what the caller puts in, and the structures by component under "state"."""
    state = {name: envelope(name, kind, node) for name, (kind, node) in structures.items()}
    # One line per component: json.dumps(indent=...) would be ten times slower, inside tick().
    lines = {
        key: value if isinstance(value, Json) else to_json(value) for key, value in meta.items()
    }
    lines["state"] = _lines(state)
    text = ",\n".join(f"{json.dumps(key)}: {value}" for key, value in lines.items())
    return f"{{\n{text}\n}}\n".encode()


def _lines(entries: Mapping[str, Any]) -> str:
    text = ",\n".join(f"  {json.dumps(key)}: {to_json(value)}" for key, value in entries.items())
    return f"{{\n{text}\n}}" if text else "{}"


def blob_bytes(name: str, kind: str, structure: Node) -> bytes:
    """Return the file of a component's structure: msgpack, or a pickle as it is."""
    if kind == PICKLE:
        return bytes(structure)
    packed: bytes = msgpack.packb(envelope(name, kind, structure), use_bin_type=True)
    return packed


def is_in_metadata(kind: str) -> bool:
    """Return whether the structure of this kind goes into its safetensors file."""
    return kind in _IN_METADATA


def is_in_meta_file(kind: str) -> bool:
    """Return whether the structure of this kind goes into meta.json."""
    return kind in _IN_META


def read_parts(
    files: Mapping[str, Any], name: str, kind: str
) -> tuple[Node, TensorFile | None, str]:
    """Return (structure, tensors or None, path of the structure) of one component.

    Raises DamageError where a file is malformed or missing, FormatVersionError where it is newer.
    """
    if kind not in _FOLDERS:
        raise DamageError(f"{name!r} is of the unknown kind {kind!r}", path=MANIFEST)
    path = structure_path(name, kind)
    where = tensor_path(name, kind)
    tensors = TensorFile(files[where], where) if where in files else None
    if path not in files:
        raise DamageError(f"{path}: the snapshot lacks this file of {name!r}", path=path)
    try:
        found = _envelope(files, path, name, kind, tensors)
        version, structure = found["version"], found["structure"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamageError(f"{path}: no structure of {name!r}: {error!r}", path=path) from None
    if version != STATE_VERSION:
        raise FormatVersionError(
            f"{path}: state of version {version!r}; this pyengine reads {STATE_VERSION}",
            path=path,
            version=version,
        )
    if found.get("kind") != kind:
        raise DamageError(f"{path}: holds a {found.get('kind')!r}, no {kind!r}", path=path)
    return structure, tensors, path


@contextmanager
def damage_in(path: str) -> Iterator[None]:
    """Turn the errors of a structure that is not what it should be into a DamageError."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, PyengineError):
            raise
        raise DamageError(f"{path}: malformed structure: {error!r}", path=path) from None


def _envelope(
    files: Mapping[str, Any], path: str, name: str, kind: str, tensors: TensorFile | None
) -> Any:
    if kind in _IN_META:
        return parse_json(bytes(files[path]))["state"][name]
    if kind in _IN_METADATA:
        assert tensors is not None
        return parse_json(tensors.structure or "")
    return msgpack.unpackb(
        bytes(files[path]), raw=False, strict_map_key=False, object_pairs_hook=unique
    )
