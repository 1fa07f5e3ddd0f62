"""The rows of a ring as episodes of Minari's, an episode in as many pieces as it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import UnportableError
from pyengine.events import Progress
from pyengine.format.schema import Field, Schema
from pyengine.porting.ring_rows import RingRows
from pyengine.porting.roles import Roles
from pyengine.porting.sequences import Piece
from pyengine.replay.plan import numpy_dtype

Array = NDArray[Any]


@dataclass(slots=True)
class _Part:
    """Rows [begin, end) of a piece, all of one episode; `is_first`: it begins with them."""

    piece: Piece
    begin: int
    end: int
    is_first: bool


class Episodes:
    """Makes episode buffers, in the order of lanes and rows, and counts what they hold.

    `fit` before `buffers`.
    """

    def __init__(self, rows: RingRows, roles: Roles, progress: Progress | None) -> None:
        for name in roles.names:
            if rows.schema[name].dtype == "bfloat16":
                raise UnportableError(
                    f"{rows.info.path}: {name!r} is bfloat16, which neither NumPy nor Minari has",
                    path=rows.info.path,
                    expected="a dtype of NumPy's",
                    got="bfloat16",
                )
        self._rows_of = rows
        self._roles = roles
        self._progress = progress
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._in_all = rows.header.row_count
        self.source = f"ring {rows.name!r} of {rows.info.name}"
        self.rows = self.episodes = self.cut_short = 0
        self.pieced: dict[int, int] = {}
        """Lengths of episodes that were written in pieces, by id."""

    def spaces(self) -> dict[str, Any]:
        """Return boxes that hold what the fields hold."""
        from gymnasium import spaces

        def box(field: Field) -> Any:
            dtype = numpy_dtype(field)
            if dtype.kind == "f":
                return spaces.Box(-np.inf, np.inf, field.shape, dtype.type)
            if dtype.kind == "b":
                return spaces.Box(0, 1, field.shape, np.int8)
            limits = np.iinfo(dtype)
            return spaces.Box(limits.min, limits.max, field.shape, dtype.type)

        schema = self._rows_of.schema
        found = {}
        for role in ("obs", "action"):
            parts = {key: box(schema[name]) for key, name in self._roles.fields[role].items()}
            found[role] = parts[""] if "" in parts else _nest(parts, spaces.Dict)
        return {"observation_space": found["obs"], "action_space": found["action"]}

    def fit(self, spaces: dict[str, Any]) -> None:
        """Give observations and actions the shapes of spaces, which have as many numbers."""
        schema = self._rows_of.schema
        there = Schema.from_spaces(spaces["observation_space"], spaces["action_space"])
        for role, prefix in (("obs", "obs"), ("next_obs", "obs"), ("action", "action")):
            for key, name in self._roles.fields[role].items():
                wanted = there.get(f"{prefix}/{key}" if key else prefix)
                if wanted is None or prod(wanted.shape) != prod(schema[name].shape):
                    path = self._rows_of.info.path
                    raise UnportableError(
                        f"{path}: {name!r} has shape {schema[name].shape}, the space "
                        f"{'has no such part' if wanted is None else wanted.shape}",
                        path=path,
                        expected=None if wanted is None else wanted.shape,
                        got=schema[name].shape,
                    )
                self._shapes[name] = wanted.shape

    def buffers(self) -> Iterator[Any]:
        """Yield the episodes in order, those of a lane one after the other."""
        held: _Part | None = None
        length = 0
        for part in self._parts():
            if held is not None:
                if part.is_first:
                    yield self._buffer(held, length, is_last=True)
                    length = 0
                else:
                    self._check_follows(held, part)
                    yield self._buffer(held, length, is_last=False)
                    length += held.end - held.begin
            held = part
        if held is not None:
            yield self._buffer(held, length, is_last=True)

    def _parts(self) -> Iterator[_Part]:
        """Yield runs of rows of a piece that no episode's end lies in."""
        lane, has_ended = -1, True
        for piece in self._rows_of.pieces(self._roles.names):
            ended = self._roles.terminated(piece) | self._roles.truncated(piece)
            firsts = piece.starts.copy()
            firsts[0] |= has_ended or piece.lane != lane
            firsts[1:] |= ended[:-1]
            bounds = [*np.flatnonzero(firsts).tolist(), len(firsts)]
            if not firsts[0]:
                bounds.insert(0, 0)
            for begin, end in pairwise(bounds):
                yield _Part(piece, begin, end, bool(firsts[begin]))
            lane, has_ended = piece.lane, bool(ended[-1])

    def _buffer(self, part: _Part, done: int, *, is_last: bool) -> Any:
        """Return the buffer for a part, of whose episode `done` steps were written before."""
        from minari.data_collector.episode_buffer import EpisodeBuffer

        piece, rows = part.piece, slice(part.begin, part.end)
        self._check_chain(part)
        count = part.end - part.begin
        terminated, truncated = (
            self._roles.terminated(piece)[rows],
            self._roles.truncated(piece)[rows],
        )
        if is_last and not (terminated[-1] or truncated[-1]):
            truncated = truncated.copy()
            truncated[-1] = True
            self.cut_short += 1
        episode = self.episodes
        if done or not is_last:
            self.pieced[episode] = done + count
        buffer = EpisodeBuffer(
            id=episode if done else None,
            observations=self._nested("obs", "next_obs", piece, rows, with_last=is_last),
            actions=self._nested("action", "action", piece, rows, with_last=False),
            rewards=self._flat("reward", piece, rows),
            terminations=terminated,
            truncations=truncated,
            infos={},
        )
        self.rows += count
        self.episodes += is_last
        if self._progress is not None:
            self._progress(self.rows, self._in_all)
        return buffer

    def _flat(self, role: str, piece: Piece, rows: slice) -> Array:
        values = piece.rows[self._roles.fields[role][""]]
        return values[rows].reshape(-1)

    def _nested(self, role: str, last: str, piece: Piece, rows: slice, *, with_last: bool) -> Any:
        parts = {}
        for key, name in self._roles.fields[role].items():
            values = piece.rows[name][rows]
            if with_last:
                after = piece.rows[self._roles.fields[last][key]][rows.stop - 1 : rows.stop]
                values = np.concatenate((values, after))
            parts[key] = values.reshape(len(values), *self._shapes[name])
        return parts[""] if "" in parts else _nest(parts, dict)

    def _check_chain(self, part: _Part) -> None:
        """Raise UnportableError unless each row's next_obs is the obs of the one after it."""
        for here, there in self._pairs():
            later = part.piece.rows[there][part.begin : part.end - 1]
            self._compare(
                part, later, part.piece.rows[here][part.begin + 1 : part.end], here, there
            )

    def _check_follows(self, held: _Part, part: _Part) -> None:
        for here, there in self._pairs():
            later = held.piece.rows[there][held.end - 1 : held.end]
            self._compare(
                part, later, part.piece.rows[here][part.begin : part.begin + 1], here, there
            )

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for key, name in self._roles.fields["obs"].items():
            yield name, self._roles.fields["next_obs"][key]

    def _compare(self, part: _Part, later: Array, obs: Array, here: str, there: str) -> None:
        if later.tobytes() != obs.tobytes():
            path = self._rows_of.info.path
            raise UnportableError(
                f"{path}: in lane {part.piece.lane} {there!r} is not {here!r} of the row behind "
                "it, between two breaks; Minari has one array for both. Rows of several steps, and "
                "rows that were left out, have no such chain: export_npz takes them",
                path=path,
                expected=f"{there} of a row to be {here} of the next",
                got=f"another value, in rows {part.begin} to {part.end} of a piece",
            )


def _nest(parts: dict[str, Any], kind: Any) -> Any:
    """Return {"a/b": x} as {"a": {"b": x}}, of mappings made by `kind`."""
    nested: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in parts.items():
        head, _, rest = name.partition("/")
        if rest:
            groups.setdefault(head, {})[rest] = value
        else:
            nested[head] = value
    nested.update((head, _nest(inner, kind)) for head, inner in groups.items())
    return kind(nested)
