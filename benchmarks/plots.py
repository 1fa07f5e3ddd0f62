"""One picture a figure: every sample, with the median marked, or medians over sizes."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.figure import Curves, Figure, Measured, unit_of


def draw(figure: Figure, measured: Measured, path: Path) -> None:
    """Write a PNG; of what has no samples there is none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture = _draw_curves(measured) if measured.curves else _draw_samples(measured)
    if picture is None:
        return
    lines = (f"bar: {found.bar}; measured: {found.text}" for found in measured.findings)
    picture.suptitle("\n".join((figure.claim, *lines)), fontsize=9)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def _draw_samples(measured: Measured) -> Any:
    """Draw all samples, one panel per unit (the last part of a sample's name), and beside them what
    happened over time, one panel a unit too."""
    from matplotlib import pyplot

    series = {name: values for name, values in measured.samples.items() if values}
    if not series:
        return None
    units = list(dict.fromkeys(unit_of(name) for name in series))
    widest = max(sum(unit_of(name) == unit for name in series) for unit in units)
    over_time = list(dict.fromkeys(unit_of(name) for name in measured.courses))
    count = len(units) + len(over_time)
    size = (max(4.5, 0.9 * widest) * count, 4.2)
    picture, panels = pyplot.subplots(1, count, figsize=size, squeeze=False)
    for axes, unit in zip(panels[0], units, strict=False):
        names = [name for name in series if unit_of(name) == unit]
        for place, name in enumerate(names):
            values = series[name]
            offsets = [
                place + 0.3 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))
            ]
            axes.plot(offsets, values, "o", markersize=3, alpha=0.6)
            median = measured.summaries()[name].median
            axes.plot([place - 0.3, place + 0.3], [median, median], color="black")
        labels = [name.removesuffix(unit).rstrip("_").replace("_", "\n") for name in names]
        axes.set_xticks(range(len(names)), labels, fontsize="small")
        axes.set_ylabel(unit.replace("_", " "))
        axes.set_ylim(bottom=0)
    for axes, unit in zip(panels[0][len(units) :], over_time, strict=True):
        _draw_courses(axes, measured, unit)
    return picture


def _draw_courses(axes: Any, measured: Measured, unit: str) -> None:
    for name, course in measured.courses.items():
        if unit_of(name) == unit:
            label = name.removesuffix(unit).rstrip("_").replace("_", " ")
            axes.plot(course.seconds, course.values, linewidth=1, label=label)
    axes.set_xlabel("s")
    axes.set_ylabel(unit.replace("_", " "))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _draw_curves(measured: Measured) -> Any:
    """Draw medians over sizes, both axes logarithmic, with their intervals; one row of panels for
    each kind of size, one panel a unit.

    What lies at or below zero, as a difference may, has no place on such an axis.
    """
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(curves.size for curves in measured.curves))
    rows = [[curves for curves in measured.curves if curves.size == kind] for kind in kinds]
    shape = (len(rows), max(map(len, rows)))
    size = (4.5 * shape[1], 4.2 * shape[0])
    picture, panels = pyplot.subplots(*shape, figsize=size, squeeze=False)
    for row, places in zip(rows, panels, strict=True):
        for axes, curves in zip_longest(places, row):
            if curves is None:
                axes.remove()
            else:
                _draw_panel(axes, curves)
    return picture


def _draw_panel(axes: Any, curves: Curves) -> None:
    for name, points in curves.points.items():
        sizes, medians, lows, highs = zip(*points, strict=True)
        (line,) = axes.plot(sizes, medians, "o-", markersize=4, label=name)
        axes.vlines(sizes, lows, highs, color=line.get_color())
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="mask")
    axes.set_xlabel(curves.size)
    axes.set_ylabel(curves.unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
