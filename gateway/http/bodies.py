"""Bodies of the HTTP door's requests: every field there is, its type and its plain range.

Knows nothing of what the fields do. A field that is not here is refused by name. Numbers are
bounded to what the wire behind the door can carry; whether they make sense is the verifier's say.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from paceline.limits import MAX_MESSAGES
from paceline.params import MAX_LOGIT_BIAS_ENTRIES

MAX_FIELDS = 64


def _few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS_ENTRIES:
        raise ValueError(f"at most {MAX_LOGIT_BIAS_ENTRIES} entries, has {len(value)}")
    return value


def _whole_characters(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not Unicode text") from None
    return value


T = TypeVar("T")
# JSON may hold halves of characters, which no wire carries.
Str = Annotated[str, AfterValidator(_whole_characters)]
UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
UInt64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
# One error is enough, however long the list.
List = Annotated[list[T], Field(fail_fast=True)]
Only = Annotated[list[T], Field(min_length=1, max_length=1)]
Biases = Annotated[dict[str, float], BeforeValidator(_few_biases)]


class Body(BaseModel):
    """No unknown fields, no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        """Each unknown field would be an error of its own."""
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"at most {MAX_FIELDS} fields, has {len(value)}")
        return value


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Extension(Body):
    """What the dialect has no field for."""

    speculation: Literal["auto", "off", "fixed"] = "auto"
    # 0: the server's default.
    max_draft_tokens: UInt32 = 0
    forget: bool = False
    mode: Literal["coupled", "rejection"] = "coupled"
    # A label that acceptance is reported by.
    workload: Str = ""
    # 0: none.
    timeout_ms: UInt32 = 0
    # Of an answer that was cut: the tokens the caller has, and the model that gave them.
    generated_token_ids: List[UInt32] = []
    model_fingerprint: Str = ""


class CommonBody(Body):
    """Fields of both kinds of completion."""

    model: Str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: UInt32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = None
    n: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    seed: UInt64 | None = None
    stop: Str | List[Str] | None = None
    # As vLLM has them. top_k -1 is off, as 0 is.
    top_k: Annotated[int, Field(ge=-1, le=2**32 - 1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: UInt32 | None = None
    ignore_eos: bool | None = None
    stop_token_ids: List[UInt32] | None = None
    # Ours.
    paceline: Extension | None = None
    # Labels and wishes that change no token: taken and not used.
    user: Str | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: Str | None = None
    safety_identifier: Str | None = None
    prompt_cache_key: Str | None = None


class TextPart(Body):
    type: Literal["text"]
    text: Str


class Message(Body):
    role: Str
    content: Str | List[TextPart]
    # An answer of ours, sent back, may hold these; anything in them is refused.
    name: Any = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None


class ChatBody(CommonBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: UInt32 | None = None
    logprobs: bool | None = None
    top_logprobs: UInt32 | None = None
    parallel_tool_calls: bool | None = None
    # Refused unless they ask for nothing.
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionBody(CommonBody):
    """POST /v1/completions."""

    # Text or token ids; a list of prompts may hold one.
    prompt: Str | Only[Str] | List[UInt32] | Only[List[UInt32]]
    logprobs: UInt32 | None = None
    # Refused unless they ask for nothing.
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


# Values of a field that ask for nothing, beside null.
ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "name": (),
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": ("none",),
    "tool_calls": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


def unsupported_field(body: Body) -> str | None:
    """A field that asks for what the gateway cannot do, if there is one."""
    for name, neutral in ASKS_NOTHING.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            return name
    return None


def field_names() -> frozenset[str]:
    """Every name that a body or a part of one may hold."""
    parts = (ChatBody, CompletionBody, Message, TextPart, StreamOptions, Extension)
    return frozenset(name for part in parts for name in part.model_fields)
