"""What each figure of a report shows, on matplotlib's axes. Knows no file format and no page.

Nothing depends on colour alone: arms differ by marker and line, sources by hatching, and values are
written beside their marks. Each function gives None where a result has no data for it.
"""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from paceline.bench import canvas, economics
from paceline.bench.palette import GRID, INK, MUTED, SPECULATIVE
from paceline.bench.result import Result, Row
from paceline.bench.round_drawings import acceptance_by_position, source_share, tokens_per_round
from paceline.bench.sample import Load, LoadKind, Sample


def speed_up(result: Result) -> Figure | None:
    if not any(row.speed_up for row in result.rows):
        return None
    figure, panels = canvas.by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        canvas.lines(panel, rows)
        canvas.one(panel)
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
        canvas.heading(panel, temperature)
    return figure


def latencies(result: Result) -> Figure | None:
    if not result.rows:
        return None
    figure, axes = canvas.panels(len(result.temperatures), 3, 2.7 * len(result.temperatures))
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
        canvas.heading(line[0], temperature)
        line[0].set_ylabel("share at most this long")
    canvas.legend(figure, axes[0][0])
    return figure


def _distribution(panel: Axes, label: str, values_us: Sequence[float]) -> None:
    values = sorted(value / 1000 for value in values_us)
    # The slowest hundredth would stretch the axis until nothing else is seen.
    shown = values[: max(1, round(len(values) * 0.99))]
    heights = [(i + 1) / len(values) for i in range(len(shown))]
    panel.step([0.0, *shown], [0.0, *heights], where="post", label=label, **canvas.STYLES[label])


def loads(result: Result) -> Figure | None:
    if len({row.load for row in result.loads}) < 2:
        return None
    figure, axes = canvas.panels(len(result.temperatures), 3, 2.9 * len(result.temperatures))
    for line, temperature in zip(axes, result.temperatures, strict=True):
        rows = [row for row in result.loads if row.temperature == temperature]
        places = range(len(rows))
        for label, marker in (("plain", "o"), ("speculative", "s")):
            arms = [row.plain if label == "plain" else row.speculative for row in rows]
            slowest = [
                a.time_per_output_token_ms[1] if a.time_per_output_token_ms else 0.0 for a in arms
            ]
            style = {**canvas.STYLES[label], "marker": marker, "label": label}
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
        canvas.heading(line[0], temperature)
    canvas.legend(figure, axes[0][0])
    return figure


def _short(load: Load) -> str:
    return f"{load.value:g}" if load.kind is LoadKind.CLOSED else f"{load.value:g}/s"


def predicted(result: Result) -> Figure | None:
    if not any(row.economics for row in result.rows):
        return None
    figure, panels = canvas.by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        canvas.lines(panel, rows)
        canvas.one(panel)
        for y, row in enumerate(rows):
            if row.economics is None or row.speed_up is None:
                continue
            ends = [row.economics.predicted, row.speed_up.value]
            canvas.dumbbell(panel, y, ends, "predicted", "measured")
        panel.set_xlabel("times as fast as plain decoding")
        canvas.heading(panel, temperature)
    canvas.legend(figure, panels[0])
    return figure


def break_even(result: Result) -> Figure | None:
    temperatures = [t for t in result.temperatures if result.overall(t).economics]
    if not temperatures:
        return None
    count = max(len(result.at(t)) for t in temperatures)
    figure, axes = canvas.panels(
        len(temperatures), 2, (1.2 + 0.34 * (count + 1)) * len(temperatures)
    )
    for line, temperature in zip(axes, temperatures, strict=True):
        _curve(line[0], result.overall(temperature), result.at(temperature))
        canvas.heading(line[0], temperature)
        rows = [*result.at(temperature), result.overall(temperature)]
        panel = line[1]
        canvas.lines(panel, rows)
        for y, row in enumerate(rows):
            if row.economics is None:
                continue
            if row.economics.break_even is None:
                panel.text(1.0, y, "none would pay", ha="right", va="center", fontsize=9, color=INK)
                continue
            ends = [row.economics.break_even, row.totals.acceptance_rate]
            canvas.dumbbell(panel, y, ends, "needed to break even", "measured")
        panel.set_xlim(-0.03, 1.03)
        panel.set_xlabel("acceptance_rate")
    canvas.legend(figure, axes[0][1])
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
