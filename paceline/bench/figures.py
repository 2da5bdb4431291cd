"""The figures of a report as SVG for a page or PNG for a file. Needs matplotlib (extra `bench`)."""

import io
import re
from collections.abc import Iterator
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from paceline.bench.drawings import DRAWINGS
from paceline.bench.palette import INK, MUTED, ROLES
from paceline.bench.result import Result

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
}


def draw_svg(result: Result) -> dict[str, str]:
    """Name -> an <svg> element for HTML, in the page's colours (`palette.ROLES`), with no URL."""
    return {name: _inline(_saved(figure, "svg").decode(), name) for name, figure in _drawn(result)}


def draw_png(result: Result) -> dict[str, bytes]:
    """Name -> a PNG on white."""
    return {name: _saved(figure, "png") for name, figure in _drawn(result)}


def _drawn(result: Result) -> Iterator[tuple[str, Figure]]:
    """Drawn one by one and saved while the style is set."""
    with matplotlib.rc_context(_STYLE):
        for name, draw in DRAWINGS.items():
            figure = draw(result)
            if figure is not None:
                yield name, figure


def _saved(figure: Figure, kind: str) -> bytes:
    target = io.BytesIO()
    if kind == "svg":
        # The page shines through; a date would make every report differ.
        figure.savefig(target, format=kind, transparent=True, metadata={"Date": None})
    else:
        figure.savefig(target, format=kind, dpi=160, facecolor="white")
    return target.getvalue()


def _inline(svg: str, name: str) -> str:
    """For HTML: without header, metadata and namespaces, its ids its own, colours as variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for role, (light, _) in ROLES.items():
        svg = svg.replace(light, f"var(--{role})")
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
