"""What an engine saves: components by name, rings by name, and what is left out on purpose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyengine.capture.build import build_component
from pyengine.capture.component import Captured, Component, Phase
from pyengine.capture.coverage import check_coverage
from pyengine.capture.kinds.rng import PROCESS_RNG, ProcessRngComponent
from pyengine.capture.protocol import name_with_article, type_text
from pyengine.capture.reachable import Reachable, Root
from pyengine.engine import settings
from pyengine.engine.levels import check_level, level_of
from pyengine.errors import ConfigError
from pyengine.format.levels import Level, LevelName
from pyengine.format.names import is_component_name, is_nested_name, path_part

if TYPE_CHECKING:
    from pyengine.replay.ring import ReplayBuffer


_TYPE_LENGTH = 1000
_WITH_METHODS = ("environment", "state", "pickle")


class Tracked:
    """The tracked objects of one engine. Names are unique over components, rings and exclusions."""

    def __init__(self, *, track_rng: bool) -> None:
        self.components: dict[str, Component] = {}
        self.rings: dict[str, ReplayBuffer] = {}
        self.excluded: dict[str, str] = {}
        self.harmless: set[str] = set()
        """Exclusions without which training goes on as before."""
        self.static: set[str] = set()
        self.types: dict[str, str] = {}
        """What each name is restored into: the type of the live object."""
        self.watched: dict[str, Any] = {}
        """Owners whose attributes are looked at, by name."""
        self._declared: Level | None = None
        self._roots: list[Root] = []
        self._reachable = Reachable()
        self._objects: dict[str, Any] = {}
        if track_rng:
            self.components[PROCESS_RNG] = ProcessRngComponent(PROCESS_RNG)
            self.types[PROCESS_RNG] = "the process's generators"
        else:
            self.excluded[PROCESS_RNG] = "track_rng=False"

    def build(self, objects: dict[str, Any]) -> tuple[dict[str, Component], dict[str, Any]]:
        """Return (components, rings) for new objects without adding them.

        Raises ConfigError for a name in use or an object tracked twice, UntrackableError for one
        that cannot be restored in place, CaptureError for a container of what cannot be saved.
        """
        from pyengine.replay.ring import ReplayBuffer

        components: dict[str, Component] = {}
        rings: dict[str, Any] = {}
        known = {id(value): name for name, value in self._objects.items()}
        paths = {path_part(name): name for name in self.names}
        for name, value in objects.items():
            self._check_name(name)
            if paths.setdefault(path_part(name), name) != name:
                raise ConfigError(
                    f"{name!r} and {paths[path_part(name)]!r} would have one file, where a slash "
                    "is a dot: choose another name"
                )
            if isinstance(value, ReplayBuffer):
                rings[name] = value
            else:
                components[name] = build_component(name, value)
            if known.setdefault(id(value), name) != name:
                raise ConfigError(
                    f"{name!r} and {known[id(value)]!r} are one object: track it once"
                )
        return components, rings

    def object(self, name: str) -> Any:
        """Return what is tracked as `name`."""
        return self._objects[name]

    def add(
        self,
        objects: Mapping[str, Any],
        components: Mapping[str, Component],
        rings: Mapping[str, ReplayBuffer],
    ) -> None:
        """Add what `build` made of `objects`."""
        self.components.update(components)
        self.rings.update(rings)
        self._objects.update(objects)
        self._roots = []
        self.types.update(
            (name, type_text(value)[:_TYPE_LENGTH]) for name, value in objects.items()
        )

    def rehearse(self) -> list[Captured]:
        """Raise now what the first snapshot would raise: CaptureError and its kinds; return what
        was captured.

        Leaves out objects with methods of their own, which may not be ready before training.
        """
        ready = self.ready()
        captured = [component.capture() for component in ready]
        if len(ready) == len(self.components):  # else parameters may be saved by the others
            check_coverage(ready, captured)
        return captured

    def ready(self) -> list[Component]:
        """Return the components without methods of their own: those can be captured at any time."""
        return [one for one in self.components.values() if one.kind not in _WITH_METHODS]

    def state_count(self) -> int:
        """Return how many parameters have state of an optimizer: it appears while training."""
        optimizers = [
            getattr(one, "optimizer", None) or getattr(one, "value", None)
            for one in self.components.values()
            if one.phase is Phase.OPTIMIZER
        ]
        return sum(len(getattr(optimizer, "state", ())) for optimizer in optimizers)

    def watch(self, owners: Mapping[str, Any]) -> None:
        """Note objects whose attributes hold parts of the learner."""
        for name, value in owners.items():
            if not isinstance(name, str) or not is_component_name(name):
                raise ConfigError(f"{name!r} cannot name what is watched")
            if not hasattr(value, "__dict__") or isinstance(value, type):
                raise ConfigError(
                    f"{name!r}: {name_with_article(value)} has no attributes to watch: name the "
                    "object that holds networks and optimizers"
                )
        self.watched.update(owners)
        self._roots = []

    def stop_watching(self) -> None:
        """Let go of owners, and of everything that was met in what is tracked."""
        self.watched.clear()
        self._roots = []
        self._reachable.forget()

    def check_reachable(self, captured: Sequence[Captured]) -> None:
        """Raise UncapturedStateError or ReplacedObjectError for state beside what was captured."""
        roots = self._roots = self._roots or list(self._make_roots())
        self._reachable.check(roots, self.components, captured, self._objects, self.excluded)

    def _make_roots(self) -> Iterator[Root]:
        for name, value in self.watched.items():
            yield Root(name, value, is_owner=True)
        for name, component in self.components.items():
            value = self._objects.get(name)
            if value is None or type(value).__module__.startswith("pyengine."):
                continue  # adapters look after what they save
            if component.kind in ("module", "scheduler"):
                yield Root(name, value)
            elif component.kind == "state":
                yield Root(name, value, own=name)

    def exclude(self, name: str, reason: str, *, harmless: bool = False) -> None:
        """Note that something is left out, so that snapshots and restores say so."""
        self._check_name(name)
        reason = settings.check_text("reason", reason)
        if settings.check_flag("harmless", harmless):
            self.harmless.add(name)
        self.excluded[name] = reason

    def declare_level(
        self, level: LevelName, condition: str | None, reasons: Collection[str] = ()
    ) -> None:
        """Note how a run goes on from snapshots, what that holds under, and why it is no more."""
        if condition is not None:
            condition = settings.check_text("condition", condition)
        told = settings.check_names("reasons", reasons)
        for reason in told:
            settings.check_text("reasons", reason)
        self._declared = Level(check_level(level), condition, told)

    def level(self) -> Level:
        """Return the level of what is saved now."""
        return level_of(self._declared, self.excluded, self.harmless)

    def declare_static(self, names: Sequence[str]) -> None:
        """Note components that need not change; ConfigError for a name that is not tracked."""
        for name in names:
            if name not in self.components:
                raise ConfigError(f"{name!r} is not tracked; track it before declaring it static")
        self.static.update(names)

    @property
    def names(self) -> set[str]:
        """Names of everything that is saved."""
        return {*self.components, *self.rings}

    def in_order(self) -> list[Component]:
        """Return the components in the order in which they are put back."""
        return sorted(self.components.values(), key=lambda component: component.phase)

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not is_nested_name(name):
            raise ConfigError(
                f"{name!r} cannot name a tracked object: expected 1 to 100 printable bytes, in one "
                "or more parts between slashes, none of which is empty or begins with a dot"
            )
        if name == PROCESS_RNG:
            raise ConfigError(
                f"{name!r} is the name of the process's own generators, which are saved anyway "
                "(track_rng=False leaves them out, under the same name): choose another"
            )
        if name in self.names or name in self.excluded:
            raise ConfigError(f"{name!r} is tracked or excluded already")
