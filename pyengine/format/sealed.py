"""JSON objects that end with their own checksum: manifests, and the small records of a run.

The last key of the object is `xxh3_64`, the XXH3-64 of all bytes before that key's quotation mark:
in a manifest of all lines but the last, in a record of one line of all before ` "xxh3_64"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import xxhash

from pyengine.errors import DamageError, FormatVersionError
from pyengine.format.document import parse_document

RECORD_VERSION = 2
"""Version of the records of a run directory. Those of version 1, or without one, have no seal."""

_SEAL = re.compile(rb'"xxh3_64": "([0-9a-f]{16})"\}\n?')


def seal(text: str) -> bytes:
    """Return a JSON object with its checksum as its last key, on a line of its own where the text
    has lines."""
    is_in_lines = text.endswith("\n}")
    body = text.removesuffix("}").rstrip("\n").encode("ascii") + (b",\n" if is_in_lines else b", ")
    return body + b'"xxh3_64": "%s"}' % xxhash.xxh3_64_hexdigest(body).encode("ascii")


def in_lines(document: Mapping[str, Any]) -> str:
    """Return a JSON object with a line for each key, and for each item of a list.

    For people to read, like `indent`, with which json takes ten times as long: its encoder in C
    makes no lines.
    """
    lines = (f" {json.dumps(key)}: {_lines(value)}" for key, value in document.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _lines(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(f"  {json.dumps(item, allow_nan=False)}" for item in value) + "\n ]"


def check_seal(data: bytes, path: str) -> None:
    """Raise DamageError unless a file, or record, ends with the checksum of its bytes."""
    start = data.rfind(b'"xxh3_64"')
    match = _SEAL.fullmatch(data, max(start, 0))
    if match is None:
        raise DamageError(
            f"{path} does not end with its checksum", path=path, offset=len(data.rstrip(b"\n"))
        )
    got = xxhash.xxh3_64_hexdigest(memoryview(data)[:start])
    expected = match[1].decode("ascii")
    if got != expected:
        raise DamageError(
            f"{path}: its bytes have the checksum {got}, its end says {expected}",
            path=path,
            offset=0,
            expected=expected,
            got=got,
        )


def record_bytes(record: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return a record of a run directory: sealed, with its version; it ends with a line break."""
    document = {"schema_version": RECORD_VERSION, **record}
    return seal(json.dumps(document, indent=indent)) + b"\n"


def parse_record(data: bytes, path: str, *, limit_bytes: int) -> dict[str, Any]:
    """Read a record of a run directory, of this version or an older one.

    DamageError: it is no JSON object, or not what its checksum says. FormatVersionError: newer.
    """
    record = parse_document(data, path, limit_bytes=limit_bytes)
    version = record.get("schema_version", 1)
    # What has a seal is held to it, so that no single changed bit makes an older record of it.
    if version != 1 or "xxh3_64" in record:
        check_seal(data, path)
    if version not in (1, RECORD_VERSION):
        raise FormatVersionError(
            f"{path} has version {version!r}; this pyengine reads up to {RECORD_VERSION}",
            path=path,
            version=version if isinstance(version, int) else -1,
        )
    return record
