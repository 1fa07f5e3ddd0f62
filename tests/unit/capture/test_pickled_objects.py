"""Objects that are saved by pickle: which can be, and what a restore does to the live ones."""

from __future__ import annotations

import fractions
import pickle
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from pyengine.capture.build import build_component
from pyengine.capture.load import load_component
from pyengine.capture.pickled import Pickled
from pyengine.errors import (
    CaptureError,
    ConfigError,
    DamageError,
    PickleRefusedError,
    StateMismatchError,
    UntrackableError,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "v2" / "components"


class Curriculum:
    def __init__(self, level):
        self.level = level
        self.stages = [level, {"goal": np.arange(3)}]


class Harder(Curriculum):
    pass


class Slotted:
    __slots__ = ("__dict__", "level")


class Table(dict):
    pass


class Guarded:
    """Refuses changes, and gives something back at its end."""

    ended: ClassVar[list[str]] = []

    def __init__(self, name):
        self.__dict__["name"] = name

    def __setattr__(self, name, value):
        raise TypeError("read-only")

    def __del__(self):
        self.ended.append(self.name)


def test_an_object_gets_its_attributes_back_in_place(snapshot):
    live = Curriculum(3)
    taken = snapshot(curriculum=Pickled(live))
    assert list(taken.files) == ["legacy/curriculum.pkl", "meta.json"]
    live.level, live.later = 4, "gone"
    taken.restore({"curriculum": Pickled(live)})
    assert (live.level, live.stages[0]) == (3, 3)
    assert live.stages[1]["goal"].tolist() == [0, 1, 2]
    assert not hasattr(live, "later")


def test_the_state_is_that_of_the_cut(snapshot):
    live = Curriculum(3)
    taken = snapshot(curriculum=Pickled(live))
    live.stages.clear()
    taken.restore({"curriculum": Pickled(live)})
    assert len(live.stages) == 2


def test_read_only_objects_come_back_and_their_twin_ends_with_the_former_state(snapshot):
    live = Guarded("saved")
    taken = snapshot(guarded=Pickled(live))
    live.__dict__["name"] = "former"
    Guarded.ended.clear()
    taken.restore({"guarded": Pickled(live)})
    assert live.name == "saved"
    assert Guarded.ended == ["former"]


def test_functions_give_and_take_any_picklable_value(snapshot):
    box = [fractions.Fraction(3, 7)]
    pickled = Pickled(get=lambda: box[0], set=lambda value: box.append(value))
    snapshot(ratio=pickled).restore({"ratio": pickled})
    assert box[1] == box[0]
    assert box[1] is not box[0]


def test_check_refuses_before_anything_is_set(snapshot):
    def check(state):
        raise ValueError("too old")

    box = []
    pickled = Pickled(get=lambda: 1, set=box.append, check=check)
    with pytest.raises(StateMismatchError, match="ValueError: too old") as caught:
        snapshot(x=pickled).restore({"x": pickled})
    assert (caught.value.component, box) == ("x", [])


def test_another_type_is_a_mismatch_and_changes_nothing(snapshot):
    live = Harder(1)
    with pytest.raises(StateMismatchError, match=r"Curriculum for a .*Harder"):
        snapshot(x=Pickled(Curriculum(2))).restore({"x": Pickled(live)})
    assert live.level == 1


@pytest.mark.parametrize(
    "value",
    [1, "text", [1], (1,), Table(a=1), Slotted(), random.Random(), np.arange(2), Curriculum],
)
def test_state_outside_of_attributes_needs_functions(value):
    with pytest.raises(ConfigError, match=r"Pickled\(get="):
        Pickled(value)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"get": print}, {"set": print}, {"get": print, "set": 1},
     {"get": print, "set": print, "check": 1}, {"value": Curriculum(1), "set": print}],
)  # fmt: skip
def test_other_combinations_of_arguments_are_refused(arguments):
    with pytest.raises(ConfigError, match="object, or functions"):
        Pickled(**arguments)


def test_an_object_that_refers_to_itself_is_told_at_once():
    live = Curriculum(1)
    live.stages.append(live)
    with pytest.raises(CaptureError, match="refer back to it") as caught:
        build_component("curriculum", Pickled(live))
    assert caught.value.component == "curriculum"


def test_functions_may_give_an_object_that_refers_to_itself(snapshot):
    live, box = Curriculum(1), []
    live.stages.append(live)
    pickled = Pickled(get=lambda: live, set=box.append)
    snapshot(x=pickled).restore({"x": pickled})
    assert box[0].stages[2] is box[0]


def test_what_cannot_be_pickled_is_told_at_once():
    live = Curriculum(1)
    live.stages.append(lambda: None)
    with pytest.raises(CaptureError, match="cannot be pickled"):
        build_component("curriculum", Pickled(live))


def test_errors_of_get_come_through_as_they_are():
    def get():
        raise ZeroDivisionError

    component = build_component("x", Pickled(get=get, set=print))
    with pytest.raises(ZeroDivisionError):
        component.capture()


def test_objects_without_methods_are_refused_with_a_word_about_pickle():
    with pytest.raises(UntrackableError, match=r"pyengine\.Pickled"):
        build_component("curriculum", Curriculum(1))


def test_every_shortened_pickle_is_a_mismatch(snapshot):
    taken = snapshot(x=Pickled(Curriculum(1)))
    data = taken.files["legacy/x.pkl"]
    component = build_component("x", Pickled(Curriculum(2)))
    for length in range(len(data)):
        with pytest.raises(StateMismatchError, match="cannot be read here"):
            component.decode({"legacy/x.pkl": data[:length]})


def test_a_class_that_is_gone_is_told_by_name():
    data = pickle.dumps(Curriculum(1), 2).replace(b"Curriculum", b"Vanished")
    component = build_component("x", Pickled(Curriculum(2)))
    with pytest.raises(StateMismatchError, match="Vanished"):
        component.decode({"legacy/x.pkl": data})


def test_a_missing_pickle_is_damage():
    with pytest.raises(DamageError, match="lacks this file"):
        build_component("x", Pickled(Curriculum(2))).decode({})
    with pytest.raises(DamageError, match="lacks this file"):
        load_component({}, "x", "pickle", may_unpickle=True)


def test_the_golden_pickle_is_read_with_permission_alone():
    files = {"legacy/ratio.pkl": (GOLDEN / "legacy" / "ratio.pkl").read_bytes()}
    with pytest.raises(PickleRefusedError, match=r"allow_pickle=\['ratio'\]") as caught:
        load_component(files, "ratio", "pickle")
    assert caught.value.component == "ratio"
    assert load_component(files, "ratio", "pickle", may_unpickle=True) == fractions.Fraction(3, 7)


def test_this_version_still_writes_the_golden_pickle(snapshot):
    taken = snapshot(ratio=Pickled(get=lambda: fractions.Fraction(3, 7), set=print))
    assert taken.files["legacy/ratio.pkl"] == (GOLDEN / "legacy" / "ratio.pkl").read_bytes()
