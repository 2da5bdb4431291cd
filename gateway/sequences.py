"""A sequence as the gateway sees it: what opens one at a verifier and what comes back.

Values only; knows no messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import grpc

from paceline.events import DraftPolicy, TokenLogprobs
from paceline.params import SamplingParams
from paceline.rounds import (
    FinishReason,
    PrefillReport,
    RoundReport,
    TokenSource,
)
from paceline.server import Refusal


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a verifier serves."""

    name: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    eos_token_ids: frozenset[int]
    max_draft_tokens: int
    numerics: str


@dataclass(frozen=True, slots=True)
class Open:
    """One sequence to generate; with generated_token_ids, one that began elsewhere."""

    token_ids: Sequence[int]
    params: SamplingParams
    seed: int
    draft: DraftPolicy
    generated_token_ids: Sequence[int] = ()
    # 0: none set.
    timeout_ms: int = 0
    traceparent: str = ""
    tracestate: str = ""
    request_id: str = ""
    workload: str = ""
    tenant: str = ""
    # Rounds that were already reported.
    num_rounds: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one round gave. `start_index` counts output tokens."""

    start_index: int
    token_ids: Sequence[int]
    sources: Sequence[TokenSource]
    logprobs: Sequence[TokenLogprobs]
    round: RoundReport | None
    prefill: PrefillReport | None


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a sequence that ran to its end."""

    finish_reason: FinishReason
    digest: bytes


class Cause(Enum):
    """Why a sequence ended before its end."""

    # Its verifier's process or connection is gone.
    DIED = "died"
    # Its verifier neither answers nor makes progress.
    FROZE = "froze"
    # Its verifier said that it stops.
    DRAINED = "drained"


class Lost(Refusal):
    """UNAVAILABLE: the verifier went away, through no fault of the request as far as is known."""

    def __init__(
        self,
        cause: Cause,
        message: str = "the verifier went away",
        retry_after_s: float | None = 1.0,
    ) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, message, retry_after_s=retry_after_s)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Seam:
    """The answer goes on at another verifier, or a restarted one, after `num_tokens` tokens."""

    num_tokens: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    """What a verifier says of itself."""

    num_running: int
    num_waiting: int
    # Counts up while the model works.
    num_steps: int
