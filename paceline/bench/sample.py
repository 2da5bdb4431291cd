"""What is known of one measured answer. Pure: knows no gateway and no clock.

A trial is asked twice, once per arm, with the same seed: the two samples are a pair. All times are
microseconds on the clock of whoever asks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from paceline.rounds import RoundReport, SpeculationTotals, TokenSource


class Arm(StrEnum):
    PLAIN = "plain"
    SPECULATIVE = "speculative"


class LoadKind(StrEnum):
    # So many requests at a time; the next begins when one ends.
    CLOSED = "closed"
    # So many requests a second on average, whatever becomes of them.
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Load:
    kind: LoadKind
    value: float

    @property
    def label(self) -> str:
        unit = "at a time" if self.kind is LoadKind.CLOSED else "per second"
        return f"{self.value:g} {unit}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What both arms of a pair are asked. `block` numbers what runs together, per load."""

    prompt: int
    category: str
    temperature: float
    pair: int
    load: Load
    block: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens that arrived together, this long after the intended start."""

    at_us: int
    sources: tuple[TokenSource, ...]
    round: RoundReport | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm. `start_us` is the intended start, since the run began.

    `error` names why there is no complete answer; the other fields mean nothing then.
    """

    trial: Trial
    arm: Arm
    start_us: int
    duration_us: int
    deliveries: Sequence[Delivery] = ()
    token_ids: tuple[int, ...] = ()
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    error: str = ""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ttft_us(self) -> int | None:
        """Intended start to first token; None for an empty answer."""
        return self.deliveries[0].at_us if self.deliveries else None

    @property
    def time_per_output_token_us(self) -> float | None:
        """Time after the first token over the tokens that followed it, as other tools define it."""
        if self.num_tokens < 2:
            return None
        return (self.deliveries[-1].at_us - self.deliveries[0].at_us) / (self.num_tokens - 1)

    def gaps_us(self) -> Iterator[tuple[int, Delivery]]:
        """Every delivery but the first, with the time since the one before it.

        Tokens of one delivery arrive together: this is what a reader sees as a pause.
        """
        for before, delivery in zip(self.deliveries, self.deliveries[1:], strict=False):
            yield delivery.at_us - before.at_us, delivery


@dataclass(frozen=True, slots=True)
class Pair:
    plain: Sample
    speculative: Sample

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.speculative.token_ids


def pairs(samples: Sequence[Sample]) -> list[Pair]:
    """The trials of which both arms have a complete answer, in the order of the plain ones."""
    speculative = {s.trial: s for s in samples if s.arm is Arm.SPECULATIVE and not s.error}
    return [
        Pair(sample, speculative[sample.trial])
        for sample in samples
        if sample.arm is Arm.PLAIN and not sample.error and sample.trial in speculative
    ]
