"""The figures of a report that show rounds and tokens: acceptance, lengths, sources.

Each function gives None where a result has no data for it.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from paceline.bench import canvas, verdict
from paceline.bench.palette import GRID, HATCHES, INK, SOURCES, SPECULATIVE
from paceline.bench.result import Result

_MAX_POSITIONS = 12
# Fewer tests than this are no rate.
_MIN_TESTS = 5


def acceptance_by_position(result: Result) -> Figure | None:
    depth = max((len(row.tested_by_position) for row in result.rows), default=0)
    if not depth:
        return None
    depth = min(depth, _MAX_POSITIONS)
    figure, panels = canvas.by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        canvas.lines(panel, rows)
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
        canvas.heading(panel, temperature)
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
    figure, axes = canvas.panels(1, len(result.temperatures), 2.9)
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
        canvas.heading(panel, temperature)
    return figure


def _percent(share: float) -> str:
    return "<1%" if 0.0 < share < 0.005 else f"{share:.0%}"


def source_share(result: Result) -> Figure | None:
    present = sorted({source for row in result.rows for source in row.sources})
    if not present:
        return None
    figure, panels = canvas.by_category(result)
    for panel, temperature in zip(panels, result.temperatures, strict=True):
        rows = [*result.at(temperature), result.overall(temperature)]
        canvas.lines(panel, rows)
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
        canvas.heading(panel, temperature)
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
