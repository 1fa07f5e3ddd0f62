"""Settings of an engine that an adapter makes later: refused where the script says them."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import pyengine
from pyengine.engine.options import EngineOptions
from pyengine.errors import ConfigError


def check_settings(
    adapter: str, run_dir: str, settings: Mapping[str, Any], *, library: str, whose: str
) -> None:
    """Refuse what the engine would refuse, before anything is trained: ConfigError.

    `adapter` is the class that was given `settings`; the name of the algorithm is `whose`.
    """
    if "algorithm" in settings:
        raise ConfigError(f"algorithm: it is {whose}, and not to be given")
    try:
        call = signature(pyengine.SnapshotEngine).bind(run_dir, **settings)
    except TypeError as error:
        raise ConfigError(f"{adapter}: {error}") from error
    call.apply_defaults()
    EngineOptions.check(**call.arguments)
    refuse_dropping(call.arguments["on_damage"], library)


def refuse_dropping(on_damage: str, library: str) -> None:
    """Raise ConfigError for rings whose draws are the library's own."""
    if on_damage != "raise":
        raise ConfigError(
            f"on_damage='drop' leaves rows out of the ring's own draws; {library} draws rows by "
            "itself, and would still ask for them: leave it at 'raise'"
        )
