"""One sequence at the verifier: its tokens, where it stands, and when it ends.

Knows no messages, threads or batches. Tokens are chosen by paceline.sampling; what is here decides
which of them are delivered.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from paceline.model.cache import SequenceCache
from paceline.params import SamplingParams, Speculation
from paceline.rounds import (
    FinishReason,
    PlainReason,
    PrefillReport,
    RoundReport,
    SpeculationTotals,
    TokenSource,
)
from paceline.sampling import SamplingState
from verifier_service.draft_clock import DraftClock
from verifier_service.mailbox import Mailbox
from verifier_service.pacing import Pacing
from verifier_service.sources import Sources


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request."""

    prompt: Sequence[int]
    generated: Sequence[int]
    params: SamplingParams
    seed: int
    speculation: Speculation = Speculation.AUTO
    # Of a drafter's chain, and of the tree of all sources.
    max_draft_tokens: int = 0
    max_tree_tokens: int = 0
    # Whether anything may be kept of it for later requests.
    keep: bool = True
    # Seconds left for the answer when the request came in; None: no limit.
    timeout_s: float | None = None
    trace: SpanContext | None = None
    workload: str = ""
    tenant: str = ""
    # Rounds that another verifier reported before.
    num_rounds: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Raw log-probabilities at one delivered token."""

    logprob: float
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """What one round delivered."""

    start_index: int
    token_ids: Sequence[int]
    sources: Sequence[TokenSource]
    logprobs: Sequence[TokenLogprob]
    round: RoundReport
    prefill: PrefillReport | None


@dataclass(frozen=True, slots=True)
class FinalEvent:
    """The answer is complete."""

    finish_reason: FinishReason
    stop_token_id: int | None
    num_cached_tokens: int
    num_output_tokens: int
    totals: SpeculationTotals
    digest: bytes


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The answer cannot be completed; `kind` is mapped to a status at the wire."""

    kind: str
    message: str


Event = TokensEvent | FinalEvent | FailedEvent
Sink = Callable[[Event], None]

_numbers = itertools.count(1)


@dataclass(eq=False)
class VerifierSequence:
    """A sequence from admission to its final event. Owned by the engine's thread."""

    request: Request
    mailbox: Mailbox
    sink: Sink
    admitted_ns: int  # monotonic
    admitted_unix_ns: int
    number: int = field(default_factory=lambda: next(_numbers))
    pacing: Pacing = field(default_factory=Pacing)
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    # Set when the engine takes the sequence over.
    state: SamplingState = field(init=False)
    cache: SequenceCache | None = None
    # None: it verifies what its drafter sends, in chains.
    sources: Sources | None = None
    # Prompt and delivered tokens.
    token_ids: list[int] = field(default_factory=list)
    # Which drafter link it is attached to.
    link: int | None = None
    may_attach: bool = True
    retry_attach_ns: int = 0
    clock: DraftClock = field(default_factory=DraftClock)
    attached_epoch: int = 0
    # Where the tokens begin that its drafter, which rests, was not told of.
    untold_from: int | None = None
    prefill_started_ns: int = 0
    # Prompt tokens that were found in the cache.
    num_cached: int = 0
    prefill: PrefillReport | None = None
    # Output tokens the client is ready to take; None: no bound.
    credit: int | None = None
    cancelled: bool = False

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def num_pending(self) -> int:
        """Tokens whose KV entries are missing; one while decoding."""
        return len(self.token_ids) - (self.cache.length if self.cache else 0)

    @property
    def is_paused(self) -> bool:
        return self.credit is not None and self.credit <= 0

    @property
    def is_resting(self) -> bool:
        """Speculation does not pay for now. A fixed length is for measurements: never."""
        return not self.pacing.drafts and self.request.speculation is not Speculation.FIXED

    @property
    def num_left(self) -> int:
        """Draft tokens that could still be accepted: the token after them must fit as well."""
        return max(0, self.params.max_tokens - len(self.state.output) - 1)

    def take_spent_us(self) -> float:
        """Time that its own sources took since this was last asked."""
        return self.sources.take_spent_us() if self.sources is not None else 0.0

    @property
    def draft_limit(self) -> int:
        """The longest block that still makes sense."""
        return min(self.request.max_draft_tokens, self.num_left)

    @property
    def tree_limit(self) -> int:
        """The most draft tokens of a round."""
        return self.request.max_tree_tokens if self.num_left else 0

    @property
    def round_number(self) -> int:
        """Of the round to come."""
        return self.request.num_rounds + self.totals.num_rounds + 1


def delivered(
    output_before: int,
    token_ids: Sequence[int],
    params: SamplingParams,
    eos_token_ids: frozenset[int],
) -> tuple[int, FinishReason, int | None]:
    """(tokens to deliver, finish reason, the stop token id): token by token inside a block.

    What follows the first end-of-sequence or stop token, or the max_tokens-th token, is cut off;
    a stop within the budget wins over its end (rule S6).
    """
    for index, token_id in enumerate(token_ids):
        ends = token_id in params.stop_token_ids
        ends = ends or (token_id in eos_token_ids and not params.ignore_eos)
        if ends:
            return index + 1, FinishReason.STOP, token_id
        if output_before + index + 1 == params.max_tokens:
            return index + 1, FinishReason.LENGTH, None
    return len(token_ids), FinishReason.UNSPECIFIED, None


def sources_of(
    num_delivered: int, accepted: Sequence[TokenSource], *, drafted: bool, rejected: bool
) -> list[TokenSource]:
    """Provenance of a round's delivered tokens: `accepted` are the sources of accepted ones."""
    last = TokenSource.RECOVERED if rejected else TokenSource.BONUS
    return [*accepted, last if drafted else TokenSource.PLAIN][:num_delivered]


def plain_reason(sequence: VerifierSequence) -> PlainReason:
    """Why the coming round has no draft block."""
    if sequence.request.speculation is Speculation.OFF:
        return PlainReason.SPECULATION_OFF
    if sequence.draft_limit == 0:
        return PlainReason.NO_ROOM
    if sequence.is_resting:
        return sequence.pacing.reason
    if len(sequence.mailbox) or (sequence.sources and sequence.sources.has_guesses):
        return PlainReason.NOT_WORTH
    has_source = sequence.link is not None or (sequence.sources and sequence.sources.has_own)
    return PlainReason.NO_DRAFT if has_source else PlainReason.NO_DRAFTER


def digest(token_ids: Sequence[int]) -> bytes:
    """SHA-256 over the ids as little-endian 32-bit integers."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in token_ids)).digest()
