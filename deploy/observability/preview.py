"""A picture of the committed dashboard, from a Prometheus: matplotlib in Grafana's look.

Reads the Grafana JSON: places, titles, units, expressions and thresholds are the dashboard's own.
It is no Grafana: tables, links and tooltips are left out. Knows no service.
"""

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator

DASHBOARD = Path(__file__).parent / "grafana" / "dashboards" / "paceline.json"
# Pixels: of a dashboard column, of a unit of height, between panels.
COLUMN, UNIT, GAP = 62, 26, 8
DPI = 100
PAGE, CARD, EDGE, INK, MUTED = "#111217", "#181b1f", "#26292f", "#d5d6de", "#8e909c"
GRID = "#26292f"
COLOURS = (
    *("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d"),
    *("#ffee52", "#ffb357", "#ff7383", "#ca95e5", "#37872d", "#e0b400"),
)
BLUES = LinearSegmentedColormap.from_list("blues", [CARD, "#1f4e8c", "#5794f2", "#c0d8ff"])
FONT = "DejaVu Sans"


@dataclass(frozen=True)
class Series:
    name: str
    labels: dict[str, str]
    times: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Source:
    """A Prometheus and the stretch of time to show, in seconds since 1970."""

    url: str
    start: float
    end: float
    rate_interval: str = "30s"
    step: float = 2.0

    def series(self, target: dict[str, Any]) -> list[Series]:
        expression = target["expr"]
        for name, value in (
            ("$__rate_interval", self.rate_interval),
            ("$__range", f"{max(int(self.end - self.start), 60)}s"),
            ("$model", ".*"),
            ("$workload", ".*"),
        ):
            expression = expression.replace(name, value)
        asked = {"query": expression, "start": self.start, "end": self.end, "step": self.step}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            found = json.load(response)["data"]["result"]
        return [_series(target, each, self) for each in found]


def _series(target: dict[str, Any], found: dict[str, Any], source: Source) -> Series:
    labels = found["metric"]
    name = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), target["legendFormat"])
    # Steps without a value are gaps of the line.
    times = np.arange(source.start, source.end + source.step / 2, source.step)
    values = np.full(len(times), np.nan)
    for at, value in found["values"]:
        values[min(round((at - source.start) / source.step), len(times) - 1)] = float(value)
    return Series(name, labels, times - source.start, values)


def preview(source: Source, rows: Sequence[str]) -> Figure:
    """These rows of the dashboard, one below the other."""
    panels = _of_rows(json.loads(DASHBOARD.read_text())["panels"], rows)
    width = 24 * COLUMN + GAP
    height = max(_bottom(panel) for panel in panels) + GAP
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=PAGE)
    for panel in panels:
        place = panel["gridPos"]
        box = (
            place["x"] * COLUMN + GAP,
            place["y"] * UNIT + GAP,
            place["w"] * COLUMN - GAP,
            place["h"] * UNIT - GAP,
        )
        if panel["type"] == "row":
            _text(figure, box[0] + 2, box[1] + box[3] / 2, "\u2304  " + panel["title"], 10, INK)
            continue
        _card(figure, box)
        _text(figure, box[0] + 12, box[1] + 16, panel["title"], 9, INK, weight="bold")
        series = [each for target in panel["targets"] for each in source.series(target)]
        _DRAW[panel["type"]](figure, box, panel, series)
    return figure


def _of_rows(panels: Sequence[dict[str, Any]], rows: Sequence[str]) -> list[dict[str, Any]]:
    """The panels of these rows, moved up to where no other row is left."""
    kept: list[dict[str, Any]] = []
    is_wanted, shift, bottom = False, 0, 0
    for panel in panels:
        place = panel["gridPos"]
        if panel["type"] == "row":
            is_wanted = panel["title"] in rows
            shift = place["y"] - bottom
        if is_wanted:
            moved = place | {"y": place["y"] - shift}
            kept.append(panel | {"gridPos": moved})
            bottom = max(bottom, moved["y"] + moved["h"])
    return kept


def _bottom(panel: dict[str, Any]) -> int:
    return (panel["gridPos"]["y"] + panel["gridPos"]["h"]) * UNIT


def _at(figure: Figure, x: float, y: float) -> tuple[float, float]:
    """Pixels from the top left, as the figure's own coordinates."""
    width, height = figure.get_size_inches() * DPI
    return x / width, 1 - y / height


def _text(
    figure: Figure, x: float, y: float, text: str, size: float, colour: str, weight: str = "normal"
) -> None:
    font = {"color": colour, "fontsize": size, "weight": weight, "family": FONT}
    figure.text(*_at(figure, x, y), text, va="center", **font)


def _card(figure: Figure, box: tuple[float, float, float, float]) -> None:
    x, y, width, height = box
    left, bottom = _at(figure, x, y + height)
    right, top = _at(figure, x + width, y)
    figure.add_artist(
        FancyBboxPatch(
            (left, bottom),
            right - left,
            top - bottom,
            boxstyle="round,pad=0,rounding_size=0.002",
            facecolor=CARD,
            edgecolor=EDGE,
            linewidth=1,
            transform=figure.transFigure,
            # Under the axes on it.
            zorder=-1,
        )
    )


