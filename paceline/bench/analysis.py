"""From samples to what is reported of them. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TypeVar

from paceline.bench import economics
from paceline.bench.economics import RoundCost
from paceline.bench.result import ALL, QUANTILES, ArmSummary, Economics, LoadRow, Result, Row
from paceline.bench.sample import Load, LoadKind, Pair, Sample, pairs
from paceline.bench.statistics import Cost, quantile, speed_up
from paceline.rounds import RoundReport, SpeculationTotals

# What ran together: a load, a temperature, a block.
_Where = tuple[Load, float, int]
# A round, and its time in plain steps.
_TimedRound = tuple[RoundReport, float]
_K = TypeVar("_K")


def analyse(samples: Sequence[Sample]) -> Result:
    """The result of a run, of any part of it, or of nothing."""
    found = pairs(samples)
    rows: list[Row] = []
    if found:
        first = found[0].plain.trial.load
        base = [pair for pair in found if pair.plain.trial.load == first]
        for temperature in sorted({pair.plain.trial.temperature for pair in base}):
            rows += _rows(
                temperature, [p for p in base if p.plain.trial.temperature == temperature]
            )
    # The arms of a block with a failed request did not do the same work.
    broken = {_where(sample) for sample in samples if sample.error}
    loads = [
        _load_row(load, temperature, group, broken)
        for (load, temperature), group in _grouped(
            found, lambda pair: (pair.plain.trial.load, pair.plain.trial.temperature)
        )
    ]
    return Result(
        rows=tuple(rows),
        loads=tuple(loads),
        errors=dict(Counter((s.arm, s.error) for s in samples if s.error)),
        num_pairs=len(found),
        num_identical=sum(pair.identical for pair in found),
    )


def _grouped(found: Sequence[Pair], key: Callable[[Pair], _K]) -> list[tuple[_K, list[Pair]]]:
    """In order of first appearance."""
    groups: dict[_K, list[Pair]] = {}
    for pair in found:
        groups.setdefault(key(pair), []).append(pair)
    return list(groups.items())


def _rows(temperature: float, found: Sequence[Pair]) -> list[Row]:
    categories = sorted(_grouped(found, lambda pair: pair.plain.trial.category))
    timed = [_in_plain_steps(group) for _, group in categories]
    together = [round_ for group in timed for round_ in group]
    cost = economics.fit_cost(together)
    rows = [
        _row(category, temperature, group, rounds, cost)
        for (category, group), rounds in zip(categories, timed, strict=True)
    ]
    return [*rows, _row(ALL, temperature, found, together, cost)]


def _in_plain_steps(found: Sequence[Pair]) -> list[_TimedRound]:
    """The rounds of the speculative answers, in plain steps of the same prompts."""
    step = economics.plain_step_us([pair.plain for pair in found])
    gaps = economics.round_gaps([pair.speculative for pair in found])
    return [(report, gap / step) for report, gap in gaps] if step else []


def _row(
    category: str,
    temperature: float,
    found: Sequence[Pair],
    timed: Sequence[_TimedRound],
    cost: RoundCost | None,
) -> Row:
    plain = [pair.plain for pair in found]
    speculative = [pair.speculative for pair in found]
    totals = SpeculationTotals()
    for sample in speculative:
        totals.add(sample.totals)
    reports = [d.round for s in speculative for d in s.deliveries if d.round is not None]
    depth = max((report.num_tested for report in reports), default=0)
    tested = tuple(sum(r.num_tested > i for r in reports) for i in range(depth))
    accepted = tuple(sum(r.num_accepted > i for r in reports) for i in range(depth))
    return Row(
        category=category,
        temperature=temperature,
        num_prompts=len({pair.plain.trial.prompt for pair in found}),
        pairs=tuple(found),
        plain=_arm(plain, sum(s.duration_us for s in plain)),
        speculative=_arm(speculative, sum(s.duration_us for s in speculative)),
        totals=totals,
        tested_by_position=tested,
        accepted_by_position=accepted,
        tokens_per_round=dict(sorted(Counter(r.num_output for r in reports).items())),
        sources=dict(
            sorted(Counter(x for s in speculative for d in s.deliveries for x in d.sources).items())
        ),
        speed_up=speed_up(_costs_by_prompt(found)),
        economics=_economics(plain, timed, totals, tested, accepted, cost),
    )


def _arm(samples: Sequence[Sample], time_us: int) -> ArmSummary:
    num_tokens = sum(sample.num_tokens for sample in samples)
    return ArmSummary(
        num_answers=len(samples),
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / time_us * 1e6 if time_us else 0.0,
        ttft_ms=_quantiles([s.ttft_us for s in samples]),
        time_per_output_token_ms=_quantiles([s.time_per_output_token_us for s in samples]),
        gap_ms=_quantiles([gap for sample in samples for gap, _ in sample.gaps_us()]),
        latency_ms=_quantiles([sample.duration_us for sample in samples]),
    )


def _quantiles(values_us: Sequence[float | None]) -> tuple[float, ...]:
    """Empty when there is nothing to take them of."""
    known = [value / 1000 for value in values_us if value is not None]
    return tuple(quantile(known, q) for q in QUANTILES) if known else ()


def _cost(found: Sequence[Pair]) -> Cost:
    return Cost(
        plain_us=sum(pair.plain.duration_us for pair in found),
        plain_tokens=sum(pair.plain.num_tokens for pair in found),
        speculative_us=sum(pair.speculative.duration_us for pair in found),
        speculative_tokens=sum(pair.speculative.num_tokens for pair in found),
    )


def _costs_by_prompt(found: Sequence[Pair]) -> list[Cost]:
    return [_cost(group) for _, group in _grouped(found, lambda pair: pair.plain.trial.prompt)]


def _economics(
    plain: Sequence[Sample],
    timed: Sequence[_TimedRound],
    totals: SpeculationTotals,
    tested: Sequence[int],
    accepted: Sequence[int],
    cost: RoundCost | None,
) -> Economics | None:
    """None where nothing was drafted, or no answer was long enough to time a round."""
    step = economics.plain_step_us(plain)
    drafted = [(report, time) for report, time in timed if report.num_drafted]
    if step is None or cost is None or not drafted:
        return None
    lengths = dict(sorted(Counter(report.num_drafted for report, _ in drafted).items()))
    round_cost = fmean(time for _, time in drafted)
    return Economics(
        plain_step_ms=step / 1000,
        drafted_round=round_cost,
        mean_draft_length=fmean(report.num_drafted for report, _ in drafted),
        break_even=economics.break_even(round_cost, lengths),
        predicted=economics.predicted_gain(
            acceptance=totals.acceptance_rate,
            lengths=lengths,
            drafted_share=len(drafted) / len(timed),
            cost=cost,
            ttft_us=fmean(sample.ttft_us or 0 for sample in plain),
            plain_step=step,
            num_tokens=fmean(sample.num_tokens for sample in plain),
        ),
        measured_rounds=fmean(report.num_output for report, _ in drafted) / round_cost,
        best_length=economics.best_length(tested, accepted, cost),
        lengths=lengths,
    )


def _where(sample: Sample) -> _Where:
    return sample.trial.load, sample.trial.temperature, sample.trial.block


def _load_row(
    load: Load, temperature: float, found: Sequence[Pair], broken: set[_Where]
) -> LoadRow:
    blocks = _grouped(found, lambda pair: _where(pair.plain))
    unit = _throughput if load.kind is LoadKind.CLOSED else _latency
    return LoadRow(
        load=load,
        temperature=temperature,
        num_pairs=len(found),
        num_identical=sum(pair.identical for pair in found),
        plain=_arm([p.plain for p in found], sum(_wall_us(p.plain for p in b) for _, b in blocks)),
        speculative=_arm(
            [p.speculative for p in found],
            sum(_wall_us(p.speculative for p in b) for _, b in blocks),
        ),
        speed_up=speed_up([unit(block) for where, block in blocks if where not in broken]),
    )


def _wall_us(samples: Iterable[Sample]) -> int:
    """From the first intended start of one arm of a block to its last end."""
    times = [(sample.start_us, sample.start_us + sample.duration_us) for sample in samples]
    return max(end for _, end in times) - min(start for start, _ in times)


def _throughput(block: Sequence[Pair]) -> Cost:
    return Cost(
        plain_us=_wall_us(pair.plain for pair in block),
        plain_tokens=sum(pair.plain.num_tokens for pair in block),
        speculative_us=_wall_us(pair.speculative for pair in block),
        speculative_tokens=sum(pair.speculative.num_tokens for pair in block),
    )


def _latency(block: Sequence[Pair]) -> Cost:
    """Answers in the place of tokens: the speed-up is that of the mean latency."""
    return Cost(
        plain_us=sum(pair.plain.duration_us for pair in block),
        plain_tokens=len(block),
        speculative_us=sum(pair.speculative.duration_us for pair in block),
        speculative_tokens=len(block),
    )
