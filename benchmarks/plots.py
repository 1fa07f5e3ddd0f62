"""One picture a figure: every sample, with the median marked."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figure import Figure, Measured, unit_of


def draw(figure: Figure, measured: Measured, path: Path) -> None:
    """Write a PNG of all samples, one panel per unit (the last part of a sample's name)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    series = {name: values for name, values in measured.samples.items() if values}
    if not series:
        return
    units = list(dict.fromkeys(unit_of(name) for name in series))
    widest = max(sum(unit_of(name) == unit for name in series) for unit in units)
    size = (max(4.5, 0.9 * widest) * len(units), 4.2)
    picture, panels = pyplot.subplots(1, len(units), figsize=size, squeeze=False)
    for axes, unit in zip(panels[0], units, strict=True):
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
    lines = (f"bar: {found.bar}; measured: {found.text}" for found in measured.findings)
    picture.suptitle("\n".join((figure.claim, *lines)), fontsize=9)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)
