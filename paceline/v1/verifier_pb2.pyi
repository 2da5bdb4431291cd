from paceline.v1 import drafter_pb2 as _drafter_pb2
from paceline.v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierGenerateRequest(_message.Message):
    __slots__ = ("open", "credit", "end")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    open: Open
    credit: Credit
    end: _drafter_pb2.EndOfStream
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., end: _Optional[_Union[_drafter_pb2.EndOfStream, _Mapping]] = ...) -> None: ...

class VerifierGenerateResponse(_message.Message):
    __slots__ = ("tokens", "final")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    tokens: Tokens
    final: Final
    def __init__(self, tokens: _Optional[_Union[Tokens, _Mapping]] = ..., final: _Optional[_Union[Final, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("token_ids", "generated_token_ids", "params", "seed", "timeout_ms", "draft", "trace", "request_id", "workload", "tenant", "num_rounds")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    generated_token_ids: _containers.RepeatedScalarFieldContainer[int]
    params: _tokens_pb2.SamplingParams
    seed: int
    timeout_ms: int
    draft: _tokens_pb2.DraftPolicy
    trace: _tokens_pb2.TraceContext
    request_id: str
    workload: str
    tenant: str
    num_rounds: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., generated_token_ids: _Optional[_Iterable[int]] = ..., params: _Optional[_Union[_tokens_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., draft: _Optional[_Union[_tokens_pb2.DraftPolicy, _Mapping]] = ..., trace: _Optional[_Union[_tokens_pb2.TraceContext, _Mapping]] = ..., request_id: _Optional[str] = ..., workload: _Optional[str] = ..., tenant: _Optional[str] = ..., num_rounds: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("num_tokens",)
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    def __init__(self, num_tokens: _Optional[int] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("start_index", "token_ids", "sources", "logprobs", "round", "prefill")
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    start_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[_tokens_pb2.TokenSource]
    logprobs: _containers.RepeatedCompositeFieldContainer[_tokens_pb2.TokenLogprobs]
    round: _tokens_pb2.RoundReport
    prefill: _tokens_pb2.PrefillReport
    def __init__(self, start_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[_tokens_pb2.TokenSource, str]]] = ..., logprobs: _Optional[_Iterable[_Union[_tokens_pb2.TokenLogprobs, _Mapping]]] = ..., round: _Optional[_Union[_tokens_pb2.RoundReport, _Mapping]] = ..., prefill: _Optional[_Union[_tokens_pb2.PrefillReport, _Mapping]] = ...) -> None: ...

class Final(_message.Message):
    __slots__ = ("finish_reason", "stop_token_id", "usage", "totals", "digest")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _tokens_pb2.FinishReason
    stop_token_id: int
    usage: _tokens_pb2.Usage
    totals: _tokens_pb2.SpeculationTotals
    digest: bytes
    def __init__(self, finish_reason: _Optional[_Union[_tokens_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[_tokens_pb2.Usage, _Mapping]] = ..., totals: _Optional[_Union[_tokens_pb2.SpeculationTotals, _Mapping]] = ..., digest: _Optional[bytes] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("name", "model_fingerprint", "tokenizer_fingerprint", "vocab_size", "max_context", "eos_token_ids", "max_draft_tokens", "numerics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_draft_tokens: int
    numerics: str
    def __init__(self, name: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_draft_tokens: _Optional[int] = ..., numerics: _Optional[str] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: str
    data: bytes
    def __init__(self, file: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("num_running", "num_waiting", "kv_blocks_used", "kv_blocks_total", "num_steps", "drafters", "totals", "tenants", "step_us", "forward_us", "kv_blocks_reusable", "num_preemptions")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_REUSABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    num_steps: int
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterStatus]
    totals: _tokens_pb2.SpeculationTotals
    tenants: _containers.RepeatedCompositeFieldContainer[TenantDrafting]
    step_us: int
    forward_us: int
    kv_blocks_reusable: int
    num_preemptions: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., num_steps: _Optional[int] = ..., drafters: _Optional[_Iterable[_Union[DrafterStatus, _Mapping]]] = ..., totals: _Optional[_Union[_tokens_pb2.SpeculationTotals, _Mapping]] = ..., tenants: _Optional[_Iterable[_Union[TenantDrafting, _Mapping]]] = ..., step_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., kv_blocks_reusable: _Optional[int] = ..., num_preemptions: _Optional[int] = ...) -> None: ...

class TenantDrafting(_message.Message):
    __slots__ = ("tenant", "draft_us", "wait_us", "num_drafted", "num_accepted")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    draft_us: int
    wait_us: int
    num_drafted: int
    num_accepted: int
    def __init__(self, tenant: _Optional[str] = ..., draft_us: _Optional[int] = ..., wait_us: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ...) -> None: ...

class DrafterStatus(_message.Message):
    __slots__ = ("address", "state", "drafter", "detail", "num_sequences", "num_blocks", "num_stale", "num_malformed", "num_connects")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_STALE_FIELD_NUMBER: _ClassVar[int]
    NUM_MALFORMED_FIELD_NUMBER: _ClassVar[int]
    NUM_CONNECTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    state: str
    drafter: str
    detail: str
    num_sequences: int
    num_blocks: int
    num_stale: int
    num_malformed: int
    num_connects: int
    def __init__(self, address: _Optional[str] = ..., state: _Optional[str] = ..., drafter: _Optional[str] = ..., detail: _Optional[str] = ..., num_sequences: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_stale: _Optional[int] = ..., num_malformed: _Optional[int] = ..., num_connects: _Optional[int] = ...) -> None: ...
