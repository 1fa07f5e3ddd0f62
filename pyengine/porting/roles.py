"""Which fields of a ring are the parts of a transition, by the names that libraries give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import UnportableError
from pyengine.format.schema import Schema
from pyengine.porting.sequences import Piece

_KNOWN: tuple[dict[str, str], ...] = (
    {
        "obs": "obs",
        "action": "action",
        "reward": "reward",
        "next_obs": "next_obs",
        "terminated": "terminated",
        "truncated": "truncated",
    },
    {
        "obs": "obs",
        "action": "act",
        "reward": "rew",
        "next_obs": "obs_next",
        "terminated": "terminated",
        "truncated": "truncated",
    },
    {
        "obs": "observations",
        "action": "actions",
        "reward": "rewards",
        "next_obs": "next_observations",
        "done": "dones",
        "truncated": "timeouts",
    },
    {
        "obs": "observation",
        "action": "action",
        "reward": "next/reward",
        "next_obs": "next/observation",
        "terminated": "next/terminated",
        "truncated": "next/truncated",
    },
)
"""pyengine and Gymnasium, Tianshou, Stable-Baselines3, TorchRL. `done`: terminated or truncated."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Fields by role, with the rest of the name of nested ones: {"obs": {"camera": "obs/camera"}};
    a part that is not nested has the rest ""."""

    fields: dict[str, dict[str, str]]

    @property
    def names(self) -> list[str]:
        """All fields that have a role."""
        return [name for parts in self.fields.values() for name in parts.values()]

    def terminated(self, piece: Piece) -> NDArray[np.bool_]:
        """Return where an episode terminated."""
        if "terminated" in self.fields:
            return self._flags("terminated", piece)
        return self._flags("done", piece) & ~self.truncated(piece)

    def truncated(self, piece: Piece) -> NDArray[np.bool_]:
        """Return where an episode was cut off."""
        return self._flags("truncated", piece)

    def _flags(self, role: str, piece: Piece) -> NDArray[np.bool_]:
        flags: NDArray[np.bool_] = piece.rows[self.fields[role][""]].reshape(-1) != 0
        return flags


def find_roles(schema: Schema, path: str, wanted_by: str) -> Roles:
    """Return the roles of a schema's fields; UnportableError where it has no set of names known."""
    for names in _KNOWN:
        found = {role: _parts(schema, name) for role, name in names.items()}
        flags = [found[role] for role in ("terminated", "done", "truncated") if role in found]
        if all(found.values()) and all(
            _is_one(schema, parts) for parts in (*flags, found["reward"])
        ):
            return Roles(found)
    needed = " or ".join(", ".join(names.values()) for names in _KNOWN)
    raise UnportableError(
        f"{path}: the ring has the fields {', '.join(schema)}; {wanted_by} takes transitions of "
        f"{needed}",
        path=path,
        expected=needed,
        got=tuple(schema),
    )


def _parts(schema: Schema, name: str) -> dict[str, str]:
    if name in schema:
        return {"": name}
    return {one[len(name) + 1 :]: one for one in schema if one.startswith(f"{name}/")}


def _is_one(schema: Schema, parts: Mapping[str, str]) -> bool:
    """Whether a role is one number a row."""
    return list(parts) == [""] and schema[parts[""]].shape in ((), (1,))
