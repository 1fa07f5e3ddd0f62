"""A progress bar on stderr for what may take long."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(
    name: str, is_wanted: bool, *, counts_bytes: bool = True
) -> Iterator[Callable[[int, int], None] | None]:
    """Give what takes (done, in all), bytes or other parts, and shows them; None where it is not
    wanted, or where stderr is no terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    speed = (DownloadColumn(), TransferSpeedColumn()) if counts_bytes else (TimeRemainingColumn(),)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *speed,
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
