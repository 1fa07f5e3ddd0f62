"""Reading JSON that may be damaged or hostile: bounded first, checked field by field, then used.

Every refusal is a DamageError that names the file and the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from pyengine.errors import DamageError

INTEGER_MAX = 2**63 - 1
"""Largest count, row id or size in any document."""

_DEPTH_MAX = 32


def is_unicode(text: str) -> bool:
    """Return whether a text can be stored: UTF-8 has no code for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_document(data: bytes, path: str, *, limit_bytes: int) -> dict[str, Any]:
    """Parse one JSON object. Refuses other values, excess size or depth, repeated keys, NaN."""
    if len(data) > limit_bytes:
        raise DamageError(
            f"{path}: {len(data)} bytes are more than the {limit_bytes} it may have",
            path=path,
            expected=limit_bytes,
            got=len(data),
        )
    try:
        value = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is not valid JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise DamageError(f"{path} is not a JSON object", path=path)
    if not is_shallow(value, _DEPTH_MAX):
        raise DamageError(f"{path} is nested deeper than {_DEPTH_MAX} levels", path=path)
    return value


def parse_json(data: bytes | str) -> Any:
    """Parse JSON of any size and depth. ValueError: it is none, or a key is given twice, of which
    other readers might take the other; RecursionError: it is nested beyond what Python takes."""
    return json.loads(data, object_pairs_hook=unique, parse_constant=_refuse_constant)


def is_shallow(value: Any, depth_max: int) -> bool:
    """Return whether lists and dicts in `value` are nested at most `depth_max` deep."""
    level = [value]
    for _ in range(depth_max + 1):
        level = [
            item
            for node in level
            if isinstance(node, (dict, list, tuple))
            for item in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return True
    return False


def unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return an object of these pairs. ValueError: a key is given twice."""
    pairs = list(pairs)
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class Fields:
    """Typed access to one JSON object; `where` is its place in the document."""

    def __init__(self, values: Any, path: str, where: str = "") -> None:
        self._path = path
        self._where = where
        if not isinstance(values, dict):
            self.refuse("", "an object", values)
        self._values: dict[str, Any] = values

    def refuse(self, name: str, expected: str, got: Any) -> NoReturn:
        """Raise the DamageError for one field."""
        place = ".".join(part for part in (self._where, name) if part) or "document"
        raise DamageError(
            f"{self._path}: {place} must be {expected}, got {got!r:.100}",
            path=self._path,
            expected=expected,
            got=got,
        )

    def integer(self, name: str, *, low: int = 0, high: int = INTEGER_MAX) -> int:
        """Return a whole number within [low, high]."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(name, f"a whole number from {low} to {high}", value)
        return value

    def number(self, name: str, *, low: float, high: float) -> float:
        """Return a number within [low, high]."""
        value = self._values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not low <= value <= high:
            self.refuse(name, f"a number from {low} to {high}", value)
        return float(value)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value = self._values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "true or false", value)
        return value

    def text(self, name: str, *, limit: int = 4096) -> str:
        """Return a string of at most `limit` characters."""
        value = self._values.get(name)
        if not isinstance(value, str) or len(value) > limit:
            self.refuse(name, f"a string of at most {limit} characters", value)
        return value

    def optional_text(self, name: str, *, limit: int = 4096) -> str | None:
        """Return a string, or None where it is null or absent."""
        return None if self._values.get(name) is None else self.text(name, limit=limit)

    def hexadecimal(self, name: str) -> str:
        """Return a 64-bit value as its 16 lower-case hexadecimal digits."""
        value = self._values.get(name)
        if not isinstance(value, str) or not is_hexadecimal(value):
            self.refuse(name, "16 hexadecimal digits", value)
        return value

    def plain_name(self, name: str) -> str:
        """Return a file name that stays in its directory."""
        value = self.text(name, limit=255)
        if not is_plain_name(value):
            self.refuse(name, "a plain file name", value)
        return value

    def relative_path(self, name: str) -> str:
        """Return a POSIX path of plain names."""
        value = self.text(name)
        if not all(is_plain_name(part) for part in value.split("/")):
            self.refuse(name, "a path that stays in the snapshot", value)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object as it is."""
        value = self._values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object", value)
        return value

    def child(self, name: str) -> Fields:
        """Return typed access to an object in this one."""
        where = ".".join(part for part in (self._where, name) if part)
        return Fields(self.mapping(name), self._path, where)

    def array(self, name: str, *, limit: int) -> list[Any]:
        """Return a list of at most `limit` items as it is."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > limit:
            self.refuse(name, f"a list of at most {limit} items", value)
        return value

    def records(self, name: str, *, limit: int) -> Iterator[Fields]:
        """Yield the objects of a list."""
        for index, item in enumerate(self.array(name, limit=limit)):
            yield Fields(item, self._path, f"{self._where}{name}[{index}]")


def is_plain_name(text: str) -> bool:
    """Return whether a name stays in its directory: no separator, no dot name, no NUL."""
    return text not in ("", ".", "..") and not set(text) & {"/", "\\", "\0"}


def is_hexadecimal(text: str) -> bool:
    """Return whether a text is 16 lower-case hexadecimal digits."""
    return len(text) == 16 and not set(text) - set("0123456789abcdef")
