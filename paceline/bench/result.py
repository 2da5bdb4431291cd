"""What is reported of a run: by category, by load, over all. Pure data; `analysis` fills it."""

from dataclasses import dataclass

from paceline.bench.economics import BestLength
from paceline.bench.sample import Arm, Load, Pair
from paceline.bench.statistics import Ratio
from paceline.rounds import SpeculationTotals, TokenSource

ALL = "all"
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm of complete answers; the quantiles are p50, p95 and p99 in milliseconds."""

    num_answers: int
    num_tokens: int
    tokens_per_s: float
    ttft_ms: tuple[float, ...]
    time_per_output_token_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    latency_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Economics:
    """Round times in plain steps.

    A drafted round that takes `drafted_round` steps must deliver as many tokens to break even;
    `break_even` is the acceptance_rate that does, None where none would.
    """

    plain_step_ms: float
    drafted_round: float
    mean_draft_length: float
    break_even: float | None
    predicted: float
    measured_rounds: float
    best_length: BestLength | None
    lengths: dict[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """Everything about the pairs of one category at one temperature, or of all categories."""

    category: str
    temperature: float
    num_prompts: int
    pairs: tuple[Pair, ...]
    plain: ArmSummary
    speculative: ArmSummary
    totals: SpeculationTotals
    tested_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    tokens_per_round: dict[int, int]
    sources: dict[TokenSource, int]
    speed_up: Ratio | None
    economics: Economics | None

    @property
    def num_identical(self) -> int:
        return sum(pair.identical for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One load at one temperature. Tokens/s are of all requests together.

    `speed_up` compares tokens/s of a closed load, and mean latency of an open one, whose tokens/s
    are those of the arrivals.
    """

    load: Load
    temperature: float
    num_pairs: int
    num_identical: int
    plain: ArmSummary
    speculative: ArmSummary
    speed_up: Ratio | None


@dataclass(frozen=True, slots=True)
class Result:
    """`rows` are of the first load: per temperature, the categories and then all of them."""

    rows: tuple[Row, ...]
    loads: tuple[LoadRow, ...]
    errors: dict[tuple[Arm, str], int]
    num_pairs: int
    num_identical: int

    @property
    def identical(self) -> bool:
        return self.num_identical == self.num_pairs

    @property
    def temperatures(self) -> list[float]:
        return sorted({row.temperature for row in self.rows})

    def at(self, temperature: float) -> list[Row]:
        """The categories, without the row of all."""
        return [r for r in self.rows if r.temperature == temperature and r.category != ALL]

    def overall(self, temperature: float) -> Row:
        return next(r for r in self.rows if r.temperature == temperature and r.category == ALL)
