"""What measured round times say: break-even, predicted gain, and the draft length that was best.

Pure. Round times are in plain steps of the same category (a drafted round of 1.2 takes as long as
1.2 plain tokens), so that categories with long and short contexts can share one fit. Formulas:
arXiv 2211.17192, with measured round times in the place of its cost coefficient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from paceline.bench.sample import Sample
from paceline.bench.statistics import fit_line
from paceline.rounds import RoundReport

# Draft positions tested less often than this say nothing of a longer draft.
MIN_TESTED = 20


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Time of a round in plain steps: `base + per_token * drafted`, and of one without a draft."""

    base: float
    per_token: float
    undrafted: float

    def of(self, num_drafted: float) -> float:
        return self.base + self.per_token * num_drafted if num_drafted else self.undrafted


@dataclass(frozen=True, slots=True)
class BestLength:
    """An estimate: the draft length of most tokens per time, and its gain over plain decoding."""

    num_draft_tokens: int
    gain: float


def plain_step_us(samples: Sequence[Sample]) -> float | None:
    """Mean time of a plain round, from the gaps of plain answers."""
    gaps = [gap for sample in samples for gap, delivery in sample.gaps_us() if delivery.round]
    return fmean(gaps) if gaps and sum(gaps) else None


def round_gaps(samples: Sequence[Sample]) -> list[tuple[RoundReport, int]]:
    """Every round but an answer's first, with the time from the delivery before to its own."""
    return [
        (delivery.round, gap)
        for sample in samples
        for gap, delivery in sample.gaps_us()
        if delivery.round is not None
    ]


def fit_cost(rounds: Sequence[tuple[RoundReport, float]]) -> RoundCost | None:
    """The cost of rounds whose times are in plain steps; None when none had a draft."""
    drafted = [(float(report.num_drafted), time) for report, time in rounds if report.num_drafted]
    if not drafted:
        return None
    undrafted = [time for report, time in rounds if not report.num_drafted]
    base, per_token = fit_line(drafted)
    if len({length for length, _ in drafted}) == 1:
        # One length only: the line through a plain step and that length.
        length, time = drafted[0][0], base
        base, per_token = (1.0, (time - 1.0) / length) if time > 1.0 else (time, 0.0)
    return RoundCost(base, per_token, fmean(undrafted) if undrafted else 1.0)


def expected_length(acceptance: float, lengths: Mapping[int, int]) -> float:
    """Output tokens per drafted round at one acceptance_rate, over a histogram of draft lengths.

    One draft of K tokens gives (1 - a^(K+1)) / (1 - a).
    """
    total = sum(lengths.values())
    return sum(count * _geometric(acceptance, length) for length, count in lengths.items()) / total


def _geometric(acceptance: float, length: int) -> float:
    if acceptance >= 1.0:
        return length + 1.0
    return float((1.0 - acceptance ** (length + 1)) / (1.0 - acceptance))


def break_even(round_cost: float, lengths: Mapping[int, int]) -> float | None:
    """The acceptance_rate from which drafted rounds of this cost gain; None if no rate suffices."""
    if round_cost > expected_length(1.0, lengths):
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (
            (middle, high) if expected_length(middle, lengths) < round_cost else (low, middle)
        )
    return high


def predicted_gain(
    *,
    acceptance: float,
    lengths: Mapping[int, int],
    drafted_share: float,
    cost: RoundCost,
    ttft_us: float,
    plain_step: float,
    num_tokens: float,
) -> float:
    """Speed-up over plain for answers of `num_tokens`, the time to the first token included."""
    per_round = drafted_share * expected_length(acceptance, lengths) + (1.0 - drafted_share)
    total = sum(lengths.values())
    drafted_cost = sum(count * cost.of(length) for length, count in lengths.items()) / total
    round_cost = drafted_share * drafted_cost + (1.0 - drafted_share) * cost.undrafted
    following_us = (num_tokens - 1.0) * plain_step
    return (ttft_us + following_us) / (ttft_us + following_us * round_cost / per_round)


def best_length(
    tested: Sequence[int], accepted: Sequence[int], cost: RoundCost
) -> BestLength | None:
    """From how often position i was tested and accepted; 0 tokens where no draft would have paid.

    For chains, up to the last position tested MIN_TESTED times. None where none was.
    """
    best, survival, length = BestLength(0, 1.0), 1.0, 1.0
    for position, (num_tested, num_accepted) in enumerate(zip(tested, accepted, strict=True)):
        if num_tested < MIN_TESTED:
            return best if position else None
        survival *= num_accepted / num_tested
        length += survival
        gain = length / cost.of(position + 1)
        if gain > best.gain:
            best = BestLength(position + 1, gain)
    return best if tested else None
