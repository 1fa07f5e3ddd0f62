"""What an engine tracks: names that can be names of files, each for one thing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from pyengine.engine.tracked import Tracked
from pyengine.errors import CaptureError, ConfigError, UncoveredParameterError


def _track(tracked: Tracked, **objects: Any) -> None:
    tracked.add(objects, *tracked.build(objects))


@pytest.mark.parametrize("name", ["", ".hidden", "a//b", "a/.b", "a\\b", "a\nb", "x" * 101])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    tracked = Tracked(track_rng=True)
    with pytest.raises(ConfigError, match="cannot name"):
        tracked.build({name: {}})
    with pytest.raises(ConfigError, match="cannot name"):
        tracked.exclude(name, "no file")


def test_a_name_is_for_one_thing() -> None:
    tracked = Tracked(track_rng=False)
    _track(tracked, a={})
    for name, why in (("a", "already"), ("process_rng", "process's own generators")):
        with pytest.raises(ConfigError, match=why):
            tracked.build({name: {}})


def test_an_object_has_one_name() -> None:
    tracked = Tracked(track_rng=False)
    shared: dict[str, int] = {}
    with pytest.raises(ConfigError, match=r"'a' and 'b'|'b' and 'a'"):
        tracked.build({"a": shared, "b": shared})
    _track(tracked, a=shared)
    with pytest.raises(ConfigError, match="one object"):
        tracked.build({"b": shared})
    _track(tracked, b={})


def test_a_container_of_what_cannot_be_saved_is_refused_at_once() -> None:
    tracked = Tracked(track_rng=False)
    with pytest.raises(CaptureError, match=r"'counters' at /lock: a _thread.lock"):
        tracked.build({"counters": {"lock": threading.Lock()}})
    with pytest.raises(CaptureError, match=r"'counters' at /what: an object"):
        tracked.build({"counters": {"what": object()}})


def test_a_rehearsal_finds_parameters_that_nobody_saves() -> None:
    tracked = Tracked(track_rng=False)
    net = torch.nn.Linear(2, 2)
    _track(tracked, optimizer=torch.optim.Adam(net.parameters()))
    with pytest.raises(UncoveredParameterError):
        tracked.rehearse()
    _track(tracked, net=net)
    tracked.rehearse()
