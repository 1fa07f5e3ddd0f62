"""How the command line speaks: its console, and sizes for people and from them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from pyengine.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def open_console() -> Console:
    """Return a console on stdout; wide where that is no terminal, so that nothing is cut off."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def format_bytes(count: int) -> str:
    """Return a byte count for people, in decimal units."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def parse_bytes(name: str, text: str) -> int:
    """Return the bytes that a person means: "100MB", "1.5 GB", "64KiB", "4096"; decimal units but
    with an i. ConfigError naming the option otherwise."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        expected = "a size such as 100MB, 1.5GB or 64KiB"
        raise ConfigError(
            f"{name}: expected {expected}, got {text!r:.100}",
            field=name,
            expected=expected,
            got=text,
        )
    number, unit, binary = found.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
