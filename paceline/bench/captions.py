"""The words around the figures of a report: heading, how to read it, and what it shows. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.bench import verdict
from paceline.bench.result import Result, Row


@dataclass(frozen=True, slots=True)
class Caption:
    """`alternative` is the figure for those who do not see it."""

    title: str
    explanation: str
    alternative: Callable[[Result], str]


def _each(result: Result, describe: Callable[[Row], str]) -> str:
    parts = []
    for temperature in result.temperatures:
        rows = [*result.at(temperature), result.overall(temperature)]
        described = "; ".join(f"{row.category or 'no category'} {describe(row)}" for row in rows)
        parts.append(f"Temperature {temperature:g}: {described}.")
    return " ".join(parts)


def _positions(row: Row) -> str:
    shares = [
        f"{accepted / tested:.0%}"
        for tested, accepted in zip(row.tested_by_position, row.accepted_by_position, strict=True)
    ]
    return ", ".join(shares[:8]) or "nothing tested"


def _rounds(row: Row) -> str:
    total = sum(row.tokens_per_round.values())
    return ", ".join(
        f"{count} in {rounds / total:.0%}" for count, rounds in row.tokens_per_round.items()
    )


def _sources(row: Row) -> str:
    total = sum(row.sources.values())
    return ", ".join(
        f"{verdict.source_name(source)} {count / total:.0%}"
        for source, count in row.sources.items()
    )


def _latencies(row: Row) -> str:
    def of(plain: tuple[float, ...], speculative: tuple[float, ...]) -> str:
        if not (plain and speculative):
            return "not known"
        return f"{plain[0]:.0f} against {speculative[0]:.0f}"

    plain, speculative = row.plain, row.speculative
    return (
        f"medians in ms, time to first token {of(plain.ttft_ms, speculative.ttft_ms)}, "
        "time per output token "
        f"{of(plain.time_per_output_token_ms, speculative.time_per_output_token_ms)}, "
        f"gap {of(plain.gap_ms, speculative.gap_ms)}"
    )


def _loads(result: Result) -> str:
    return "; ".join(
        f"{row.load.label}, temperature {row.temperature:g}: plain {row.plain.tokens_per_s:.1f} "
        f"and speculative {row.speculative.tokens_per_s:.1f} tokens/s, "
        f"speed-up {verdict.interval(row.speed_up)}"
        for row in result.loads
    )


def _predicted(row: Row) -> str:
    if row.economics is None or row.speed_up is None:
        return "nothing drafted"
    return f"predicted {row.economics.predicted:.2f}x, measured {row.speed_up.value:.2f}x"


def _break_even(row: Row) -> str:
    if row.economics is None:
        return "nothing drafted"
    needed = row.economics.break_even
    text = "no rate would pay" if needed is None else f"needs {needed:.2f}"
    return f"{text}, has {row.totals.acceptance_rate:.2f}"


# In the order of the page; named as in `drawings`.
CAPTIONS = {
    "speed-up": Caption(
        "Speed-up by category",
        "Tokens per second, speculative over plain, whole requests. Lines are 95 % intervals from "
        "resampling prompts; without a line the prompts were too few. Right of the dashed line "
        "speculation is faster; a line that crosses it shows no difference.",
        lambda result: _each(result, lambda row: verdict.interval(row.speed_up)),
    ),
    "acceptance-by-position": Caption(
        "Acceptance by position",
        "Of 100 draft tokens tested at a position, how many the target model kept. A token is "
        "tested when all before it were kept; a dot means fewer than 5 tests.",
        lambda result: _each(result, _positions),
    ),
    "tokens-per-round": Caption(
        "Tokens per round",
        "How many tokens one forward of the target model delivered, over all prompts. Plain "
        "decoding always delivers one.",
        lambda result: _each(result, _rounds),
    ),
    "source-share": Caption(
        "Where the tokens came from",
        "Plain, recovered and bonus tokens are the target model's own; the others were drafted, "
        "and accepted.",
        lambda result: _each(result, _sources),
    ),
    "latencies": Caption(
        "Latency, plain against speculative",
        "Of all prompts, the share of answers (or gaps) at most this long; further left is faster. "
        "A speculative gap may deliver several tokens. The slowest hundredth is not drawn; the "
        "table has p99.",
        lambda result: _each(result, _latencies),
    ),
    "loads": Caption(
        "Under load",
        "The same prompts at several loads, both arms in short blocks in turn. At a rate, requests "
        "are timed from their intended start, and the speed-up is that of the mean latency.",
        _loads,
    ),
    "predicted-gain": Caption(
        "Predicted against measured gain",
        "Predicted from acceptance_rate, draft lengths and one fit of round times for all "
        "categories. Far apart: acceptance is not alike at all positions, or something other than "
        "rounds took time.",
        lambda result: _each(result, _predicted),
    ),
    "break-even": Caption(
        "Break-even",
        "What acceptance_rate pays for the longer rounds measured here, at the draft lengths "
        "measured here. Left: gain of the rounds that had a draft, all prompts.",
        lambda result: _each(result, _break_even),
    ),
}
