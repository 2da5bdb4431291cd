"""What a caller of the gateway sends and gets, as dataclasses. Knows no message and no wire."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.params import SamplingParams, Speculation
from paceline.rounds import (
    FinishReason,
    PrefillReport,
    RoundReport,
    SpeculationTotals,
    TokenSource,
)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """How much to speculate; 0 draft tokens is the server's default."""

    speculation: Speculation = Speculation.AUTO
    max_draft_tokens: int = 0
    # Keep nothing of it to draft later requests with.
    forget: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt` is text as it is, messages for the chat template, or token ids.

    `n` answers, each with a seed derived from the request's, the first with that seed itself.
    """

    prompt: str | Sequence[ChatMessage] | Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    seed: int | None = None
    draft: DraftPolicy = field(default_factory=DraftPolicy)
    model: str = ""
    request_id: str = ""
    workload: str = ""
    timeout_ms: int = 0
    n: int = 1
    # Of an answer that began at another gateway: the output tokens the caller has, and whose.
    generated_token_ids: Sequence[int] = ()
    model_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class OpenChat:
    """A conversation: a new one, or with a session id one to go on with."""

    session_id: str = ""
    system: str = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    draft: DraftPolicy = field(default_factory=DraftPolicy)
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    id: str
    model: str
    seed: int
    num_prompt_tokens: int
    trace_id: str
    model_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target model's raw log-probabilities at one token; the likeliest ids, best first."""

    logprob: float
    top_token_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round delivered. `round` is None for text that was only held back."""

    text: str
    token_ids: Sequence[int]
    sources: Sequence[TokenSource]
    round: RoundReport | None
    prefill: PrefillReport | None
    # One per token when they were asked for, else none.
    logprobs: Sequence[TokenLogprobs] = ()
    # Characters of `text` per token, where the gateway itself is the reader.
    lengths: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. Times in microseconds, from the gateway's clock."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    totals: SpeculationTotals
    time_to_first_token_us: int
    duration_us: int
    digest: bytes
    stop: str
    # How often the answer went on at another verifier.
    num_failovers: int = 0


Event = Started | Delta | Finished


@dataclass(frozen=True, slots=True)
class Session:
    session_id: str
    model: str
    num_turns: int
    num_tokens: int
    expires_in_s: int
    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    model_fingerprint: str
    vocab_size: int
    max_context: int
    max_draft_tokens: int
    numerics: str


@dataclass(frozen=True, slots=True)
class WatchedRound:
    """A round of any request; `num_missed` counts those this watcher was too slow for."""

    id: str
    workload: str
    round: RoundReport
    num_missed: int


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """What a gateway remembers of an answer. `finished` is None while it runs and when it failed;
    it names neither stop string nor digest."""

    id: str
    model: str
    workload: str
    trace_id: str
    start_unix_nanos: int
    prefill: PrefillReport | None
    rounds: Sequence[RoundReport]
    finished: Finished | None
    error_type: str
