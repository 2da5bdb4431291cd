"""The two kinds of completion: how each names and shapes what an answer is made of. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.http.logprobs import ScoredToken, chat_logprobs, completion_logprobs


@dataclass(frozen=True, slots=True)
class Dialect:
    """`opening`, `piece` and `ending` are parts of a chunk's choice, `whole` of an answer's."""

    id_prefix: str
    object: str
    chunk_object: str
    # What a request of this kind calls its prompt.
    prompt_field: str
    opening: Callable[[], dict[str, Any]]
    piece: Callable[[str], dict[str, Any]]
    ending: Callable[[], dict[str, Any]]
    whole: Callable[[str], dict[str, Any]]
    logprobs: Callable[[Sequence[ScoredToken]], dict[str, Any]]


CHAT = Dialect(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    prompt_field="messages",
    opening=lambda: {"delta": {"role": "assistant", "content": ""}},
    piece=lambda text: {"delta": {"content": text}},
    ending=lambda: {"delta": {}},
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    logprobs=chat_logprobs,
)

COMPLETION = Dialect(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    prompt_field="prompt",
    opening=lambda: {"text": ""},
    piece=lambda text: {"text": text},
    ending=lambda: {"text": ""},
    whole=lambda text: {"text": text},
    logprobs=completion_logprobs,
)
