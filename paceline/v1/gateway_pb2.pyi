from paceline.v1 import drafter_pb2 as _drafter_pb2
from paceline.v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("chat", "text", "token_ids", "params", "stop", "seed", "draft", "model", "request_id", "workload", "timeout_ms", "n", "generated_token_ids", "model_fingerprint")
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    chat: ChatMessages
    text: str
    token_ids: TokenIds
    params: _tokens_pb2.SamplingParams
    stop: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    draft: _tokens_pb2.DraftPolicy
    model: str
    request_id: str
    workload: str
    timeout_ms: int
    n: int
    generated_token_ids: _containers.RepeatedScalarFieldContainer[int]
    model_fingerprint: str
    def __init__(self, chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., params: _Optional[_Union[_tokens_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Iterable[str]] = ..., seed: _Optional[int] = ..., draft: _Optional[_Union[_tokens_pb2.DraftPolicy, _Mapping]] = ..., model: _Optional[str] = ..., request_id: _Optional[str] = ..., workload: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., n: _Optional[int] = ..., generated_token_ids: _Optional[_Iterable[int]] = ..., model_fingerprint: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished", "index", "padding")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    finished: Finished
    index: int
    padding: bytes
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., index: _Optional[int] = ..., padding: _Optional[bytes] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("id", "model", "seed", "num_prompt_tokens", "trace_id", "model_fingerprint")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    seed: int
    num_prompt_tokens: int
    trace_id: str
    model_fingerprint: str
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., seed: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., trace_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("text", "token_ids", "sources", "logprobs", "round", "prefill")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[_tokens_pb2.TokenSource]
    logprobs: _containers.RepeatedCompositeFieldContainer[_tokens_pb2.TokenLogprobs]
    round: _tokens_pb2.RoundReport
    prefill: _tokens_pb2.PrefillReport
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[_tokens_pb2.TokenSource, str]]] = ..., logprobs: _Optional[_Iterable[_Union[_tokens_pb2.TokenLogprobs, _Mapping]]] = ..., round: _Optional[_Union[_tokens_pb2.RoundReport, _Mapping]] = ..., prefill: _Optional[_Union[_tokens_pb2.PrefillReport, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("finish_reason", "usage", "totals", "time_to_first_token_us", "duration_us", "digest", "stop", "num_failovers")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILOVERS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _tokens_pb2.FinishReason
    usage: _tokens_pb2.Usage
    totals: _tokens_pb2.SpeculationTotals
    time_to_first_token_us: int
    duration_us: int
    digest: bytes
    stop: str
    num_failovers: int
    def __init__(self, finish_reason: _Optional[_Union[_tokens_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_tokens_pb2.Usage, _Mapping]] = ..., totals: _Optional[_Union[_tokens_pb2.SpeculationTotals, _Mapping]] = ..., time_to_first_token_us: _Optional[int] = ..., duration_us: _Optional[int] = ..., digest: _Optional[bytes] = ..., stop: _Optional[str] = ..., num_failovers: _Optional[int] = ...) -> None: ...

class ChatRequest(_message.Message):
    __slots__ = ("open", "turn", "end")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    open: OpenChat
    turn: Turn
    end: _drafter_pb2.EndOfStream
    def __init__(self, open: _Optional[_Union[OpenChat, _Mapping]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., end: _Optional[_Union[_drafter_pb2.EndOfStream, _Mapping]] = ...) -> None: ...

class OpenChat(_message.Message):
    __slots__ = ("session_id", "system", "params", "stop", "draft", "workload")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    system: str
    params: _tokens_pb2.SamplingParams
    stop: _containers.RepeatedScalarFieldContainer[str]
    draft: _tokens_pb2.DraftPolicy
    workload: str
    def __init__(self, session_id: _Optional[str] = ..., system: _Optional[str] = ..., params: _Optional[_Union[_tokens_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Iterable[str]] = ..., draft: _Optional[_Union[_tokens_pb2.DraftPolicy, _Mapping]] = ..., workload: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("content", "seed", "params", "request_id", "timeout_ms")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    content: str
    seed: int
    params: _tokens_pb2.SamplingParams
    request_id: str
    timeout_ms: int
    def __init__(self, content: _Optional[str] = ..., seed: _Optional[int] = ..., params: _Optional[_Union[_tokens_pb2.SamplingParams, _Mapping]] = ..., request_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ChatResponse(_message.Message):
    __slots__ = ("session", "started", "delta", "finished", "padding")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    session: Session
    started: Started
    delta: Delta
    finished: Finished
    padding: bytes
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., padding: _Optional[bytes] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session_id", "model", "num_turns", "num_tokens", "expires_in_s", "messages")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_TURNS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    num_turns: int
    num_tokens: int
    expires_in_s: int
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., num_turns: _Optional[int] = ..., num_tokens: _Optional[int] = ..., expires_in_s: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "model_fingerprint", "vocab_size", "max_context", "max_draft_tokens", "numerics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_fingerprint: str
    vocab_size: int
    max_context: int
    max_draft_tokens: int
    numerics: str
    def __init__(self, name: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., numerics: _Optional[str] = ...) -> None: ...

class WatchRoundsRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class WatchRoundsResponse(_message.Message):
    __slots__ = ("id", "workload", "round", "num_missed")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_FIELD_NUMBER: _ClassVar[int]
    id: str
    workload: str
    round: _tokens_pb2.RoundReport
    num_missed: int
    def __init__(self, id: _Optional[str] = ..., workload: _Optional[str] = ..., round: _Optional[_Union[_tokens_pb2.RoundReport, _Mapping]] = ..., num_missed: _Optional[int] = ...) -> None: ...

class GetTraceRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetTraceResponse(_message.Message):
    __slots__ = ("id", "model", "workload", "trace_id", "start_unix_nanos", "prefill", "rounds", "finished", "error_type")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    workload: str
    trace_id: str
    start_unix_nanos: int
    prefill: _tokens_pb2.PrefillReport
    rounds: _containers.RepeatedCompositeFieldContainer[_tokens_pb2.RoundReport]
    finished: Finished
    error_type: str
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., workload: _Optional[str] = ..., trace_id: _Optional[str] = ..., start_unix_nanos: _Optional[int] = ..., prefill: _Optional[_Union[_tokens_pb2.PrefillReport, _Mapping]] = ..., rounds: _Optional[_Iterable[_Union[_tokens_pb2.RoundReport, _Mapping]]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., error_type: _Optional[str] = ...) -> None: ...
