from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_SOURCE_UNSPECIFIED: _ClassVar[TokenSource]
    TOKEN_SOURCE_PLAIN: _ClassVar[TokenSource]
    TOKEN_SOURCE_RECOVERED: _ClassVar[TokenSource]
    TOKEN_SOURCE_BONUS: _ClassVar[TokenSource]
    TOKEN_SOURCE_DRAFT_MODEL: _ClassVar[TokenSource]
    TOKEN_SOURCE_PROMPT_LOOKUP: _ClassVar[TokenSource]
    TOKEN_SOURCE_PAST_ANSWERS: _ClassVar[TokenSource]
    TOKEN_SOURCE_RECYCLED: _ClassVar[TokenSource]
    TOKEN_SOURCE_LOOKAHEAD: _ClassVar[TokenSource]
    TOKEN_SOURCE_RANDOM: _ClassVar[TokenSource]

class SamplingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLING_MODE_UNSPECIFIED: _ClassVar[SamplingMode]
    SAMPLING_MODE_COUPLED: _ClassVar[SamplingMode]
    SAMPLING_MODE_REJECTION: _ClassVar[SamplingMode]

class Speculation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_UNSPECIFIED: _ClassVar[Speculation]
    SPECULATION_AUTO: _ClassVar[Speculation]
    SPECULATION_OFF: _ClassVar[Speculation]
    SPECULATION_FIXED: _ClassVar[Speculation]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class PlainReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAIN_REASON_UNSPECIFIED: _ClassVar[PlainReason]
    PLAIN_REASON_SPECULATION_OFF: _ClassVar[PlainReason]
    PLAIN_REASON_NO_DRAFTER: _ClassVar[PlainReason]
    PLAIN_REASON_NO_DRAFT: _ClassVar[PlainReason]
    PLAIN_REASON_NOT_WORTH: _ClassVar[PlainReason]
    PLAIN_REASON_BUDGET: _ClassVar[PlainReason]
    PLAIN_REASON_NO_ROOM: _ClassVar[PlainReason]
    PLAIN_REASON_PROBE: _ClassVar[PlainReason]
TOKEN_SOURCE_UNSPECIFIED: TokenSource
TOKEN_SOURCE_PLAIN: TokenSource
TOKEN_SOURCE_RECOVERED: TokenSource
TOKEN_SOURCE_BONUS: TokenSource
TOKEN_SOURCE_DRAFT_MODEL: TokenSource
TOKEN_SOURCE_PROMPT_LOOKUP: TokenSource
TOKEN_SOURCE_PAST_ANSWERS: TokenSource
TOKEN_SOURCE_RECYCLED: TokenSource
TOKEN_SOURCE_LOOKAHEAD: TokenSource
TOKEN_SOURCE_RANDOM: TokenSource
SAMPLING_MODE_UNSPECIFIED: SamplingMode
SAMPLING_MODE_COUPLED: SamplingMode
SAMPLING_MODE_REJECTION: SamplingMode
SPECULATION_UNSPECIFIED: Speculation
SPECULATION_AUTO: Speculation
SPECULATION_OFF: Speculation
SPECULATION_FIXED: Speculation
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
PLAIN_REASON_UNSPECIFIED: PlainReason
PLAIN_REASON_SPECULATION_OFF: PlainReason
PLAIN_REASON_NO_DRAFTER: PlainReason
PLAIN_REASON_NO_DRAFT: PlainReason
PLAIN_REASON_NOT_WORTH: PlainReason
PLAIN_REASON_BUDGET: PlainReason
PLAIN_REASON_NO_ROOM: PlainReason
PLAIN_REASON_PROBE: PlainReason

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("mode", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "num_logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MODE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    mode: SamplingMode
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    num_logprobs: int
    def __init__(self, mode: _Optional[_Union[SamplingMode, str]] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., num_logprobs: _Optional[int] = ...) -> None: ...

class DraftPolicy(_message.Message):
    __slots__ = ("speculation", "max_draft_tokens", "forget")
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    speculation: Speculation
    max_draft_tokens: int
    forget: bool
    def __init__(self, speculation: _Optional[_Union[Speculation, str]] = ..., max_draft_tokens: _Optional[int] = ..., forget: _Optional[bool] = ...) -> None: ...

class TokenDistribution(_message.Message):
    __slots__ = ("id_deltas", "weights")
    ID_DELTAS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    id_deltas: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id_deltas: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftBlock(_message.Message):
    __slots__ = ("sequence", "epoch", "base_position", "token_ids", "sources", "parents", "distributions", "confidence", "draft_us")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    base_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[TokenSource]
    parents: _containers.RepeatedScalarFieldContainer[int]
    distributions: _containers.RepeatedCompositeFieldContainer[TokenDistribution]
    confidence: bytes
    draft_us: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., base_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[TokenSource, str]]] = ..., parents: _Optional[_Iterable[int]] = ..., distributions: _Optional[_Iterable[_Union[TokenDistribution, _Mapping]]] = ..., confidence: _Optional[bytes] = ..., draft_us: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class RoundReport(_message.Message):
    __slots__ = ("round", "num_drafted", "num_tested", "num_accepted", "num_output", "source", "plain_reason", "draft_us", "wait_us", "verify_us", "start_unix_nanos", "batch_sequences", "batch_rows", "ledger_us")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_TESTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PLAIN_REASON_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_US_FIELD_NUMBER: _ClassVar[int]
    round: int
    num_drafted: int
    num_tested: int
    num_accepted: int
    num_output: int
    source: TokenSource
    plain_reason: PlainReason
    draft_us: int
    wait_us: int
    verify_us: int
    start_unix_nanos: int
    batch_sequences: int
    batch_rows: int
    ledger_us: int
    def __init__(self, round: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_tested: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_output: _Optional[int] = ..., source: _Optional[_Union[TokenSource, str]] = ..., plain_reason: _Optional[_Union[PlainReason, str]] = ..., draft_us: _Optional[int] = ..., wait_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., start_unix_nanos: _Optional[int] = ..., batch_sequences: _Optional[int] = ..., batch_rows: _Optional[int] = ..., ledger_us: _Optional[int] = ...) -> None: ...

class PrefillReport(_message.Message):
    __slots__ = ("queue_us", "prefill_us", "num_prompt_tokens", "num_cached_tokens", "start_unix_nanos")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    prefill_us: int
    num_prompt_tokens: int
    num_cached_tokens: int
    start_unix_nanos: int
    def __init__(self, queue_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., start_unix_nanos: _Optional[int] = ...) -> None: ...

class SpeculationTotals(_message.Message):
    __slots__ = ("num_rounds", "num_drafted_rounds", "num_drafted", "num_tested", "num_accepted", "accepted_by_position")
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_TESTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    num_rounds: int
    num_drafted_rounds: int
    num_drafted: int
    num_tested: int
    num_accepted: int
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_rounds: _Optional[int] = ..., num_drafted_rounds: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_tested: _Optional[int] = ..., num_accepted: _Optional[int] = ..., accepted_by_position: _Optional[_Iterable[int]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_cached_tokens", "num_completion_tokens")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_completion_tokens: _Optional[int] = ...) -> None: ...
