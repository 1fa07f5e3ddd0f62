"""The schema of a ring: which fields a row has, and which of them may change after the append.

A schema is a plain value. It knows names, shapes and dtypes; it does not touch memory, NumPy or
torch. Nested dicts are flattened with "/": {"obs": {"camera": ...}} has the field "obs/camera".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyengine.errors import SchemaError
from pyengine.format.dtypes import BY_NAME
from pyengine.format.field import Field as Field
from pyengine.format.stacks import find_stacks, stack_record

START_FIELD = "@start"
"""Reserved append field of every ring (uint8): 1 where a row does not continue the one before."""

PRIORITY_FIELD = "@priority"
"""Reserved mutable field (float32) of rings that draw by priority."""

MAX_NAME_BYTES = 63
MAX_FIELDS = 1024
"""Fields of a schema, and of a segment file: there one place is the start field's."""

FieldLike = Field | tuple[Any, Any] | str | Mapping[str, Any]


class Schema(Mapping[str, Field]):
    """The fields of a row, by flat name, in order; an immutable value without memory of its own.

    `Schema({"obs": ((4, 84, 84), "uint8"), "reward": "float32", "priority": Field(mutable=True)})`
    takes a Field, a (shape, dtype) pair, a dtype (a scalar field), or a dict of the same, whose
    names are joined by "/". Up to 1024 fields with names of up to 63 bytes, 1 to 1023 of them
    append fields; none has the name of another or of a dict that others lie in ("a" beside "a/b").
    `episode_end` names boolean scalar append fields; a row in which one is true ends its episode,
    and nothing that spans rows crosses the break after it.

    A mapping of Fields: `schema["obs"].shape`. Schemas are equal where fields, order and
    `episode_end` are. Raises SchemaError for what cannot be stored, KeyError for unknown names.
    """

    def __init__(self, fields: Mapping[str, FieldLike], *, episode_end: Sequence[str] = ()) -> None:
        self._fields: dict[str, Field] = flatten_fields(fields)
        if isinstance(episode_end, str):
            raise SchemaError(
                f"episode_end takes names: episode_end=({episode_end!r},)",
                field="episode_end",
                expected="a sequence of names",
                got=episode_end,
            )
        self.episode_end = tuple(episode_end)
        self.stacks = find_stacks(self._fields)
        _check_counts(len(self._fields), len(self.append_fields) - 1)
        for name in self.episode_end:
            field = self._fields.get(name) if isinstance(name, str) else None
            if field is None or field.shape != () or field.dtype != "bool" or field.mutable:
                raise SchemaError(
                    f"episode_end={name!r} must name an append field ((), 'bool')",
                    field="episode_end",
                    expected="the name of an append field ((), 'bool')",
                    got=name,
                )

    @classmethod
    def from_env(
        cls, env: Any, *, stack: int | Mapping[str, int] | None = None, **fields: FieldLike
    ) -> Schema:
        """Return the schema of one transition of a Gymnasium environment, single or vectorised.

        Fields: obs, action, reward (float32), next_obs, terminated, truncated (bool; both end an
        episode), in the shapes and dtypes of one environment's spaces; `fields` adds more or takes
        the place of one. `stack=4` of a frame stack keeps each frame once and makes obs and
        next_obs of them, `stack=1` keeps an observation once; of a Dict space, a dict of these by
        flat name ({"camera": 4}) for the parts that are kept so. Looks at the spaces only: the
        environment is neither stepped nor kept. Raises SchemaError for what has no spaces, and for
        spaces without a fixed shape, or that are no such stack.
        """
        observation = _space_of(env, "observation_space")
        action = _space_of(env, "action_space")
        return cls.from_spaces(observation, action, stack=stack, **fields)

    @classmethod
    def from_spaces(
        cls,
        observation: Any,
        action: Any,
        *,
        stack: int | Mapping[str, int] | None = None,
        **fields: FieldLike,
    ) -> Schema:
        """Return the schema of one transition for two Gymnasium spaces; `stack` as for `from_env`.

        Box, Discrete, MultiDiscrete, MultiBinary and nested Dict; others raise SchemaError.
        """
        seen = _from_space(observation, "observation space")
        obs, next_obs = (seen, seen) if stack is None else _share(seen, "obs", _depths(seen, stack))
        transition: dict[str, FieldLike] = {
            "obs": obs,
            "action": _from_space(action, "action space"),
            "reward": Field((), "float32"),
            "next_obs": next_obs,
            "terminated": Field((), "bool"),
            "truncated": Field((), "bool"),
        }
        return cls({**transition, **fields}, episode_end=("terminated", "truncated"))

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.to_record() == other.to_record()

    __hash__ = None  # type: ignore[assignment]  # equal by value, so no hash by identity

    def __repr__(self) -> str:
        inner = ", ".join(
            f"{name}: {field.dtype}{list(field.shape)}{' mutable' if field.mutable else ''}"
            for name, field in self.items()
        )
        return f"Schema({inner})"

    def with_priorities(self) -> Schema:
        """Return the schema with the reserved field of priorities behind its own.

        Its default is the priority of the first row of a ring. SchemaError where a field more is
        too many.
        """
        if PRIORITY_FIELD in self:
            return self
        schema = Schema(self._fields, episode_end=self.episode_end)
        schema._fields[PRIORITY_FIELD] = Field((), "float32", mutable=True, default=1.0)
        _check_counts(len(schema), len(schema.append_fields) - 1)
        return schema

    @property
    def append_fields(self) -> dict[str, Field]:
        """Append fields as rows keep them, by name, the reserved start field last.

        Of a field and its next one a row keeps a frame of the next one alone, under its name.
        """
        rebuilt = {pair.obs for pair in self.stacks}
        fields = {
            name: field if field.next_of is None else field.frame
            for name, field in self.items()
            if not field.mutable and name not in rebuilt
        }
        return {**fields, START_FIELD: Field((), "uint8")}

    @property
    def mutable_fields(self) -> dict[str, Field]:
        """Mutable fields by name."""
        return {name: field for name, field in self._fields.items() if field.mutable}

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's append fields, the reserved start field included."""
        return sum(field.row_bytes for field in self.append_fields.values())

    def to_record(self) -> dict[str, Any]:
        """Return the schema as plain JSON values."""
        return {
            "fields": [
                {
                    "name": name,
                    "shape": list(field.shape),
                    "dtype": field.dtype,
                    "mutable": field.mutable,
                    "default": field.default,
                    **stack_record(field),
                }
                for name, field in self.items()
            ],
            "episode_end": list(self.episode_end),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_record` described; SchemaError where it is not one."""
        try:
            fields = {
                str(item["name"]): Field(
                    item["shape"],
                    BY_NAME[item["dtype"]].name,
                    mutable=bool(item["mutable"]),
                    default=item["default"],
                    stack=item.get("stack", 1),
                    next_of=item.get("next_of"),
                )
                for item in record["fields"]
            }
            priority = fields.pop(PRIORITY_FIELD, None)
            schema = cls(fields, episode_end=tuple(record["episode_end"]))
            if priority is None:
                return schema
            prioritized = schema.with_priorities()
            if prioritized[PRIORITY_FIELD] != priority:
                raise _name_error(PRIORITY_FIELD, str(prioritized[PRIORITY_FIELD]), priority)
            return prioritized
        except (KeyError, TypeError) as error:
            raise SchemaError(f"not a schema record: {error!r}") from error


def _check_counts(fields: int, append_fields: int) -> None:
    if append_fields == 0:
        raise SchemaError("a schema needs at least one append field")
    for what, most, count in (
        ("fields", MAX_FIELDS, fields),
        ("append fields", MAX_FIELDS - 1, append_fields),
    ):
        if count > most:
            raise SchemaError(
                f"a schema takes up to {most} {what}, got {count}",
                field="fields",
                expected=f"up to {most} {what}",
                got=count,
            )


def flatten_fields(fields: Any) -> dict[str, Field]:
    """Return the fields by flat name, in order; SchemaError for names that collide or are none."""
    flat: dict[str, Field] = {}
    groups: set[str] = set()
    for name, field in _flatten(fields, ""):
        groups.update(name[:end] for end, letter in enumerate(name) if letter == "/")
        if name in flat:
            raise _name_error(name, "each field once", f"{name!r} twice")
        flat[name] = field
    for name in flat:
        if name in groups:
            raise _name_error(name, "a field or a dict of fields", "both")
    return flat


def _flatten(fields: Any, prefix: str) -> Iterator[tuple[str, Field]]:
    if not isinstance(fields, Mapping) or not fields:
        raise _name_error(prefix.rstrip("/"), "a dict of at least one field", fields)
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not all(map(_is_part, key.split("/"))):
            raise _name_error(name, "non-empty names without leading '@', joined by '/'", key)
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES or not _is_text(name):
            raise _name_error(name, f"up to {MAX_NAME_BYTES} bytes of text", name)
        if isinstance(value, Field):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _flatten(value, name + "/")
        elif isinstance(value, tuple):
            if len(value) != 2:
                raise _name_error(name, "(shape, dtype)", value)
            yield name, Field(value[0], value[1])
        else:
            yield name, Field((), value)


def _is_part(part: str) -> bool:
    return part != "" and not part.startswith("@")


def _is_text(name: str) -> bool:
    """Whether a name can be stored: no NUL, no half of a surrogate pair."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name)


def _name_error(name: str, expected: str, got: Any) -> SchemaError:
    return SchemaError(
        f"field {name!r}: expected {expected}, got {got!r:.100}",
        field=name,
        expected=expected,
        got=got,
    )


def _space_of(env: Any, name: str) -> Any:
    """Return the space of one environment of `env`."""
    for attribute in (f"single_{name}", name):
        space = getattr(env, attribute, None)
        if space is not None:
            return space
    wanted = f"a Gymnasium environment, with an {name}"
    raise SchemaError(
        f"env: expected {wanted}, got {env!r:.100}", field="env", expected=wanted, got=env
    )


def _depths(seen: FieldLike, stack: Any) -> dict[str, int]:
    """Return which observations are kept once, as stacks of how many frames, by flat name."""
    names = flatten_fields({"obs": seen})
    if not isinstance(stack, Mapping):
        return dict.fromkeys(names, stack)
    depths = {f"obs/{name}": depth for name, depth in stack.items()}
    for name in depths:
        if name not in names:
            raise _name_error(name, f"a part of the observation ({', '.join(names)})", stack)
    return depths


def _share(seen: Any, name: str, depths: Mapping[str, int]) -> tuple[FieldLike, FieldLike]:
    """Return the observation and the next one, whose parts in `depths` share their frames."""
    if isinstance(seen, Mapping):
        pairs = {key: _share(part, f"{name}/{key}", depths) for key, part in seen.items()}
        return {key: pair[0] for key, pair in pairs.items()}, {
            key: pair[1] for key, pair in pairs.items()
        }
    if name not in depths:
        return seen, seen
    depth = depths[name]
    return (
        Field(seen.shape, seen.dtype, stack=depth),
        Field(seen.shape, seen.dtype, stack=depth, next_of=name),
    )


def _from_space(space: Any, what: str) -> FieldLike:
    kind = type(space).__name__
    if kind == "Box":
        return Field(space.shape, space.dtype)
    if kind == "Discrete":
        return Field((), getattr(space, "dtype", None) or "int64")
    if kind in ("MultiDiscrete", "MultiBinary"):
        return Field(space.shape, space.dtype)
    if kind == "Dict":
        return {key: _from_space(inner, f"{what}[{key!r}]") for key, inner in space.spaces.items()}
    raise SchemaError(
        f"{what}: {kind} has no fixed shape to store; wrap the environment so that it shows "
        "Box, Discrete, MultiDiscrete, MultiBinary or Dict"
    )
