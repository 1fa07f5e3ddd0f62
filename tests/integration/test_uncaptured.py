"""State that lies beside what is tracked, and tracked objects that were replaced, are found."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import pyengine
from pyengine import errors


class RunningMeanStd:
    """A normaliser of one's own, without methods for its state."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = np.zeros(2), np.ones(2), 0


class ReplaySampler:
    """Draws, and can say where it is."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Agent:
    """What a script has in one place, tracked part by part."""

    def __init__(self) -> None:
        self.net = nn.Linear(3, 2)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.steps = 0
        self.parts: dict[str, Any] = {}


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def engine(tmp_path: Path, agent: Agent) -> Iterator[pyengine.SnapshotEngine]:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=agent.net, target=agent.target, optimizer=agent.optimizer)
        engine.watch(agent=agent)
        engine.restore()
        yield engine


def test_an_owner_whose_parts_are_all_tracked_is_saved(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    for step in range(3):
        agent.steps += 1
        agent.parts[f"note {step}"] = [1.5, "text", np.zeros(3), torch.zeros(3)]
        assert engine.snapshot(step).wait(60).global_step == step


FORGOTTEN: list[tuple[str, Callable[[Agent], object]]] = [
    ("module", lambda agent: nn.Linear(2, 2)),
    ("optimizer", lambda agent: torch.optim.SGD(agent.target.parameters(), lr=1.0)),
    ("scheduler", lambda agent: torch.optim.lr_scheduler.StepLR(agent.optimizer, 5)),
    ("gradient scaler", lambda agent: torch.amp.GradScaler("cpu")),
    ("random generator", lambda agent: np.random.default_rng(3)),
    ("random generator", lambda agent: torch.Generator()),
    ("normaliser", lambda agent: RunningMeanStd()),
    ("sampler", lambda agent: ReplaySampler()),
    ("parameter", lambda agent: nn.Parameter(torch.zeros(1))),
    ("replay buffer", lambda agent: pyengine.ReplayBuffer({"reward": "float32"}, 64)),
]


@pytest.mark.parametrize("place", ["attribute", "dict", "list"])
@pytest.mark.parametrize(("sort", "make"), FORGOTTEN)
def test_what_an_owner_holds_and_nobody_saves_is_an_error(
    engine: pyengine.SnapshotEngine,
    agent: Agent,
    sort: str,
    make: Callable[[Agent], object],
    place: str,
) -> None:
    engine.snapshot(0).wait(60)
    extra = make(agent)
    if place == "attribute":
        agent.extra = extra  # type: ignore[attr-defined]
    else:
        agent.parts["extra"] = extra if place == "dict" else [extra]
    path = {"attribute": "agent.extra", "dict": "agent.parts.extra", "list": "agent.parts.extra.0"}
    with pytest.raises(errors.UncapturedStateError) as raised:
        engine.snapshot(1)
    assert (raised.value.path, raised.value.sort) == (path[place], sort)
    assert f"engine.exclude({path[place]!r}" in str(raised.value)
    with pytest.raises(errors.UncapturedStateError):  # each time, until something was done
        engine.snapshot(1)
    engine.exclude(path[place], "the test wants it so", harmless=True)
    assert engine.snapshot(1).wait(60).level.name == "state-complete"


def test_a_tick_that_takes_a_snapshot_finds_it_and_others_do_not_look(tmp_path: Path) -> None:
    agent = Agent()
    with pyengine.SnapshotEngine(tmp_path / "run", every_steps=10, budget=None) as engine:
        engine.track(net=agent.net, optimizer=agent.optimizer)
        engine.watch(agent=agent)
        engine.restore()
        assert engine.tick(5) is None
        with pytest.raises(errors.UncapturedStateError, match=r"agent\.target is a torch.*Linear"):
            engine.tick(10)
        engine.track(target=agent.target)
        assert engine.tick(20) is not None


def test_a_tracked_generator_inside_counters_is_saved(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    agent.parts["rng"] = np.random.default_rng(1)
    engine.track(more={"rng": agent.parts["rng"]})
    engine.snapshot(0).wait(60)


def test_generators_of_the_process_need_not_be_tracked(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    agent.parts["rng"] = np.random.mtrand._rand
    agent.parts["torch"] = torch.default_generator
    engine.snapshot(0).wait(60)


def test_a_module_that_torch_does_not_know_as_a_part_is_found(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.layers = [nn.Linear(2, 2), nn.Linear(2, 1)]  # a list is no ModuleList
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net)
        engine.restore()
        with pytest.raises(errors.UncapturedStateError) as raised:
            engine.snapshot(0)
        assert raised.value.path == "net.layers.0"
        assert raised.value.others == ("net.layers.1",)
        assert "net.layers.1 (module)" in str(raised.value)


def test_modules_are_looked_into_however_deep_and_wide_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = nn.Linear(1, 1)
    net: nn.Module = inner
    for _ in range(20):
        net = nn.Sequential(net)
    wide = nn.ModuleList([nn.Linear(1, 1) for _ in range(200)])
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net, wide=wide)
        engine.restore()
        engine.snapshot(0).wait(60)
        assert "ended early" not in caplog.text
        for found in (inner, wide[150]):
            found.rng = np.random.default_rng()
            with pytest.raises(errors.UncapturedStateError) as raised:
                engine.snapshot(1)
            assert raised.value.path == {id(inner): "net" + ".0" * 20 + ".rng"}.get(
                id(found), "wide.150.rng"
            )
            del found.rng
        wide[3] = nn.Linear(1, 1)  # known to torch, and saved
        wide[3].rng = np.random.default_rng()
        with pytest.raises(errors.UncapturedStateError, match=r"wide\.3\.rng"):
            engine.snapshot(2)


def test_a_look_that_has_a_bound_says_where_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent()
    deep: dict[str, Any] = {"rng": np.random.default_rng()}
    for _ in range(10):
        deep = {"in": deep}
    agent.parts = deep
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=agent.net, target=agent.target, optimizer=agent.optimizer)
        engine.watch(agent=agent)
        engine.restore()
        engine.snapshot(0).wait(60)
    assert "the look for state that no snapshot holds ended early: agent" in caplog.text


class Member:
    """One of many, with a network of its own."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)


