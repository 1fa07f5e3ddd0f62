"""What an engine tracks: names that can be names of files, each for one thing."""

from __future__ import annotations

import pytest

from pyengine.engine.tracked import Tracked
from pyengine.errors import ConfigError


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a\\b", "a\nb", "x" * 101])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    tracked = Tracked(track_rng=True)
    with pytest.raises(ConfigError, match="cannot name"):
        tracked.build({name: {}})
    with pytest.raises(ConfigError, match="cannot name"):
        tracked.exclude(name, "no file")


def test_a_name_is_for_one_thing() -> None:
    tracked = Tracked(track_rng=False)
    components, _ = tracked.build({"a": {}})
    tracked.components.update(components)
    for name in ("a", "process_rng"):
        with pytest.raises(ConfigError, match="already"):
            tracked.build({name: {}})
