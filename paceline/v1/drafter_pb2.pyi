from paceline.v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("hello", "updates", "end")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    updates: Updates
    end: EndOfStream
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., updates: _Optional[_Union[Updates, _Mapping]] = ..., end: _Optional[_Union[EndOfStream, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("welcome", "blocks", "drain")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    blocks: Blocks
    drain: Drain
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class EndOfStream(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "model_fingerprint", "tokenizer_fingerprint", "vocab_size", "max_context", "max_draft_tokens", "modes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    max_draft_tokens: int
    modes: _containers.RepeatedScalarFieldContainer[_tokens_pb2.SamplingMode]
    def __init__(self, protocol_version: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., modes: _Optional[_Iterable[_Union[_tokens_pb2.SamplingMode, str]]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "drafter", "tokenizer_fingerprint", "max_context", "max_draft_tokens", "modes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    drafter: str
    tokenizer_fingerprint: str
    max_context: int
    max_draft_tokens: int
    modes: _containers.RepeatedScalarFieldContainer[_tokens_pb2.SamplingMode]
    def __init__(self, protocol_version: _Optional[int] = ..., drafter: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., max_context: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., modes: _Optional[_Iterable[_Union[_tokens_pb2.SamplingMode, str]]] = ...) -> None: ...

class Updates(_message.Message):
    __slots__ = ("detaches", "attaches", "commits")
    DETACHES_FIELD_NUMBER: _ClassVar[int]
    ATTACHES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    detaches: _containers.RepeatedCompositeFieldContainer[Detach]
    attaches: _containers.RepeatedCompositeFieldContainer[Attach]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    def __init__(self, detaches: _Optional[_Iterable[_Union[Detach, _Mapping]]] = ..., attaches: _Optional[_Iterable[_Union[Attach, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("sequence", "epoch", "token_ids", "num_prompt_tokens", "params", "seed", "max_draft_tokens", "round", "trace", "tenant")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    params: _tokens_pb2.SamplingParams
    seed: int
    max_draft_tokens: int
    round: int
    trace: _tokens_pb2.TraceContext
    tenant: str
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., params: _Optional[_Union[_tokens_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., round: _Optional[int] = ..., trace: _Optional[_Union[_tokens_pb2.TraceContext, _Mapping]] = ..., tenant: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("sequence", "epoch", "base_position", "num_agreed", "token_ids", "max_draft_tokens", "round", "top_k", "top_token_ids")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_AGREED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    base_position: int
    num_agreed: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_draft_tokens: int
    round: int
    top_k: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., base_position: _Optional[int] = ..., num_agreed: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., max_draft_tokens: _Optional[int] = ..., round: _Optional[int] = ..., top_k: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Detach(_message.Message):
    __slots__ = ("sequence", "finished", "token_ids")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    finished: bool
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[int] = ..., finished: _Optional[bool] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("blocks", "lost")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[_tokens_pb2.DraftBlock]
    lost: _containers.RepeatedCompositeFieldContainer[LostSequence]
    def __init__(self, blocks: _Optional[_Iterable[_Union[_tokens_pb2.DraftBlock, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[LostSequence, _Mapping]]] = ...) -> None: ...

class LostSequence(_message.Message):
    __slots__ = ("sequence", "epoch", "reason")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[LostSequence.Reason]
        REASON_CONTEXT: _ClassVar[LostSequence.Reason]
        REASON_OUT_OF_STEP: _ClassVar[LostSequence.Reason]
        REASON_CAPACITY: _ClassVar[LostSequence.Reason]
    REASON_UNSPECIFIED: LostSequence.Reason
    REASON_CONTEXT: LostSequence.Reason
    REASON_OUT_OF_STEP: LostSequence.Reason
    REASON_CAPACITY: LostSequence.Reason
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    reason: LostSequence.Reason
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[_Union[LostSequence.Reason, str]] = ...) -> None: ...
