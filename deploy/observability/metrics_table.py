"""Prints docs/metrics.md: every metric, from the lists in paceline/metrics."""

from collections.abc import Iterator, Sequence

from paceline.metrics import aliases, instruments
from paceline.metrics.instruments import Alias, Instrument
from paceline.metrics.labels import CLOSED, FROM_CONFIGURATION

SERVICES: Sequence[tuple[str, int, Sequence[Instrument], Sequence[Alias]]] = (
    ("Gateway", 9100, instruments.GATEWAY, aliases.GATEWAY),
    ("Drafter", 9101, instruments.DRAFTER, ()),
    ("Verifier", 9102, instruments.VERIFIER, aliases.VERIFIER),
)


def lines() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "Made by `make dashboards` from `paceline/metrics`; a test fails when it is stale."
    yield ""
    yield "Sums may be pooled over services, workloads and time; ratios are taken of the sums."
    for name, port, listed, renamed in SERVICES:
        yield from ("", f"## {name}, port {port}", "", "| metric | kind | labels | meaning |")
        yield "|---|---|---|---|"
        for instrument in listed:
            labels = ", ".join(label.replace(".", "_") for label in instrument.labels)
            yield (
                f"| `{instrument.prometheus_name}` | {instrument.kind.value} | {labels} | "
                f"{instrument.description} |"
            )
        if renamed:
            yield from ("", "The same numbers under vLLM's names:", "", "| vLLM | ours | only |")
            yield "|---|---|---|"
            for alias in renamed:
                yield f"| `{alias.name}` | `{alias.of.prometheus_name}` | {_only(alias)} |"
    yield from ("", "## Labels", "", "| label | values |", "|---|---|")
    for label, values in CLOSED.items():
        shown = "0 to 63" if label == "position" else ", ".join(values)
        yield f"| {label.replace('.', '_')} | {shown} |"
    for label in FROM_CONFIGURATION:
        yield f"| {label.replace('.', '_')} | from the configuration |"


def _only(alias: Alias) -> str:
    if alias.only is None:
        return ""
    name, values = alias.only
    return (
        f"without {name.replace('.', '_')}" if values == ("",) else f"{name} is {', '.join(values)}"
    )


def text() -> str:
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    print(text(), end="")
