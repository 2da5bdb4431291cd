"""The tables of a result as words, for a page and for a terminal. Pure; knows neither."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench import verdict
from paceline.bench.result import Economics, Result, Row
from paceline.bench.sample import LoadKind


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names a row. A newline in a column's name is where it may break."""

    title: str
    explanation: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(result: Result) -> list[Table]:
    """All of them; the one of loads where there are several."""
    found = [speed(result), latency(result), economics(result)]
    return [*found, loads(result)] if len({row.load for row in result.loads}) > 1 else found


def speed(result: Result) -> Table:
    return Table(
        "Plain against speculative decoding",
        "Tokens per second of one stream, whole requests; intervals of 95 % over prompts.",
        (
            *("category", "T", "prompts", "plain\ntokens/s", "speculative\ntokens/s"),
            *("speed-up (95 %)", "acceptance_\nrate", "draft_\nefficiency"),
            *("mean_\nacceptance_\nlength", "identical"),
        ),
        tuple(
            (
                *_name(row),
                str(row.num_prompts),
                f"{row.plain.tokens_per_s:.1f}",
                f"{row.speculative.tokens_per_s:.1f}",
                verdict.interval(row.speed_up, "-"),
                f"{row.totals.acceptance_rate:.2f}",
                f"{row.totals.draft_efficiency:.2f}",
                f"{row.totals.mean_acceptance_length:.2f}",
                _identical(row.num_identical, len(row.pairs)),
            )
            for row in result.rows
        ),
    )


def latency(result: Result) -> Table:
    return Table(
        "Latency in ms, p50 / p95 / p99",
        "Time per output token is the time after the first token over the tokens that follow. Gaps "
        "are between deliveries: the tokens of a round arrive together.",
        (
            *("category", "T", "arm", "time to first token", "time per output token"),
            "gap between deliveries",
        ),
        tuple(
            (
                *_name(row),
                name,
                _quantiles(arm.ttft_ms),
                _quantiles(arm.time_per_output_token_ms),
                _quantiles(arm.gap_ms),
            )
            for row in result.rows
            for name, arm in (("plain", row.plain), ("speculative", row.speculative))
        ),
    )


def economics(result: Result) -> Table:
    return Table(
        "What a round costs and gives",
        "A drafted round that takes 1.2 plain steps must deliver 1.2 tokens; break-even is the "
        "acceptance_rate that does. The best draft length and its gain are estimates, from "
        "acceptance by position and a fit of round times, for drafts that are chains.",
        (
            *("category", "T", "plain\nstep ms", "drafted round\nin plain steps", "draft\ntokens"),
            *("acceptance_\nrate", "break-even\nacceptance", "predicted\nspeed-up"),
            *("best length\n(estimate)", "its gain\n(estimate)"),
        ),
        tuple((*_name(row), *_economics_cells(row)) for row in result.rows),
    )


def loads(result: Result) -> Table:
    return Table(
        "Under load",
        "Tokens per second of all requests together; at a rate the speed-up is of mean latency. "
        "Both: plain / speculative.",
        (
            *("load", "T", "plain\ntokens/s", "speculative\ntokens/s", "speed-up (95 %)"),
            *("time per token\np95 ms, both", "latency\np95 ms, both"),
            "identical",
        ),
        tuple(
            (
                row.load.label,
                f"{row.temperature:g}",
                f"{row.plain.tokens_per_s:.1f}",
                f"{row.speculative.tokens_per_s:.1f}",
                verdict.interval(row.speed_up, "-")
                + (" latency" if row.load.kind is LoadKind.OPEN else ""),
                _p95s(row.plain.time_per_output_token_ms, row.speculative.time_per_output_token_ms),
                _p95s(row.plain.latency_ms, row.speculative.latency_ms),
                _identical(row.num_identical, row.num_pairs),
            )
            for row in result.loads
        ),
    )


def _name(row: Row) -> tuple[str, str]:
    return row.category or "(none)", f"{row.temperature:g}"


def _identical(num_identical: int, num_pairs: int) -> str:
    return f"{num_identical}/{num_pairs}" + (" DIFFER" if num_identical < num_pairs else "")


def _quantiles(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values) or "-"


def _economics_cells(row: Row) -> tuple[str, ...]:
    found = row.economics
    if found is None:
        return ("-",) * 8
    return (
        f"{found.plain_step_ms:.1f}",
        f"{found.drafted_round:.2f}",
        f"{found.mean_draft_length:.1f}",
        f"{row.totals.acceptance_rate:.2f}",
        "none pays" if found.break_even is None else f"{found.break_even:.2f}",
        f"{found.predicted:.2f}x",
        *_best(found),
    )


def _best(found: Economics) -> tuple[str, str]:
    if found.best_length is None:
        return "-", "-"
    return str(found.best_length.num_draft_tokens), f"{found.best_length.gain:.2f}x"


def _p95s(plain: Sequence[float], speculative: Sequence[float]) -> str:
    return " / ".join(f"{values[1]:.0f}" if values else "-" for values in (plain, speculative))
