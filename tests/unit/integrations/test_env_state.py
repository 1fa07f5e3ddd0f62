"""What of a gymnasium environment is saved, and what is refused."""

from __future__ import annotations

import collections
import functools
import random
import re
import socket
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces

from pyengine.errors import CaptureError, ConfigError, StateMismatchError
from pyengine.integrations.gymnasium import EnvState, StatefulEnv

Point = collections.namedtuple("Point", "x y")


class Toy(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, **attributes: Any) -> None:
        self.action_space = spaces.Discrete(2)
        self.__dict__.update(attributes)

    def hello(self) -> str:
        return "hello"


class Slotted(Toy):
    __slots__ = ("spare",)


class Other(Toy):
    pass


class Helper:
    """A class of the user: its identity might matter, so it is not taken apart."""


class MyList(list[int]):
    pass


def moved(saved: Toy, live: Toy) -> Toy:
    """Put the state of one into another and return that."""
    EnvState(live).set_state(EnvState(saved).get_state())
    return live


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (socket.socket(), "socket"),
        (threading.Lock(), "lock"),
        (iter([1]), "list_iterator"),
        (Helper(), "Helper"),
        ([1, {"deep": Helper()}], r"deep.*Helper"),
        (MyList([1]), "MyList"),
        ({Helper(): 1}, "as a key"),
        (memoryview(b"abc"), "memoryview"),
        (np.frombuffer(bytearray(8), np.uint8), "its memory belongs to a bytearray"),
        (np.ma.masked_array([1.0]), "is a view of, a MaskedArray"),
        (collections.defaultdict(lambda: 1), "default factory"),
        (random.SystemRandom(), "SystemRandom"),
        (functools.partial(print, Helper()), "Helper"),
    ],
)
def test_what_is_not_plain_is_an_obstacle_that_names_the_attribute(value: Any, word: str) -> None:
    state = EnvState(Toy(thing=value))
    (obstacle,) = state.obstacles
    assert obstacle.startswith("Toy.thing")
    assert re.search(word, obstacle)
    with pytest.raises(CaptureError, match="thing"):
        state.get_state()


def test_the_path_of_an_obstacle_leads_through_the_wrappers() -> None:
    env = gymnasium.wrappers.TimeLimit(Toy(lock=threading.Lock()), 5)
    assert EnvState(env).obstacles[0].startswith("TimeLimit.env.lock: ")


def test_a_variable_in_a_closure_is_state() -> None:
    def counter(start: int) -> Any:
        count = [start]
        return lambda: count.append(len(count)) or len(count)

    saved, live = Toy(count=counter(1)), Toy(count=counter(1))
    for _ in range(3):
        saved.count()
    assert moved(saved, live).count() == 5
    assert saved.count() == 5


def test_a_lock_in_a_closure_is_an_obstacle() -> None:
    lock = threading.Lock()
    assert "<lock>" in EnvState(Toy(act=lambda: lock)).obstacles[0]


def test_views_go_on_sharing_memory_in_their_layout() -> None:
    def make(fill: float) -> Toy:
        grid = np.asfortranarray(np.full((3, 4), fill))
        return Toy(corner=grid[1:, ::-2], grid=grid, flat=grid.reshape(-1, order="F"))

    live = moved(make(3), make(0))
    assert live.grid.flags.f_contiguous
    assert live.corner.strides == make(0).corner.strides
    live.corner[:] = 7
    assert (live.grid == 7).sum() == (live.flat == 7).sum() == 4


def test_a_read_only_array_stays_read_only() -> None:
    fixed = np.arange(3)
    fixed.flags.writeable = False
    live = moved(Toy(fixed=fixed), Toy(fixed=np.zeros(3)))
    assert not live.fixed.flags.writeable
    assert live.fixed.tolist() == [0, 1, 2]


def test_what_is_shared_stays_shared() -> None:
    rng, items = np.random.default_rng(5), [1]
    saved = Toy(rng=rng, also=rng, items=items, more={"same": items}, _np_random=rng)
    live = moved(saved, Toy(rng=None, also=None, items=[], more={}))
    assert live.rng is live.also is live.np_random
    assert live.more["same"] is live.items
    assert live.rng.random() == rng.random()


