"""Notes: what a script wants to find again with its run: the id of a W&B run, a log directory."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from pyengine.format.manifest import check_notes


class Notes(MutableMapping[str, Any]):
    """A mapping of plain JSON values, which every later snapshot holds.

    Values are copied on their way in and out: assign to change one. ConfigError for what a manifest
    cannot hold (see `check_notes`), with nothing changed.
    """

    def __init__(self, notes: Mapping[str, Any]) -> None:
        check_notes(dict(notes))
        self._own = copy.deepcopy(dict(notes))
        self._values = dict(self._own)

    def restored(self, saved: Mapping[str, Any]) -> None:
        """Take the notes of a snapshot; what this script has said since it began wins."""
        self._values = {**copy.deepcopy(dict(saved)), **self._own}

    def to_dict(self) -> dict[str, Any]:
        """Return all notes, not copied: nothing changes them in place."""
        return self._values

    def __getitem__(self, name: str) -> Any:
        return copy.deepcopy(self._values[name])

    def __setitem__(self, name: str, value: Any) -> None:
        value = copy.deepcopy(value)
        check_notes({**self._values, name: value})
        self._own = {**self._own, name: value}
        self._values = {**self._values, name: value}

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._own.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Notes({self._values!r})"
