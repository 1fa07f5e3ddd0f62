"""What every kind of tracked state has in common: capture, and a restore in four steps.

    decode   files -> values; reads nothing but the files
    check    compares them with the live object; raises, changes nothing
    apply    puts them into the live object
    apply_late   sets the generators found inside it, after every user callable has run

Nothing live changes before decode and check have succeeded for every component of a snapshot.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyengine.capture.decode import Decoder
from pyengine.capture.files import damage_in, read_parts
from pyengine.capture.merge import Merge
from pyengine.capture.tensorfile import TensorFile, Value
from pyengine.capture.tree import Node
from pyengine.errors import StateMismatchError


class Phase(enum.IntEnum):
    """When a component is applied; the ring (which is no component of this layer) has a place."""

    MODULE = 0
    OPTIMIZER = 1
    SCHEDULER = 2
    RING = 3
    STATE = 4
    RNG = 5


@dataclass(frozen=True, slots=True)
class Captured:
    """One component at one instant.

    `structure` shares nothing with live objects. `values` are the live tensors and arrays, by name
    in `names`: they must be copied before anything changes them.
    """

    name: str
    kind: str
    structure: Node
    names: Sequence[str] = ()
    values: Sequence[Value] = ()


@dataclass(slots=True)
class Decoded:
    """One component as read from a snapshot; `value` is for the component that made it."""

    value: Any
    plan: Merge | None = None
    """What `check` planned and `apply` will run."""
    late: list[Merge] = field(default_factory=list)


class Component(ABC):
    """One tracked object under its name. Not thread-safe; used by the process that made it only."""

    kind: ClassVar[str]
    phase: ClassVar[Phase]

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def capture(self) -> Captured:
        """Return the state as it is now; CaptureError names what cannot be saved."""

    def decode(self, files: Mapping[str, Any]) -> Decoded:
        """Read the state from verified files (relative path -> bytes); DamageError, no change."""
        structure, tensors, path = read_parts(files, self.name, self.kind)
        with damage_in(path):
            return Decoded(self._decode(structure, tensors, path))

    def _decode(self, structure: Node, tensors: TensorFile | None, path: str) -> Any:
        """Return what the structure holds; here, where it is one tree."""
        return Decoder(tensors, path).decode(structure["tree"])

    @abstractmethod
    def check(self, decoded: Decoded) -> tuple[str, ...]:
        """Compare with the live object and return lines for people about harmless differences.

        Raises StateMismatchError; changes nothing.
        """

    def _planned(self, decoded: Decoded, plan: Callable[[Any], Merge]) -> Merge:
        """Return the plan that `check` made, once, or make it."""
        made, decoded.plan = decoded.plan, None
        return made or plan(decoded.value)

    @abstractmethod
    def apply(self, decoded: Decoded) -> None:
        """Put the state into the live object, in place, bit for bit."""

    def apply_late(self, decoded: Decoded) -> None:
        """Set the generators that were found inside the object."""
        for merge in decoded.late:
            merge.run_late()

    def live_tensors(self) -> list[tuple[str, Any]]:
        """Return (name, tensor) of the learned values, for checks of their health."""
        return []

    def _mismatch(self, what: str, expected: Any, got: Any) -> StateMismatchError:
        return Merge(self.name).mismatch("", what, expected, got)
