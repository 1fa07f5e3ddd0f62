"""Objects that are saved by pickle, because the script says so for this name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyengine.capture.component import Captured, Component, Decoded, Phase
from pyengine.capture.files import PICKLE, pickle_path
from pyengine.capture.pickled import Pickled, dump, load
from pyengine.errors import DamageError


class PickledComponent(Component):
    """One pickle, a file of its own. Its structure is that file's bytes."""

    kind = PICKLE
    phase = Phase.STATE

    def __init__(self, name: str, pickled: Pickled) -> None:
        super().__init__(name)
        self._pickled = pickled

    def capture(self) -> Captured:
        """Return the pickle of the object as it is now."""
        return Captured(self.name, self.kind, dump(self._pickled, self.name))

    def decode(self, files: Mapping[str, Any]) -> Decoded:
        """Read the pickle: runs its code. StateMismatchError where that raises."""
        path = pickle_path(self.name)
        if path not in files:
            raise DamageError(f"{path}: the snapshot lacks this file of {self.name!r}", path=path)
        return Decoded(load(files[path], self.name))

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        if self._pickled.check is not None:
            try:
                self._pickled.check(decoded.value)
            except Exception as error:  # any exception of the object's means no
                what = f"the saved state is refused: {type(error).__name__}: {error}"
                raise self._mismatch(what, "a state that fits", type(decoded.value)) from error
        return ()

    def apply(self, decoded: Decoded) -> None:
        self._pickled.set(decoded.value)