def test_a_generator_of_the_process_stays_the_one_of_the_process() -> None:
    saved = Toy(rng=np.random.mtrand._rand, dice=random.random.__self__)
    live = moved(saved, Toy(rng=None, dice=None))
    assert live.rng is np.random.mtrand._rand
    assert live.dice is random.random.__self__


def test_plain_values_come_back_with_their_types() -> None:
    values = {
        "point": Point(1, np.float32(2)),
        "table": {1: "a", (2, 3): None},
        "queue": collections.deque([1, 2], maxlen=2),
        "counter": collections.Counter("aab"),
        "ordered": collections.OrderedDict(b=1, a=2),
        "marked": {"@": "node"},
        "group": {3, 1, 2},
        "raw": bytearray(b"xy"),
        "objects": np.array([1, "a", None], dtype=object),
        "empty": np.zeros((0, 3)),
    }
    live = moved(Toy(**values), Toy())
    for name, value in values.items():
        assert type(getattr(live, name)) is type(value)
        assert repr(getattr(live, name)) == repr(value)


def test_a_state_does_not_change_with_later_steps() -> None:
    env = Toy(numbers=[1], array=np.zeros(2), rng=np.random.default_rng(1))
    state = EnvState(env).get_state()
    expected = np.random.default_rng(1).random()
    env.numbers.append(2)
    env.array += 1
    env.rng.random()
    EnvState(env).set_state(state)
    assert (env.numbers, env.array.tolist(), env.rng.random()) == ([1], [0, 0], expected)


def test_attributes_that_came_later_go_and_slots_come_back() -> None:
    saved, live = Slotted(), Slotted(late=1)
    saved.spare = 4
    assert not hasattr(moved(saved, live), "late")
    assert live.spare == 4


def test_a_bound_method_is_bound_to_the_live_environment() -> None:
    saved = Toy()
    saved.act = saved.hello
    live = moved(saved, Toy(act=None))
    assert live.act.__self__ is live


def test_a_method_of_a_generator_is_bound_to_the_restored_one() -> None:
    rng = np.random.default_rng(4)
    live = moved(Toy(rng=rng, draw=rng.random), Toy(rng=None, draw=None))
    assert live.draw() == rng.random()
    assert live.rng.random() == rng.random()


def test_generators_of_spaces_go_on() -> None:
    saved, live = (
        Toy(observation_space=spaces.Dict(a=spaces.Discrete(9), b=spaces.Box(0, 1)))
        for _ in range(2)
    )
    saved.observation_space.seed(3)
    moved(saved, live)
    assert live.observation_space.sample() == saved.observation_space.sample()


def test_another_environment_is_refused_and_stays_as_it_is() -> None:
    state = EnvState(Toy(count=1)).get_state()
    live = Other(count=2)
    with pytest.raises(StateMismatchError, match=r"Toy.*another object") as caught:
        EnvState(live).set_state(state)
    assert "nothing" in str(caught.value)
    assert live.count == 2


def test_other_spaces_are_refused_by_name() -> None:
    state = EnvState(Toy(action_space=spaces.Discrete(3))).get_state()
    with pytest.raises(StateMismatchError, match=r"Discrete\(2\).*Discrete\(3\)"):
        EnvState(Toy()).check_state(state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.update(format=2),
        lambda state: state.pop("nodes"),
        lambda state: state["nodes"][0]["held"].update(x={"@": "node", "v": 99}),
        lambda state: state["nodes"][0]["held"].update(x={"@": "array"}),
        lambda state: state["nodes"][0]["held"].update(x={"@": "unheard of"}),
        lambda state: state["nodes"][0].update(paths=["elsewhere"]),
    ],
)
def test_a_malformed_state_is_refused_before_a_change(damage: Any) -> None:
    state = EnvState(Toy(count=1)).get_state()
    damage(state)
    live = Toy(count=2)
    with pytest.raises(StateMismatchError):
        EnvState(live).set_state(state)
    assert live.count == 2


