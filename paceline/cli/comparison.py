"""What a comparison of plain with speculative decoding found. Pure: knows no gateway.

A pair is one plain and one speculative answer to the same request. Counters and times are pooled;
the one ratio of several pairs is their median.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline.cli.answer import Answer
from paceline.rounds import SpeculationTotals


@dataclass(frozen=True, slots=True)
class Pair:
    plain: Answer
    speculative: Answer

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.speculative.token_ids

    @property
    def ratio(self) -> float:
        plain = self.plain.tokens_per_s
        return self.speculative.tokens_per_s / plain if plain else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The pairs of one prompt at one temperature, or of all."""

    label: str
    temperature: float | None
    pairs: Sequence[Pair]

    @property
    def identical(self) -> bool:
        return all(pair.identical for pair in self.pairs)

    @property
    def ratio(self) -> float:
        return median(pair.ratio for pair in self.pairs)

    @property
    def plain_tokens_per_s(self) -> float:
        return _rate([pair.plain for pair in self.pairs])

    @property
    def speculative_tokens_per_s(self) -> float:
        return _rate([pair.speculative for pair in self.pairs])

    @property
    def totals(self) -> SpeculationTotals:
        totals = SpeculationTotals()
        for pair in self.pairs:
            assert pair.speculative.finished is not None
            totals.add(pair.speculative.finished.totals)
        return totals

    def as_json(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "prompt": self.label,
            "temperature": self.temperature,
            "pairs": len(self.pairs),
            "tokens_per_s_plain": self.plain_tokens_per_s,
            "tokens_per_s_speculative": self.speculative_tokens_per_s,
            "ratio": self.ratio,
            "rounds": totals.num_rounds,
            "drafted": totals.num_drafted,
            "tested": totals.num_tested,
            "accepted": totals.num_accepted,
            "acceptance_rate": totals.acceptance_rate,
            "draft_efficiency": totals.draft_efficiency,
            "mean_acceptance_length": totals.mean_acceptance_length,
            "identical": self.identical,
        }


def _rate(answers: Sequence[Answer]) -> float:
    """Tokens per second of all: sums first, then the ratio."""
    finished = [answer.finished for answer in answers if answer.finished is not None]
    duration_us = sum(end.duration_us for end in finished)
    tokens = sum(end.num_completion_tokens for end in finished)
    return tokens / duration_us * 1e6 if duration_us else 0.0


def pooled(rows: Sequence[Row]) -> Row:
    return Row("all", None, [pair for row in rows for pair in row.pairs])
