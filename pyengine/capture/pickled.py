"""Pickle, where a script asks for it by name: the only module that can read or write one.

A pickle runs code when it is read. So nothing here is called for an object that the caller has not
named: in a script by `engine.track(name=Pickled(...))`, outside of one by `load(allow_pickle=...)`,
and never for bytes of a run whose checksum was not compared; nor for another program's file, but by
`porting.import_sb3(allow_pickle=True)`.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import Any

from pyengine.capture.protocol import name_with_article, type_text
from pyengine.errors import CaptureError, ConfigError, SourceFormatError, StateMismatchError

_PROTOCOL = 5
"""The newest that every supported Python reads, so that a snapshot outlives an upgrade."""

_MISSING: Any = object()


class _Plain:
    """What an instance needs where all its state is attributes."""


class Pickled:
    """Saves an object by pickle, for `engine.track`: one that gives its state in no other way.

    `Pickled(scaler)` saves an object whose whole state is its attributes (a scikit-learn estimator,
    a class of your own without `__slots__`). A restore exchanges the attributes of that very object
    for the saved ones, all at once; what they held before is let go, so that other names for it go
    stale.

    `Pickled(get=..., set=...)` saves whatever `get()` returns and hands an equal value to
    `set(state)` in a restore; `check(state)`, if given, raises for a state that does not fit,
    before anything was changed. For objects with state outside of attributes, for those that
    refer to themselves, and for names that are bound anew:

        engine.track(
            curriculum=pyengine.Pickled(curriculum),
            scaler=pyengine.Pickled(get=lambda: agent.scaler, set=agent.put_scaler),
        )

    **Reading a pickle runs code of its author's choice.** It becomes `legacy/<name>.pkl` in each
    snapshot, and is read only where a script tracks this name as Pickled, after its checksum was
    compared, or where `pyengine.load(path, allow_pickle=[name])` names it. A checksum shows damage,
    not who wrote it: restore runs that you trust. Its classes must be importable by the same names.

    Pickling happens inside `tick()` and in its thread, all of it at every snapshot, and what is
    pickled shares nothing with other tracked objects. What cannot be pickled is a CaptureError.

    Raises ConfigError for other combinations of arguments, and for an object that needs functions.
    """

    def __init__(
        self,
        value: Any = _MISSING,
        *,
        get: Callable[[], Any] | None = None,
        set: Callable[[Any], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
    ) -> None:
        self.value = None if value is _MISSING else value
        self.is_object = value is not _MISSING
        if not self.is_object:
            if not callable(get) or not callable(set) or not (check is None or callable(check)):
                raise ConfigError("Pickled takes an object, or functions: get(), set(state)")
            self.get, self.set, self.check = get, set, check
            return
        if get is not None or set is not None or check is not None:
            raise ConfigError("Pickled takes an object, or functions, not both")
        if not _is_all_attributes(value):
            raise ConfigError(
                f"Pickled: the state of {name_with_article(value)} is not all in attributes, so it "
                "cannot be put back in place: use Pickled(get=lambda: ..., set=put_back)"
            )
        self.get, self.set, self.check = self._own, self._exchange, self._compare

    def _own(self) -> Any:
        return self.value

    def _compare(self, saved: Any) -> None:
        if type(saved) is not type(self.value):
            raise ConfigError(f"{name_with_article(saved)} for {name_with_article(self.value)}")

    def _exchange(self, saved: Any) -> None:
        # The saved twin gets the former attributes, so that what its __del__ gives back is theirs.
        former, attributes = vars(self.value), vars(saved)
        object.__setattr__(saved, "__dict__", former)
        object.__setattr__(self.value, "__dict__", attributes)


class _Pickler(pickle.Pickler):
    """Counts how often it meets one object."""

    def __init__(self, file: io.BytesIO, root: Any) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._root = root
        self.met = 0

    def persistent_id(self, value: Any) -> None:
        self.met += value is self._root


def dump(pickled: Pickled, name: str) -> bytes:
    """Return the pickle of what is tracked as `name`, as it is now.

    CaptureError: it cannot be pickled, or an object refers to itself, which would be its saved twin
    after a restore. What `get` raises comes through.
    """
    value = pickled.get()
    file = io.BytesIO()
    pickler = _Pickler(file, value)
    try:
        pickler.dump(value)
    except Exception as error:  # objects raise what they like
        raise CaptureError(
            f"{name!r}: {name_with_article(value)} cannot be pickled: {_words(error)}",
            component=name,
        ) from error
    if pickled.is_object and pickler.met > 1:
        raise CaptureError(
            f"{name!r}: parts of the {type_text(value)} refer back to it, which a restore in place "
            "would break: use Pickled(get=lambda: ..., set=put_back)",
            component=name,
        )
    return file.getvalue()


def load(data: Any, name: str) -> Any:
    """Read a pickle: **runs what it says**. `data` is what a checksum was compared for.

    StateMismatchError where that raises, because a class is not to be found, say.
    """
    try:
        return pickle.loads(data)
    except Exception as error:  # code of the pickle's runs
        raise StateMismatchError(
            f"{name!r}: its pickle cannot be read here: {_words(error)}. Make its classes "
            f"importable as they were, or leave it in the snapshot: track it no more, and "
            f"restore(allow=[{name!r}])",
            component=name,
            expected="a pickle that can be read",
            got=_words(error),
        ) from error


def load_file(path: str) -> Any:
    """Read another program's pickle: **runs what it says**. For a file that the caller allowed.

    SourceFormatError where that raises; OSError where the file cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            return pickle.load(file)
        except Exception as error:  # code of the pickle's runs
            raise SourceFormatError(
                f"{path} cannot be read as a pickle: {_words(error)}", path=path
            ) from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _is_all_attributes(value: Any) -> bool:
    """Whether an object has no state but what `vars()` shows: no slots, nothing kept in C."""
    kind = type(value)
    is_small = kind.__basicsize__ <= _Plain.__basicsize__ and kind.__itemsize__ == 0
    slots = types.MemberDescriptorType
    has_slots = any(type(item) is slots for base in kind.__mro__ for item in vars(base).values())
    return is_small and not has_slots and hasattr(value, "__dict__")