def test_a_window_beyond_its_memory_is_refused() -> None:
    state = EnvState(Toy(view=np.arange(8)[2:4])).get_state()
    state["nodes"][0]["held"]["view"]["offset"] = 60
    with pytest.raises(StateMismatchError):
        EnvState(Toy(view=None)).set_state(state)


class Sharing(Toy):
    CODES: Any = {1: "a", (2, 3): ["b"]}  # noqa: RUF012
    visits: Any = []  # noqa: RUF012


class SharingRng(Toy):
    rng = np.random.default_rng(1)


def test_a_class_attribute_that_changes_is_an_obstacle(monkeypatch: Any) -> None:
    monkeypatch.setattr(Sharing, "visits", [])
    state = EnvState(Sharing())
    assert state.obstacles == ()
    Sharing.visits.append(1)
    assert "Sharing.visits: an attribute of a class" in state.obstacles[0]


def test_a_class_attribute_that_differs_is_refused(monkeypatch: Any) -> None:
    state = EnvState(Sharing()).get_state()
    EnvState(Sharing()).check_state(state)
    monkeypatch.setattr(Sharing, "visits", [1])
    with pytest.raises(StateMismatchError, match=r"Sharing\.visits differs"):
        EnvState(Sharing()).check_state(state)


class Moody(Toy):
    def get_state(self) -> Any:
        raise RuntimeError("not in the mood")

    def set_state(self, state: Any) -> None: ...


def test_a_get_state_that_raises_is_an_obstacle() -> None:
    assert "RuntimeError: not in the mood" in EnvState(Moody()).obstacles[0]


def test_another_map_is_refused() -> None:
    make = functools.partial(gymnasium.make, "FrozenLake-v1")
    state = EnvState(make(map_name="4x4", is_slippery=True)).get_state()
    with pytest.raises(StateMismatchError, match=r"\.P differs"):
        EnvState(make(map_name="4x4", is_slippery=False)).check_state(state)


def test_a_generator_that_belongs_to_a_class_is_an_obstacle() -> None:
    assert "SharingRng.rng" in EnvState(SharingRng()).obstacles[0]


@pytest.mark.parametrize("probability", [0.0, 0.25])
def test_sticky_actions_of_the_emulator_are_an_obstacle(probability: float) -> None:
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    env = gymnasium.make("ALE/Pong-v5", repeat_action_probability=probability)
    found = EnvState(env).obstacles
    assert bool(found) == (probability > 0)
    assert all("StickyActionEnv" in obstacle for obstacle in found)


def test_stateful_env_tells_errors_as_text() -> None:
    good, bad = StatefulEnv(Toy()), StatefulEnv(Toy(lock=threading.Lock()))
    state, error = good.try_get_state()
    assert error is None
    assert good.try_check_state(state) is None
    assert "lock" in bad.try_get_state()[1]
    assert "another object" in StatefulEnv(Other()).try_check_state(state)


