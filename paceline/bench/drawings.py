"""What each figure of a report shows, on matplotlib's axes. Knows no file format and no page.

Each function gives None where a result has no data for it.

Nothing depends on colour alone: arms differ by marker and line, sources by hatching, and values are
written beside their marks. Colours are names of `palette`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from paceline.bench import economics, verdict
from paceline.bench.palette import GRID, HATCHES, INK, MUTED, PLAIN, SOURCES, SPECULATIVE
from paceline.bench.result import Result, Row
from paceline.bench.sample import Load, LoadKind, Sample

_WIDTH = 9.0
_MAX_POSITIONS = 12
# Fewer tests than this are no rate.
_MIN_TESTS = 5


def _panels(rows: int, columns: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", color=GRID, linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, [list(row) for row in axes]


def _by_category(
    result: Result, height_per_row: float = 0.34, columns: int = 0
) -> tuple[Figure, list[Axes]]:
    """A panel per temperature, a line of it per category."""
    count = max(len(result.at(t)) for t in result.temperatures)
    number = columns or len(result.temperatures)
    figure, axes = _panels(1, number, 1.1 + height_per_row * (count + 1))
    return figure, axes[0]


def _lines(panel: Axes, rows: Sequence[Row]) -> None:
    panel.set_yticks(range(len(rows)), [row.category or "(none)" for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)


def _heading(panel: Axes, temperature: float) -> None:
    panel.set_title(f"temperature {temperature:g}", loc="left", color=MUTED, fontsize=10)


def _one(panel: Axes) -> None:
    panel.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))


def speed_up(result: Result) -> Figure | None:
    if not any(row.speed_up for row in result.rows):
        return None
    figure, panels = _by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        _lines(panel, rows)
        _one(panel)
        for y, row in enumerate(rows):
            if row.speed_up is None:
                continue
            ratio = row.speed_up
            low, high = ratio.low or ratio.value, ratio.high or ratio.value
            panel.plot([low, high], [y, y], color=SPECULATIVE, linewidth=2.2)
            overall = row is rows[-1]
            panel.plot(ratio.value, y, "D" if overall else "o", color=SPECULATIVE, markersize=6.5)
            # On the side of the dashed line that the category is on.
            slower = high < 1.0
            panel.annotate(
                f"{ratio.value:.2f}x",
                (low if slower else high, y),
                xytext=(-6 if slower else 6, 0),
                textcoords="offset points",
                ha="right" if slower else "left",
                va="center",
                color=INK,
                fontsize=9,
                fontweight="bold" if overall else "normal",
            )
        panel.axhline(len(rows) - 1.5, color=GRID, linewidth=1.2)
        panel.set_xlabel("times as fast as plain decoding")
        panel.margins(x=0.2)
        _heading(panel, temperature)
    return figure


def acceptance_by_position(result: Result) -> Figure | None:
    depth = max((len(row.tested_by_position) for row in result.rows), default=0)
    if not depth:
        return None
    depth = min(depth, _MAX_POSITIONS)
    figure, panels = _by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        _lines(panel, rows)
        panel.grid(visible=False)
        panel.spines[["left", "bottom"]].set_visible(False)
        for y, row in enumerate(rows):
            for x, (tested, accepted) in enumerate(
                zip(row.tested_by_position[:depth], row.accepted_by_position, strict=False)
            ):
                _cell(panel, x, y, accepted / tested if tested >= _MIN_TESTS else None)
        panel.set_xticks(range(depth), [str(i + 1) for i in range(depth)])
        panel.tick_params(axis="x", length=0)
        panel.set_xlim(-0.55, depth - 0.45)
        panel.set_xlabel("position in the draft")
        _heading(panel, temperature)
    return figure


def _cell(panel: Axes, x: int, y: int, share: float | None) -> None:
    if share is not None:
        # Never so dark that the number in it cannot be read.
        panel.add_patch(
            Rectangle(
                (x - 0.47, y - 0.44), 0.94, 0.88, facecolor=SPECULATIVE, alpha=0.04 + 0.5 * share
            )
        )
    text = "·" if share is None else f"{share * 100:.0f}"
    panel.text(x, y, text, ha="center", va="center", fontsize=8.5, color=INK)


def tokens_per_round(result: Result) -> Figure | None:
    if not any(row.tokens_per_round for row in result.rows):
        return None
    figure, axes = _panels(1, len(result.temperatures), 2.9)
    for panel, temperature in zip(axes[0], result.temperatures, strict=True):
        row = result.overall(temperature)
        total = sum(row.tokens_per_round.values()) or 1
        panel.grid(visible=False)
        panel.grid(axis="y", color=GRID, linewidth=0.8)
        for count, rounds in row.tokens_per_round.items():
            panel.bar(count, rounds / total, width=0.75, color=SPECULATIVE)
            panel.text(
                count,
                rounds / total,
                _percent(rounds / total),
                ha="center",
                va="bottom",
                fontsize=8.5,
                color=INK,
            )
        mean = sum(count * rounds for count, rounds in row.tokens_per_round.items()) / total
        panel.set_xlabel(f"tokens delivered by a round (mean {mean:.2f})")
        panel.set_ylabel("share of rounds")
        panel.set_xticks(sorted(row.tokens_per_round))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        panel.margins(y=0.12)
        _heading(panel, temperature)
    return figure


def _percent(share: float) -> str:
    return "<1%" if 0.0 < share < 0.005 else f"{share:.0%}"


def source_share(result: Result) -> Figure | None:
    present = sorted({source for row in result.rows for source in row.sources})
    if not present:
        return None
    figure, panels = _by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        _lines(panel, rows)
        left = [0.0] * len(rows)
        for source in present:
            shares = [row.sources.get(source, 0) / (sum(row.sources.values()) or 1) for row in rows]
            panel.barh(
                range(len(rows)),
                shares,
                left=left,
                height=0.72,
                facecolor=SOURCES[source],
                hatch=HATCHES[source],
                edgecolor=GRID,
                linewidth=0.6,
                label=verdict.source_name(source),
            )
            left = [before + share for before, share in zip(left, shares, strict=True)]
        panel.xaxis.set_major_formatter(PercentFormatter(1.0))
        panel.set_xlim(0, 1)
        panel.set_xlabel("share of the delivered tokens")
        _heading(panel, temperature)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 6),
        frameon=False,
        labelcolor=INK,
        fontsize=9,
        handlelength=2.2,
        handleheight=1.2,
    )
    return figure


def latencies(result: Result) -> Figure | None:
    if not result.rows:
        return None
    figure, axes = _panels(len(result.temperatures), 3, 2.7 * len(result.temperatures))
    measures: list[tuple[str, Callable[[Sample], list[float]]]] = [
        ("time to first token, ms", lambda s: [] if s.ttft_us is None else [s.ttft_us]),
        (
            "time per output token, ms",
            lambda s: [] if s.time_per_output_token_us is None else [s.time_per_output_token_us],
        ),
        ("gap between deliveries, ms", lambda s: [float(gap) for gap, _ in s.gaps_us()]),
    ]
    for line, temperature in zip(axes, result.temperatures, strict=True):
        found = result.overall(temperature).pairs
        for panel, (name, values) in zip(line, measures, strict=True):
            for label, samples in (
                ("plain", [pair.plain for pair in found]),
                ("speculative", [pair.speculative for pair in found]),
            ):
                _distribution(panel, label, [v for s in samples for v in values(s)])
            panel.set_xlabel(name)
            panel.set_ylim(0, 1.02)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
            panel.grid(axis="y", color=GRID, linewidth=0.8)
        _heading(line[0], temperature)
        line[0].set_ylabel("share at most this long")
    _legend(figure, axes[0][0])
    return figure


_STYLES: dict[str, dict[str, Any]] = {
    "plain": {"color": PLAIN, "linestyle": (0, (4, 2)), "linewidth": 2.0},
    "speculative": {"color": SPECULATIVE, "linestyle": "-", "linewidth": 2.0},
}


def _distribution(panel: Axes, label: str, values_us: Sequence[float]) -> None:
    values = sorted(value / 1000 for value in values_us)
    # The slowest hundredth would stretch the axis until nothing else is seen.
    shown = values[: max(1, round(len(values) * 0.99))]
    heights = [(i + 1) / len(values) for i in range(len(shown))]
    panel.step([0.0, *shown], [0.0, *heights], where="post", label=label, **_STYLES[label])


def loads(result: Result) -> Figure | None:
    if len({row.load for row in result.loads}) < 2:
        return None
    figure, axes = _panels(len(result.temperatures), 3, 2.9 * len(result.temperatures))
    for line, temperature in zip(axes, result.temperatures, strict=True):
        rows = [row for row in result.loads if row.temperature == temperature]
        places = range(len(rows))
        for label, marker in (("plain", "o"), ("speculative", "s")):
            arms = [row.plain if label == "plain" else row.speculative for row in rows]
            slowest = [
                a.time_per_output_token_ms[1] if a.time_per_output_token_ms else 0.0 for a in arms
            ]
            style = {**_STYLES[label], "marker": marker, "label": label}
            line[0].plot(places, [arm.tokens_per_s for arm in arms], **style)
            line[1].plot(places, slowest, **style)
        for x, row in enumerate(rows):
            ratio = row.speed_up
            if ratio is None:
                continue
            if ratio.low is not None and ratio.high is not None:
                line[2].plot([x, x], [ratio.low, ratio.high], color=SPECULATIVE, linewidth=2.2)
            line[2].plot(x, ratio.value, "s", color=SPECULATIVE)
            line[2].annotate(
                f"{ratio.value:.2f}x",
                (x, ratio.value),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=INK,
            )
        line[2].axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        for panel, name in zip(
            line,
            ("tokens/s, all requests", "time per output token p95, ms", "speed-up"),
            strict=True,
        ):
            panel.grid(visible=False)
            panel.grid(axis="y", color=GRID, linewidth=0.8)
            panel.set_xticks(places, [_short(row.load) for row in rows])
            panel.set_xlabel("requests at a time, or per second")
            panel.set_ylabel(name)
            panel.margins(x=0.2, y=0.2)
        for panel in line[:2]:
            panel.set_ylim(bottom=0)
        _heading(line[0], temperature)
    _legend(figure, axes[0][0])
    return figure


def _short(load: Load) -> str:
    return f"{load.value:g}" if load.kind is LoadKind.CLOSED else f"{load.value:g}/s"


def predicted(result: Result) -> Figure | None:
    if not any(row.economics for row in result.rows):
        return None
    figure, panels = _by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        _lines(panel, rows)
        _one(panel)
        for y, row in enumerate(rows):
            if row.economics is None or row.speed_up is None:
                continue
            ends = [row.economics.predicted, row.speed_up.value]
            _dumbbell(panel, y, ends, "predicted", "measured")
        panel.set_xlabel("times as fast as plain decoding")
        _heading(panel, temperature)
    _legend(figure, panels[0])
    return figure


def break_even(result: Result) -> Figure | None:
    temperatures = [t for t in result.temperatures if result.overall(t).economics]
    if not temperatures:
        return None
    count = max(len(result.at(t)) for t in temperatures)
    figure, axes = _panels(len(temperatures), 2, (1.2 + 0.34 * (count + 1)) * len(temperatures))
    for line, temperature in zip(axes, temperatures, strict=True):
        _curve(line[0], result.overall(temperature), result.at(temperature))
        _heading(line[0], temperature)
        rows = [*result.at(temperature), result.overall(temperature)]
        panel = line[1]
        _lines(panel, rows)
        for y, row in enumerate(rows):
            if row.economics is None:
                continue
            if row.economics.break_even is None:
                panel.text(1.0, y, "none would pay", ha="right", va="center", fontsize=9, color=INK)
                continue
            ends = [row.economics.break_even, row.totals.acceptance_rate]
            _dumbbell(panel, y, ends, "needed to break even", "measured")
        panel.set_xlim(-0.03, 1.03)
        panel.set_xlabel("acceptance_rate")
    _legend(figure, axes[0][1])
    return figure


def _curve(panel: Axes, overall: Row, rows: Sequence[Row]) -> None:
    found = overall.economics
    assert found is not None
    rates = [i / 100 for i in range(101)]
    gains = [economics.expected_length(r, found.lengths) / found.drafted_round for r in rates]
    panel.plot(rates, gains, color=SPECULATIVE, linewidth=2.0)
    panel.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    for row in rows:
        if row.economics is not None:
            panel.plot(
                row.totals.acceptance_rate,
                row.economics.measured_rounds,
                "o",
                markerfacecolor="none",
                markeredgecolor=INK,
                markersize=6,
            )
    if found.break_even is not None:
        panel.axvline(found.break_even, color=MUTED, linewidth=1.0, linestyle=":")
        panel.annotate(
            f"breaks even at {found.break_even:.2f}",
            (found.break_even, panel.get_ylim()[1]),
            xytext=(5, -4),
            textcoords="offset points",
            va="top",
            fontsize=9,
            color=INK,
        )
    panel.set_xlabel("acceptance_rate (circles: categories, measured)")
    panel.set_ylabel("gain of drafted rounds")


def _dumbbell(panel: Axes, y: int, ends: Sequence[float], first: str, second: str) -> None:
    panel.plot(ends, [y, y], color=MUTED, linewidth=1.4, zorder=1)
    panel.plot(
        ends[0],
        y,
        "D",
        markerfacecolor="none",
        markeredgecolor=PLAIN,
        markeredgewidth=1.8,
        markersize=7,
        label=first if y == 0 else None,
    )
    panel.plot(ends[1], y, "o", color=SPECULATIVE, markersize=7, label=second if y == 0 else None)


def _legend(figure: Figure, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )


# Named as in `captions`.
DRAWINGS: dict[str, Callable[[Result], Figure | None]] = {
    "speed-up": speed_up,
    "acceptance-by-position": acceptance_by_position,
    "tokens-per-round": tokens_per_round,
    "source-share": source_share,
    "latencies": latencies,
    "loads": loads,
    "predicted-gain": predicted,
    "break-even": break_even,
}
