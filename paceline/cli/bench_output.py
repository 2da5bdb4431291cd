"""What `paceline bench` and `paceline compare` print: a progress bar, tables, verdicts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from paceline.bench import verdict
from paceline.bench.result import ALL, ArmSummary, Economics, Result, Row
from paceline.bench.sample import LoadKind, Sample
from paceline.cli import output

_NOTES_WITHOUT_TERMINAL = 20


@contextmanager
def progress(what: str, num_answers: int) -> Iterator[Callable[[Sample], None]]:
    """A bar on stderr at a terminal, some lines elsewhere. Yields what takes every sample."""
    console = output.console(stderr=True)
    done = 0
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("warming up", total=num_answers)
    every = max(1, num_answers // _NOTES_WITHOUT_TERMINAL)

    def on_sample(sample: Sample) -> None:
        nonlocal done
        done += 1
        trial = sample.trial
        name = trial.category or f"prompt {trial.prompt + 1}"
        text = f"{name}, temperature {trial.temperature:g}, {trial.load.label}, {sample.arm}"
        bar.update(task, completed=done, description=text)
        if not console.is_terminal and (done % every == 0 or done == num_answers):
            output.print_note(f"{what} {done}/{num_answers}: {text}")

    with bar:
        yield on_sample


def print_result(result: Result, *, with_latencies: bool) -> None:
    """The tables and the verdicts, on stdout."""
    console = output.console()
    console.print(_speed(result))
    if with_latencies:
        console.print(_latencies(result))
        console.print(_economics(result))
    if len({row.load for row in result.loads}) > 1:
        console.print(_loads(result))
    for line in verdict_lines(result):
        console.print(line, soft_wrap=True)


def verdict_lines(result: Result) -> list[str]:
    lines = []
    for temperature in result.temperatures:
        lines.append(f"Temperature {temperature:g}: {verdict.summary(result, temperature)}")
        lines.append(verdict.overall(result, temperature))
    return [*lines, *verdict.trust(result)]


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add(table: Table, row: Row, *cells: str) -> None:
    if row.category == ALL:
        table.add_section()
    table.add_row(row.category or "-", f"{row.temperature:g}", *cells)
    if row.category == ALL:
        table.add_section()


def _speed(result: Result) -> Table:
    table = _table(
        "Plain against speculative decoding",
        ("category", "T"),
        (
            *("prompts", "plain\ntokens/s", "speculative\ntokens/s"),
            *("speed-up (95 %)", "acceptance_\nrate", "draft_\nefficiency"),
            *("mean_\nacceptance_\nlength", "identical"),
        ),
    )
    for row in result.rows:
        num_pairs, differ = len(row.pairs), row.num_identical < len(row.pairs)
        _add(
            table,
            row,
            str(row.num_prompts),
            f"{row.plain.tokens_per_s:.1f}",
            f"{row.speculative.tokens_per_s:.1f}",
            verdict.interval(row.speed_up),
            f"{row.totals.acceptance_rate:.2f}",
            f"{row.totals.draft_efficiency:.2f}",
            f"{row.totals.mean_acceptance_length:.2f}",
            f"{row.num_identical}/{num_pairs}" + (" DIFFER" if differ else ""),
        )
    return table


def _latencies(result: Result) -> Table:
    table = _table(
        "Latency in ms, p50 / p95 / p99",
        ("category", "T", "arm"),
        ("time to first token", "time per output token", "gap between deliveries"),
    )
    for row in result.rows:
        for name, arm in (("plain", row.plain), ("speculative", row.speculative)):
            if row.category == ALL and name == "plain":
                table.add_section()
            table.add_row(
                row.category if name == "plain" else "",
                f"{row.temperature:g}" if name == "plain" else "",
                name,
                *(quantiles(values) for values in latencies(arm)),
            )
    return table


def latencies(arm: ArmSummary) -> tuple[tuple[float, ...], ...]:
    return arm.ttft_ms, arm.time_per_output_token_ms, arm.gap_ms


def quantiles(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values) or "-"


def _economics(result: Result) -> Table:
    table = _table(
        "What a round costs and gives; the last two columns are estimates",
        ("category", "T"),
        (
            *("plain step\nms", "drafted round\nin plain steps", "draft\ntokens"),
            *("acceptance_\nrate", "break-even\nacceptance", "predicted\nspeed-up"),
            *("best draft\nlength", "its gain"),
        ),
    )
    for row in result.rows:
        _add(table, row, *economics_cells(row))
    return table


def economics_cells(row: Row) -> list[str]:
    found = row.economics
    if found is None:
        return ["-"] * 8
    return [
        f"{found.plain_step_ms:.1f}",
        f"{found.drafted_round:.2f}",
        f"{found.mean_draft_length:.1f}",
        f"{row.totals.acceptance_rate:.2f}",
        "none pays" if found.break_even is None else f"{found.break_even:.2f}",
        f"{found.predicted:.2f}x",
        *_best(found),
    ]


def _best(found: Economics) -> tuple[str, str]:
    if found.best_length is None:
        return "-", "-"
    return str(found.best_length.num_draft_tokens), f"{found.best_length.gain:.2f}x"


def _loads(result: Result) -> Table:
    table = _table(
        "Under load",
        ("load", "T"),
        (
            *("plain\ntokens/s", "speculative\ntokens/s", "speed-up (95 %)"),
            *("time per output token\np95 ms, plain / spec.", "latency p95 ms\nplain / spec."),
            "identical",
        ),
    )
    for row in result.loads:
        kind = " (latency)" if row.load.kind is LoadKind.OPEN else ""
        table.add_row(
            row.load.label,
            f"{row.temperature:g}",
            f"{row.plain.tokens_per_s:.1f}",
            f"{row.speculative.tokens_per_s:.1f}",
            verdict.interval(row.speed_up) + kind,
            _p95s(row.plain.time_per_output_token_ms, row.speculative.time_per_output_token_ms),
            _p95s(row.plain.latency_ms, row.speculative.latency_ms),
            f"{row.num_identical}/{row.num_pairs}",
        )
    return table


def _p95s(plain: Sequence[float], speculative: Sequence[float]) -> str:
    return " / ".join(f"{values[1]:.0f}" if values else "-" for values in (plain, speculative))
