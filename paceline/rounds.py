"""Rounds: what happened in one, and the counters and rates of many.

A round is one forward of the target model for one sequence. Knows no model, message or service.
"""

from dataclasses import dataclass, field
from enum import IntEnum


class TokenSource(IntEnum):
    """Where a token came from. Values equal the wire's."""

    UNSPECIFIED = 0
    PLAIN = 1
    RECOVERED = 2
    BONUS = 3
    DRAFT_MODEL = 4
    PROMPT_LOOKUP = 5
    PAST_ANSWERS = 6
    RECYCLED = 7
    LOOKAHEAD = 8
    RANDOM = 9


class PlainReason(IntEnum):
    """Why a round was plain although speculation was on. Values equal the wire's."""

    UNSPECIFIED = 0
    SPECULATION_OFF = 1
    NO_DRAFTER = 2
    NO_DRAFT = 3
    NOT_WORTH = 4
    BUDGET = 5
    NO_ROOM = 6
    PROBE = 7


class FinishReason(IntEnum):
    """Why an answer ended. Values equal the wire's."""

    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round of one sequence. Times in microseconds."""

    round: int
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    num_output: int = 0
    source: TokenSource = TokenSource.UNSPECIFIED
    plain_reason: PlainReason = PlainReason.UNSPECIFIED
    draft_us: int = 0
    wait_us: int = 0
    verify_us: int = 0
    start_unix_nanos: int = 0
    batch_sequences: int = 0
    batch_rows: int = 0
    ledger_us: int = 0


@dataclass(frozen=True, slots=True)
class PrefillReport:
    """What happened before the first round. Times in microseconds."""

    queue_us: int
    prefill_us: int
    num_prompt_tokens: int
    num_cached_tokens: int
    start_unix_nanos: int


@dataclass(slots=True)
class SpeculationTotals:
    """Raw counters; every rate is derived from them, here and nowhere else.

    Sums may be pooled over requests, ratios may not be averaged.
    """

    num_rounds: int = 0
    num_drafted_rounds: int = 0
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)

    def add_round(self, report: RoundReport) -> None:
        self.num_rounds += 1
        self.num_drafted_rounds += report.num_drafted > 0
        self.num_drafted += report.num_drafted
        self.num_tested += report.num_tested
        self.num_accepted += report.num_accepted
        self._grow(report.num_accepted)
        for position in range(report.num_accepted):
            self.accepted_by_position[position] += 1

    def add(self, other: "SpeculationTotals") -> None:
        self.num_rounds += other.num_rounds
        self.num_drafted_rounds += other.num_drafted_rounds
        self.num_drafted += other.num_drafted
        self.num_tested += other.num_tested
        self.num_accepted += other.num_accepted
        self._grow(len(other.accepted_by_position))
        for position, count in enumerate(other.accepted_by_position):
            self.accepted_by_position[position] += count

    def _grow(self, size: int) -> None:
        self.accepted_by_position += [0] * (size - len(self.accepted_by_position))

    @property
    def acceptance_rate(self) -> float:
        """accepted / tested: the papers' alpha, a property of the two models and the text."""
        return self.num_accepted / self.num_tested if self.num_tested else 0.0

    @property
    def draft_efficiency(self) -> float:
        """accepted / drafted: vLLM's "draft acceptance rate"; falls as blocks get longer."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per round with a block, the recovered or bonus token included."""
        return 1 + self.num_accepted / self.num_drafted_rounds if self.num_drafted_rounds else 1.0
