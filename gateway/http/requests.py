"""Bodies -> requests. Pure; judges only what the dialect itself says about its fields."""

import secrets

from gateway.http.bodies import (
    ChatBody,
    CommonBody,
    CompletionBody,
    Extension,
    Message,
    unsupported_field,
)
from paceline.events import ChatMessage, DraftPolicy, Request
from paceline.params import FieldError, SamplingMode, SamplingParams, Speculation

# Every JSON reader can hold a seed of this size, and so send it back.
SEED_BITS = 53
ROLES = {"developer": "system"}


def chat_request(body: ChatBody, request_id: str) -> Request:
    """Raises FieldError."""
    _refuse_unsupported(body)
    for index, message in enumerate(body.messages):
        if name := unsupported_field(message):
            raise FieldError(f"messages[{index}].{name}", "is not supported")
    if body.max_completion_tokens is not None and body.max_tokens is not None:
        raise FieldError("max_tokens", "give this or max_completion_tokens, not both")
    if body.top_logprobs is not None and not body.logprobs:
        raise FieldError("top_logprobs", "needs logprobs: true")
    return _request(
        body,
        request_id,
        tuple(_chat_message(message) for message in body.messages),
        max_tokens=body.max_completion_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def completion_request(body: CompletionBody, request_id: str) -> Request:
    """Raises FieldError."""
    _refuse_unsupported(body)
    return _request(body, request_id, _prompt(body), max_tokens=None, num_logprobs=body.logprobs)


def _refuse_unsupported(body: CommonBody) -> None:
    if name := unsupported_field(body):
        raise FieldError(name, "is not supported")
    if body.stream_options is not None and not body.stream:
        raise FieldError("stream_options", "needs stream: true")


def _chat_message(message: Message) -> ChatMessage:
    content = message.content
    if not isinstance(content, str):
        content = "".join(part.text for part in content)
    return ChatMessage(ROLES.get(message.role, message.role), content)


def _prompt(body: CompletionBody) -> str | tuple[int, ...]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and not isinstance(prompt[0], int):
        (only,) = prompt
        return only if isinstance(only, str) else tuple(only)
    return tuple(part for part in prompt if isinstance(part, int))


def _request(
    body: CommonBody,
    request_id: str,
    prompt: str | tuple[ChatMessage, ...] | tuple[int, ...],
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
) -> Request:
    extension = body.paceline or Extension()
    if extension.generated_token_ids and body.seed is None:
        raise FieldError("seed", "is needed with paceline.generated_token_ids")
    return Request(
        prompt=prompt,
        params=_params(body, extension, max_tokens, num_logprobs),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        seed=secrets.randbits(SEED_BITS) if body.seed is None else body.seed,
        draft=DraftPolicy(
            Speculation[extension.speculation.upper()],
            extension.max_draft_tokens,
            extension.forget,
        ),
        model=body.model or "",
        request_id=request_id,
        workload=extension.workload,
        timeout_ms=extension.timeout_ms,
        n=body.n or 1,
        generated_token_ids=tuple(extension.generated_token_ids),
        model_fingerprint=extension.model_fingerprint,
    )


def _params(
    body: CommonBody, extension: Extension, max_tokens: int | None, num_logprobs: int | None
) -> SamplingParams:
    default = SamplingParams()
    given = {
        name: value
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "max_tokens",
            "min_tokens",
            "ignore_eos",
        )
        if (value := getattr(body, name)) is not None
    }
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    return SamplingParams(
        mode=SamplingMode[extension.mode.upper()],
        top_k=max(body.top_k or default.top_k, 0),
        logit_bias=_logit_bias(body.logit_bias or {}),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        num_logprobs=num_logprobs,
        **given,
    )


def _logit_bias(biases: dict[str, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, bias in biases.items():
        # int() takes more than digits, and as many of them as there are.
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32):
            raise FieldError("logit_bias", "the keys are token ids")
        found[int(key)] = bias
    return found
