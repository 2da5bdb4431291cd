"""The training curve as a picture. Needs matplotlib (extra `bench`)."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from paceline.distill.curve import Point


def draw_curve(path: Path, points: Sequence[Point]) -> None:
    """A PNG: acceptance and loss on held-out answers over tokens learnt from."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    acceptance, loss = figure.subplots(1, 2)
    tokens = [point.num_tokens / 1000 for point in points]
    for name, marker, values in (
        ("temperature 0", "o", [point.match_t0 for point in points]),
        ("temperature 1, shared noise", "s", [point.match_t1 for point in points]),
        ("temperature 1, expected (bound)", "^", [point.expected_t1 for point in points]),
    ):
        acceptance.plot(tokens, values, marker=marker, markersize=4, label=name)
    acceptance.set_title("held-out acceptance", loc="left", fontsize=10)
    acceptance.set_ylim(bottom=0.0)
    acceptance.legend(frameon=False, fontsize=8)
    known = [(t, p.loss) for t, p in zip(tokens, points, strict=True) if p.loss is not None]
    loss.plot(
        [t for t, _ in known],
        [value for _, value in known],
        marker="o",
        markersize=4,
        label="training",
    )
    loss.plot(
        tokens,
        [point.held_out_loss for point in points],
        marker="s",
        markersize=4,
        label="held out",
    )
    loss.set_title("KL from the target, nats", loc="left", fontsize=10)
    loss.legend(frameon=False, fontsize=8)
    for panel in (acceptance, loss):
        panel.set_xlabel("thousand tokens learnt from")
        panel.grid(color="#dddddd", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