def _axes(figure: Figure, box: tuple[float, float, float, float], unit: str) -> Axes:
    x, y, width, height = box
    left, bottom = _at(figure, x + 52, y + height - 44)
    right, top = _at(figure, x + width - 14, y + 34)
    axes = figure.add_axes((left, bottom, right - left, top - bottom), facecolor=CARD)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=MUTED, labelsize=7.5, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 1.5, 3, 6]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s // 60:.0f}:{s % 60:02.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    return axes


def shown(value: float, unit: str) -> str:
    """As Grafana would write it."""
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        return f"{1000 * value:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    if unit.startswith("suffix:"):
        return f"{value:.2f}{unit.removeprefix('suffix:')}"
    suffix = {"ops": " ops/s", "reqps": " req/s", "cps": " c/s"}.get(unit, "")
    return f"{value:.3g}{suffix}"


def _time_series(
    figure: Figure, box: tuple[float, float, float, float], panel: dict, series: list[Series]
) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes = _axes(figure, box, defaults["unit"])
    series = [each for each in series if not np.isnan(each.values).all()]
    below = None
    for number, each in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        values, low = each.values, 0.0
        if "stacking" in defaults["custom"]:
            low = np.zeros(len(values)) if below is None else below
            below = values = low + np.nan_to_num(values)
        fill = defaults["custom"]["fillOpacity"] / 100
        axes.fill_between(each.times, values, low, color=colour, alpha=fill, linewidth=0)
        axes.plot(each.times, values, color=colour, linewidth=1.3)
    steps = defaults.get("thresholds", {}).get("steps", [])
    for step in steps[1:]:
        axes.axhline(step["value"], color="#f2495c", linewidth=1, linestyle=(0, (5, 4)))
    if series:
        axes.set_xlim(series[0].times[0], series[0].times[-1])
    axes.set_ylim(0, max(axes.get_ylim()[1], 1e-9))
    _legend(figure, box, [each.name for each in series])


def _legend(figure: Figure, box: tuple[float, float, float, float], names: Sequence[str]) -> None:
    x, y, width, height = box
    at, line = x + 14.0, y + height - 14
    for number, name in enumerate(names):
        needed = 22 + 6.1 * len(name)
        if at + needed > x + width - 10:
            _text(figure, at, line, "\u2026", 8, MUTED)
            return
        colour = COLOURS[number % len(COLOURS)]
        _text(figure, at, line, "\u2501", 8, colour, weight="bold")
        _text(figure, at + 13, line, name, 8, INK)
        at += needed


def _heatmap(
    figure: Figure, box: tuple[float, float, float, float], panel: dict, series: list[Series]
) -> None:
    axes = _axes(figure, box, panel["options"]["yAxis"]["unit"])
    bounded = sorted(series, key=lambda each: float(each.labels["le"]))
    if not bounded:
        return
    counts = np.nan_to_num(np.array([each.values for each in bounded]))
    # Buckets are cumulative.
    counts = np.diff(counts, axis=0, prepend=0)
    used = [row.max() > 0 for row in counts]
    last = len(used) - used[::-1].index(True) if any(used) else len(used)
    axes.grid(visible=False)
    axes.pcolormesh(bounded[0].times, np.arange(last), counts[:last], cmap=BLUES, shading="nearest")
    axes.set_yticks(range(last), [each.name for each in bounded[:last]])


def _stat(
    figure: Figure, box: tuple[float, float, float, float], panel: dict, series: list[Series]
) -> None:
    """The last value, large, over its course."""
    x, y, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    known = [each for each in series if not np.isnan(each.values).all()]
    colour, text = MUTED, "no data"
    if known:
        values = known[0].values
        last = float(values[~np.isnan(values)][-1])
        text = shown(last, defaults["unit"])
        steps = [s for s in defaults["thresholds"]["steps"] if last >= (s["value"] or -math.inf)]
        colour = {"green": "#73bf69", "red": "#f2495c"}.get(steps[-1]["color"], "#5794f2")
        left, bottom = _at(figure, x + 1, y + height - 1)
        right, top = _at(figure, x + width - 1, y + height * 0.62)
        axes = figure.add_axes((left, bottom, right - left, top - bottom), facecolor="none")
        axes.set_axis_off()
        axes.fill_between(known[0].times, values, color=colour, alpha=0.18, linewidth=0)
        axes.plot(known[0].times, values, color=colour, linewidth=1, alpha=0.7)
        axes.set_xlim(known[0].times[0], known[0].times[-1])
        axes.set_ylim(0, float(np.nanmax(values)) * 1.1 + 1e-9)
    _text(figure, x + 12, y + height * 0.52, text, 19, colour, weight="bold")


_DRAW = {"timeseries": _time_series, "heatmap": _heatmap, "stat": _stat}
