"""Panels of figures that look alike, and the marks they share. Knows no figure."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paceline.bench.palette import GRID, INK, MUTED, PLAIN, SPECULATIVE
from paceline.bench.result import Result, Row

_WIDTH = 9.0
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"color": PLAIN, "linestyle": (0, (4, 2)), "linewidth": 2.0},
    "speculative": {"color": SPECULATIVE, "linestyle": "-", "linewidth": 2.0},
}


def panels(rows: int, columns: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    """A grid of panels; height in inches."""
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", color=GRID, linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, [list(row) for row in axes]


def by_category(result: Result) -> tuple[Figure, list[Axes]]:
    """A panel per temperature, a line of it per category."""
    count = max(len(result.at(t)) for t in result.temperatures)
    figure, axes = panels(1, len(result.temperatures), 1.1 + 0.34 * (count + 1))
    return figure, axes[0]


def lines(panel: Axes, rows: Sequence[Row]) -> None:
    """A named line per row, the first at the top."""
    panel.set_yticks(range(len(rows)), [row.category or "(none)" for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)


def heading(panel: Axes, temperature: float) -> None:
    panel.set_title(f"temperature {temperature:g}", loc="left", color=MUTED, fontsize=10)


def one(panel: Axes) -> None:
    """Where plain decoding is."""
    panel.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))


def dumbbell(panel: Axes, y: int, ends: Sequence[float], first: str, second: str) -> None:
    """Two values of one line, told apart by their markers."""
    panel.plot(ends, [y, y], color=MUTED, linewidth=1.4, zorder=1)
    panel.plot(
        ends[0],
        y,
        "D",
        markerfacecolor="none",
        markeredgecolor=PLAIN,
        markeredgewidth=1.8,
        markersize=7,
        label=first,
    )
    panel.plot(ends[1], y, "o", color=SPECULATIVE, markersize=7, label=second)


def legend(figure: Figure, panel: Axes) -> None:
    """Under all panels, each label once."""
    handles, labels = panel.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(
        list(once.values()),
        list(once),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
