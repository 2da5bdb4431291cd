"""What a verifier tells a drafter, and what the drafter answers, as dataclasses.

The meaning of each stands in protos/paceline/v1/drafter.proto. Knows no messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from opentelemetry.trace import SpanContext

from paceline.params import SamplingParams
from paceline.rounds import TokenSource


class LostReason(IntEnum):
    """Why a drafter gave a sequence up. Values equal the wire's."""

    UNSPECIFIED = 0
    CONTEXT = 1
    OUT_OF_STEP = 2
    CAPACITY = 3


@dataclass(frozen=True, slots=True)
class Attach:
    """A sequence to draft for, with all its tokens so far. `span` is what round spans derive from,
    None when the request is not sampled."""

    sequence: int
    epoch: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    max_draft_tokens: int
    round: int
    span: SpanContext | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that are settled: `num_agreed` that the drafter sent, then `token_ids`."""

    sequence: int
    epoch: int
    base_position: int
    num_agreed: int
    token_ids: Sequence[int]
    max_draft_tokens: int
    round: int


@dataclass(frozen=True, slots=True)
class Detach:
    """A sequence to forget. `finished`: its answer is complete, ends with `token_ids` beyond the
    last commit, and may be remembered for its tenant."""

    sequence: int
    finished: bool = False
    token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Updates:
    """The news of one engine step. Detaches apply first, then attaches, then commits."""

    detaches: Sequence[Detach] = ()
    attaches: Sequence[Attach] = ()
    commits: Sequence[Commit] = ()


# Ascending token ids and their weights: a token's probability is its weight / the sum of weights.
Distribution = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Block:
    """Draft tokens for one sequence, a piece of one continuous stream. Without distributions each
    counts as certain."""

    sequence: int
    epoch: int
    base_position: int
    token_ids: Sequence[int]
    round: int
    source: TokenSource
    draft_us: int
    distributions: Sequence[Distribution] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """A sequence that the drafter has forgotten."""

    sequence: int
    epoch: int
    reason: LostReason


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds every sequence of one stream, the verifier's and the drafter's together."""

    # The target's vocabulary: no id at or above it is ever proposed.
    vocab_size: int
    # No draft token stands at or beyond this position.
    max_length: int
    # The longest sequence that the drafter can follow.
    max_context: int
    max_draft_tokens: int
    # Nothing is drafted after these, unless a request ignores them.
    eos_token_ids: frozenset[int]
