"""What an engine is told of the state: what to save, what not, what a snapshot is worth."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyengine.catalog.pool import pool_directory
from pyengine.engine import settings
from pyengine.engine.groups import flatten
from pyengine.engine.lifetime import Lifetime
from pyengine.errors import ConfigError
from pyengine.format.levels import LevelName

if TYPE_CHECKING:
    from pyengine.replay.damage import OnDamage

_EngineT = TypeVar("_EngineT", bound="Tracking")


class Tracking(Lifetime):
    """The part of SnapshotEngine that tracks. `_strict` and `_on_damage` are its settings."""

    _strict: bool
    _on_damage: OnDamage

    def _is_remote(self) -> bool:
        """Whether the run is on a file system whose mapped files may go stale."""
        raise NotImplementedError

    def track(
        self: _EngineT, objects: Mapping[str, Any] | None = None, /, **named: Any
    ) -> _EngineT:
        """Save these objects under these names, and restore them in place.

        Names may be nested: a dict that holds modules, optimizers, schedulers, scalers, rings,
        EnvironmentState or Pickled, itself or in dicts, is tracked object by object, as
        "member3/policy". Names that are no words come in a mapping: engine.track({"a b": net}).

        Modules, optimizers, schedulers, scalers, generators, tensors and arrays, dicts, lists and
        dataclasses of plain values, EnvironmentState, ReplayBuffer, and anything with
        get_state/set_state or state_dict/load_state_dict: its `check_state(state)`, where it has
        one, may raise to refuse a saved state before a restore changes anything. Returns the
        engine. Raises ConfigError for a name in use or an object under two names, UntrackableError
        for an object that cannot be restored in place, CaptureError for a container that holds what
        cannot be saved, RingInUseError for a ring that another engine tracks; ConfigError for one
        with a memory limit where the run is on a network or FUSE file system. Nothing was added
        then.
        """
        session = self._live()
        given = {**(settings.check_mapping("objects", objects)), **named}
        if objects is not None and len(given) != len(objects) + len(named):
            raise ConfigError(f"a name is given twice: {sorted(set(objects) & set(named))}")
        objects = dict(flatten(given))
        components, rings = self._tracked.build(objects)
        is_mappable = bool(rings) and not self._is_remote()
        bound: list[Any] = []
        try:
            for name, ring in rings.items():
                ring.bind(
                    self._owner,
                    name,
                    line=session.control.line,
                    strict=self._strict,
                    pool=pool_directory(session.run_dir, name) if is_mappable else None,
                    on_damage=self._on_damage,
                )
                bound.append(ring)
        except BaseException:
            for ring in bound:
                ring.unbind(self._owner)
            raise
        self._tracked.add(objects, components, rings)
        return self

    def exclude(self, name: str, why: str, *, harmless: bool = False) -> None:
        """Leave something out visibly: snapshots and restore reports list it with the reason.

        Snapshots are `partial` then, unless `harmless` says that training goes on without it as it
        does with it: a log, say. Raises ConfigError for a name in use.
        """
        self._live()
        self._tracked.exclude(name, why, harmless=harmless)

    def watch(self: _EngineT, **owners: Any) -> _EngineT:
        """Look at these objects' attributes at each snapshot: engine.watch(agent=agent).

        An owner holds parts of the learner and is not tracked itself. Whatever is state among its
        attributes (modules, optimizers, schedulers, scalers, generators, normalisers, samplers,
        parameters, replay buffers, objects with methods for their state), also inside lists, dicts
        and plain objects, must be tracked or excluded by its path ("agent.noise"): else a snapshot
        raises UncapturedStateError. Where a tracked object's place holds another one by then
        (a new optimizer, say), it raises ReplacedObjectError. Tracked modules, schedulers and
        objects with methods of their own are looked at unasked. Of a container with more than 64
        items only the first 8 are looked at, with a warning where they are more than data. Lists,
        dicts and tuples that were met are kept alive until the next snapshot or `close`, with what
        they hold. A name that is watched already gets another owner. Returns the engine.
        ConfigError for what has no attributes.
        """
        self._live()
        self._tracked.watch(owners)
        return self

    def declare_static(self, *names: str) -> None:
        """Declare that tracked components need not change, so that nothing warns of it."""
        self._live()
        self._tracked.declare_static(names)

    def declare_level(
        self,
        level: LevelName,
        *,
        condition: str | None = None,
        reasons: Collection[str] = (),
    ) -> None:
        """Declare how a run goes on from snapshots that are taken from now on.

        "exact": bit for bit, which nobody but the script can know; "state-complete", the default:
        everything is saved, and what draws on something outside may go otherwise; "partial".
        `condition` says what that holds under ("at an epoch border"), `reasons` why it is no
        higher. What is excluded and not
        harmless makes it "partial" all the same; a restore on other threads, devices, versions or
        flags makes it "state-complete", with the difference named in its report. ConfigError for
        another level.
        """
        self._live()
        self._tracked.declare_level(level, condition, reasons)