class Hidden(Toy):
    """An environment whose state no attribute shows."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = iter(range(1, 1000))
        self.count = 0

    def step(self, action: Any) -> Any:
        self.count = next(self.hidden)
        return np.zeros(1), float(self.count), False, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1), {}


def put_hidden(env: Hidden, state: Any) -> None:
    env.hidden = iter(range(state + 1, 1000))
    env.count = state


def hidden(**options: Any) -> StatefulEnv:
    env = StatefulEnv(gymnasium.wrappers.TimeLimit(Hidden(), 50), **options)
    env.reset(seed=1)
    return env


def test_functions_of_the_user_give_and_take_what_no_attribute_shows() -> None:
    functions = {"get": lambda env: env.count, "set": put_hidden}
    saved, live = hidden(**functions), hidden(**functions)
    for _ in range(7):
        saved.step(0)
    assert saved.left_out == ()
    live.set_state(saved.get_state())
    assert live.step(0)[1] == saved.step(0)[1] == 8
    assert live.env._elapsed_steps == 8, "the wrapper around it comes back too"
    assert live.np_random.random() == saved.np_random.random()


def test_functions_come_in_pairs() -> None:
    with pytest.raises(ConfigError, match="both"):
        hidden(get=lambda env: env.count)


def test_what_cannot_be_saved_is_refused_or_named_and_left_alone() -> None:
    with pytest.raises(CaptureError, match=r"TimeLimit\.env\.hidden: a range_iterator"):
        hidden().get_state()
    saved, live = hidden(partial=True), hidden(partial=True)
    for _ in range(3):
        saved.step(0)
    assert saved.left_out == ("TimeLimit.env.hidden: a range_iterator cannot be saved",)
    live.set_state(saved.get_state())
    assert (live.unwrapped.count, live.env._elapsed_steps) == (3, 3)
    assert live.step(0)[1] == 1, "as the script made it"


class Moods(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds, in one attribute, what can be saved beside what cannot, and shares a part of it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.items = [1, threading.Lock()]
        self.table = {"items": self.items}
        self.number = 1
        self.moody = Moody()


def test_in_part_means_whole_attributes_and_objects() -> None:
    saved, live = (StatefulEnv(Moods(Toy(count=n)), partial=True) for n in range(2))
    saved.env.number = 2
    kept = live.env.items, live.env.table
    live.set_state(saved.get_state())
    assert (live.env.number, live.unwrapped.count) == (2, 0)
    assert (live.env.items, live.env.table) == kept
    assert live.env.table["items"] is live.env.items
    texts = sorted(saved.left_out)
    assert [text.partition(":")[0] for text in texts] == [
        "Moods.items[1]", "Moods.moody", "Moods.table['items'][1]"
    ]  # fmt: skip


def test_a_changed_class_attribute_is_named_and_left_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(Sharing, "visits", [])
    saved = StatefulEnv(Sharing(count=1), partial=True)
    assert saved.left_out == ()
    Sharing.visits.append(1)
    (text,) = saved.left_out
    assert "Sharing.visits" in text
    live = StatefulEnv(Sharing(count=2), partial=True)
    live.set_state(saved.get_state())
    assert live.unwrapped.count == 1


@pytest.mark.parametrize("probability", [0.0, 0.25])
def test_an_emulator_that_hides_its_state_can_be_left_alone(probability: float) -> None:
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    make = functools.partial(gymnasium.make, "ALE/Pong-v5", repeat_action_probability=probability)
    saved, live = StatefulEnv(make(), partial=True), StatefulEnv(make(), partial=True)
    for env in (saved, live):
        env.reset(seed=1)
    for _ in range(5):
        saved.step(2)
    assert bool(saved.left_out) == (probability > 0)
    live.set_state(saved.get_state())
    here, there = (env.unwrapped.ale.getEpisodeFrameNumber() for env in (live, saved))
    assert (here == there) == (probability == 0)


def test_a_state_that_was_whole_does_not_go_where_a_part_is_left_alone() -> None:
    functions = {"get": lambda env: env.count, "set": put_hidden}
    whole = hidden(**functions).get_state()
    with pytest.raises(StateMismatchError, match="another object"):
        hidden(partial=True).set_state(whole)


def test_a_stateful_environment_in_the_same_process_is_seen_to_by_its_own_rules() -> None:
    functions = {"get": lambda env: env.count, "set": put_hidden}
    saved = gymnasium.wrappers.TimeAwareObservation(hidden(**functions))
    live = gymnasium.wrappers.TimeAwareObservation(hidden(**functions))
    saved.reset()
    for _ in range(4):
        saved.step(0)
    assert EnvState(saved).obstacles == ()
    assert EnvState(gymnasium.wrappers.TimeAwareObservation(hidden())).obstacles
    EnvState(live).set_state(EnvState(saved).get_state())
    assert live.step(0)[1] == saved.step(0)[1] == 5
    other = StatefulEnv(gymnasium.wrappers.TimeLimit(Toy(), 50))
    with pytest.raises(StateMismatchError, match="another"):
        EnvState(live).check_state(
            EnvState(gymnasium.wrappers.TimeAwareObservation(other)).get_state()
        )