@pytest.mark.parametrize("kind", ["list", "dict", "deque"])
def test_the_first_of_many_parts_are_looked_at_and_a_warning_names_where_the_look_ends(
    engine: pyengine.SnapshotEngine, agent: Agent, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    members = [Member() for _ in range(100)]
    agent.parts["all"] = {
        "list": members,
        "dict": dict(enumerate(members)),
        "deque": deque(members),
    }[kind]
    with pytest.raises(errors.UncapturedStateError) as raised:
        engine.snapshot(0)
    assert raised.value.path == "agent.parts.all.0.net"
    assert len(raised.value.others) == 7
    engine.track(members={str(i): one.net for i, one in enumerate(members)})
    engine.snapshot(0).wait(60)
    assert caplog.text.count("ended early: agent.parts.all: only the first 8 items") == 1
    members[3].net = nn.Linear(1, 1)
    with pytest.raises(errors.ReplacedObjectError, match=r"agent\.parts\.all\.3\.net"):
        engine.snapshot(1)


def test_a_part_far_back_among_much_data_is_warned_of_and_mere_data_is_not(
    engine: pyengine.SnapshotEngine, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.parts["losses"] = [0.5] * 1000
    agent.parts["memory"] = deque((np.zeros(3), step, [1.0]) for step in range(1000))
    engine.snapshot(0).wait(60)
    assert "ended early" not in caplog.text
    agent.parts["options"] = {str(i): i for i in range(100)} | {"net": nn.Linear(1, 1)}
    engine.snapshot(1).wait(60)
    assert "ended early: agent.parts.options: only the first 8 items" in caplog.text


class Pair(NamedTuple):
    """Two networks of one agent."""

    actor: Any
    critic: Any


class Nets(dict[str, Any]):
    """A dict of one's own, that gives what it likes."""

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no look needs it")

    def values(self) -> Any:
        raise RuntimeError("no look needs it")


class Row(list[Any]):
    """A list of one's own."""


class Queue(deque[Any]):
    """A deque of one's own."""


class Bag(set[Any]):
    """A set of one's own."""


CONTAINERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("0", lambda net: Pair(net, None)),
    ("net", lambda net: Nets(net=net)),
    ("0", lambda net: Row([net])),
    ("0", lambda net: Queue([net])),
    ("0", lambda net: Bag([net])),
    ("0", lambda net: frozenset([net])),
    ("net", lambda net: OrderedDict(net=net)),
    ("net", lambda net: defaultdict(list, net=net)),
]


@pytest.mark.parametrize(("place", "hold"), CONTAINERS)
def test_containers_of_ones_own_hide_nothing(
    engine: pyengine.SnapshotEngine, agent: Agent, place: str, hold: Callable[[Any], Any]
) -> None:
    engine.snapshot(0).wait(60)
    agent.parts["nets"] = hold(nn.Linear(1, 1))
    with pytest.raises(errors.UncapturedStateError) as raised:
        engine.snapshot(1)
    assert raised.value.path == f"agent.parts.nets.{place}"
    agent.parts["nets"] = hold(agent.target)
    for step in (1, 2):  # walked, then compared
        engine.snapshot(step).wait(60)


def test_attributes_of_a_list_of_ones_own_are_looked_at(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    agent.parts["nets"] = row = Row([agent.target])
    engine.snapshot(0).wait(60)
    row.rng = np.random.default_rng()  # type: ignore[attr-defined]
    with pytest.raises(errors.UncapturedStateError, match=r"agent\.parts\.nets\.rng"):
        engine.snapshot(1)


class Trainer:
    """Has a step and a reset, and is no environment."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)

    def step(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError


class Maze(Trainer):
    """An environment: it says what goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = 4


def test_a_learner_with_a_step_and_a_reset_is_no_environment(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    agent.parts["env"] = Maze()
    engine.snapshot(0).wait(60)
    agent.parts["trainer"] = Trainer()
    with pytest.raises(errors.UncapturedStateError) as raised:
        engine.snapshot(1)
    assert (raised.value.path, raised.value.others) == ("agent.parts.trainer.net", ())


def test_a_scheduler_of_an_optimizer_that_is_not_saved_is_found(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    inner = torch.optim.lr_scheduler.ConstantLR(optimizer)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [inner, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
    )
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=net, scheduler=scheduler)
        engine.restore()
        with pytest.raises(errors.UncapturedStateError) as raised:
            engine.snapshot(0)
        assert (raised.value.path, raised.value.sort) == ("scheduler.optimizer", "optimizer")
        engine.track(optimizer=optimizer)
        engine.snapshot(0).wait(60)


class Learner:
    """Gives its own state, of which it forgets something."""

    def __init__(self, *, forgets: bool) -> None:
        self.net = nn.Linear(3, 2)
        self._optimizer = torch.optim.Adam(self.net.parameters())
        self.critic = nn.Linear(3, 1)
        self._forgets = forgets

    def get_state(self) -> dict[str, Any]:
        state = {"weights": [p.detach().clone() for p in self.net.parameters()], "opt": 3}
        return state if self._forgets else state | {"critic": self.critic.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("forgets", [False, True])
def test_an_object_with_methods_is_believed_but_for_what_its_state_shows_no_trace_of(
    tmp_path: Path, forgets: bool
) -> None:
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(learner=Learner(forgets=forgets))
        engine.restore()
        if not forgets:
            engine.snapshot(0).wait(60)
            return
        with pytest.raises(errors.UncapturedStateError) as raised:
            engine.snapshot(0)
        assert (raised.value.path, raised.value.others) == ("learner.critic", ())


def test_a_new_optimizer_on_the_owner_is_found(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    engine.snapshot(0).wait(60)
    agent.optimizer = torch.optim.Adam(agent.net.parameters(), lr=1e-4)
    with pytest.raises(errors.ReplacedObjectError, match="tracked as 'optimizer'") as raised:
        engine.snapshot(1)
    assert (raised.value.path, raised.value.component) == ("agent.optimizer", "optimizer")


def test_another_owner_under_the_same_name_is_looked_at(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    engine.snapshot(0).wait(60)
    other = copy.copy(agent)
    engine.watch(agent=other)
    engine.snapshot(1).wait(60)
    other = copy.copy(agent)
    other.second = torch.optim.Adam(agent.net.parameters())  # type: ignore[attr-defined]
    engine.watch(agent=other)
    with pytest.raises(errors.UncapturedStateError, match=r"agent\.second"):
        engine.snapshot(2)
    other = copy.copy(agent)
    other.optimizer = torch.optim.Adam(agent.net.parameters())
    engine.watch(agent=other)
    with pytest.raises(errors.ReplacedObjectError, match=r"agent\.optimizer is another"):
        engine.snapshot(2)
    engine.watch(agent=agent)
    engine.snapshot(2).wait(60)


def test_a_target_network_that_was_bound_anew_is_found(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    engine.snapshot(0).wait(60)
    agent.target = copy.deepcopy(agent.net)
    with pytest.raises(errors.ReplacedObjectError, match=r"agent\.target is another module"):
        engine.snapshot(1)


def test_a_compiled_copy_that_shares_the_parameters_is_none_and_a_deep_copy_is_one(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    engine.snapshot(0).wait(60)
    net = agent.net
    agent.net = torch.compile(net, backend="eager")  # type: ignore[assignment]
    engine.snapshot(1).wait(60)
    agent.net = torch.compile(copy.deepcopy(net), backend="eager")  # type: ignore[assignment]
    with pytest.raises(errors.ReplacedObjectError, match=r"agent\.net is another module"):
        engine.snapshot(2)


def test_a_replay_buffer_that_was_exchanged_is_found(tmp_path: Path) -> None:
    agent = Agent()
    ring = pyengine.ReplayBuffer({"reward": "float32"}, 64)
    agent.parts["replay"] = ring
    with pyengine.SnapshotEngine(tmp_path / "run") as engine:
        engine.track(net=agent.net, target=agent.target, optimizer=agent.optimizer, replay=ring)
        engine.watch(agent=agent)
        engine.restore()
        engine.snapshot(0).wait(60)
        agent.parts["replay"] = pyengine.ReplayBuffer({"reward": "float32"}, 64)
        with pytest.raises(errors.ReplacedObjectError, match="tracked as 'replay'"):
            engine.snapshot(1)


def test_an_exclusion_covers_what_lies_below_it(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    agent.parts["probe"] = {"net": nn.Linear(2, 2), "rng": np.random.default_rng()}
    engine.exclude("agent.parts.probe", "made anew each time")
    assert engine.snapshot(0).wait(60).level.name == "partial"


def test_a_space_of_an_owner_that_draws_is_found_and_one_of_a_module_is_not(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    policy = nn.Linear(1, 1)
    policy.action_space = spaces.Discrete(2, seed=3)
    engine.track(policy=policy)
    agent.parts["space"] = spaces.Discrete(3)
    engine.snapshot(0).wait(60)
    agent.parts["space"].sample()
    agent.parts["another"] = {}
    with pytest.raises(errors.UncapturedStateError, match=r"agent\.parts\.space\._np_random"):
        engine.snapshot(1)


def test_what_has_no_attributes_cannot_be_watched(engine: pyengine.SnapshotEngine) -> None:
    for nothing in (3, Agent, [1]):
        with pytest.raises(errors.ConfigError, match="no attributes to watch"):
            engine.watch(owner=nothing)
    with pytest.raises(errors.ConfigError, match="cannot name"):
        engine.watch(**{"a/b": Agent()})


def test_a_look_at_what_has_not_changed_walks_nothing(
    engine: pyengine.SnapshotEngine, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyengine.capture import reachable

    walks = []
    visit = reachable._Walk.visit

    def counted(self: Any, value: Any, path: str, root: Any, depth: int) -> None:
        walks.append(path)
        visit(self, value, path, root, depth)

    monkeypatch.setattr(reachable._Walk, "visit", counted)
    engine.snapshot(0).wait(60)
    first = len(walks)
    assert first > 0
    agent.steps += 1
    agent.parts["loss"] = 0.5
    engine.snapshot(1).wait(60)
    assert len(walks) == first
    agent.parts["inner"] = {"loss": 0.5}
    engine.snapshot(2).wait(60)
    assert len(walks) > first


def test_other_threads_may_change_what_is_looked_at(agent: Agent) -> None:
    from pyengine.capture.reachable import Reachable, Root

    rows: deque[Any] = deque(maxlen=50)
    names: set[Any] = set()
    agent.parts.update(rows=rows, names=names)
    agent.net = agent.target = agent.optimizer = None  # type: ignore[assignment]
    is_over = threading.Event()
    changes = 0

    def collect() -> None:
        nonlocal changes
        while not is_over.is_set():
            item = (changes, {})
            agent.parts[f"row {changes % 7}"] = item
            agent.parts.pop(f"row {(changes + 3) % 7}", None)
            setattr(agent, f"row_{changes % 5}", item)
            agent.__dict__.pop(f"row_{(changes + 2) % 5}", None)
            rows.append(item)
            names.add(frozenset((changes,)))
            if len(names) > 40:
                names.clear()
            changes += 1

    collector = threading.Thread(target=collect)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    collector.start()
    try:
        look = Reachable()
        for _ in range(3000):
            look.check([Root("agent", agent, is_owner=True)], {}, [], {}, ())
    finally:
        is_over.set()
        collector.join()
        sys.setswitchinterval(interval)
    assert changes > 100


def test_what_was_met_ends_with_its_owner_and_what_takes_its_place_is_looked_at(
    engine: pyengine.SnapshotEngine, agent: Agent
) -> None:
    for step in range(3):  # the new one may get the address of the one that ended
        agent.parts["note"] = Note()
        engine.snapshot(step).wait(60)
        met = weakref.ref(agent.parts["note"])
        del agent.parts["note"]
        assert met() is None


class Note:
    """Something with attributes that is no state."""


def test_closing_lets_go_of_everything_that_was_met(tmp_path: Path) -> None:
    agent = Agent()
    note = Note()
    agent.parts["inner"] = [note]  # a list takes no weak reference
    engine = pyengine.SnapshotEngine(tmp_path / "run")
    engine.track(net=agent.net, target=agent.target, optimizer=agent.optimizer)
    engine.watch(agent=agent)
    engine.restore()
    engine.snapshot(0).wait(60)
    met, owner = weakref.ref(note), weakref.ref(agent)
    del note
    agent.parts.pop("inner")
    assert met() is not None
    engine.close()
    assert met() is None
    del agent
    gc.collect()
    assert owner() is None
