"""Sampling parameters: their meaning, defaults and limits.

Knows no tensors and no messages. `violations` is the one check, run by the verifier behind every
door; callers in front of it only translate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 100.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
BANNED = -100.0


class SamplingMode(IntEnum):
    """How a round is verified. Values equal the wire's."""

    COUPLED = 1
    REJECTION = 2


class Speculation(IntEnum):
    """How much a request wants of it. Values equal the wire's."""

    AUTO = 1
    OFF = 2
    FIXED = 3


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token. The defaults change nothing: temperature 1, no filter."""

    mode: SamplingMode = SamplingMode.COUPLED
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int = 256
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def has_filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that cannot be honoured; the description never repeats text that was sent."""

    field: str
    description: str


class FieldError(ValueError):
    """A message with a field that means nothing here. Becomes INVALID_ARGUMENT."""

    def __init__(self, field_name: str, description: str) -> None:
        super().__init__(f"{field_name}: {description}")
        self.violation = Violation(field_name, description)


def _between(name: str, value: float, low: float, high: float, violations: list[Violation]) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        violations.append(Violation(name, f"must be from {low:g} to {high:g}, is {value:g}"))


def _ids_in_vocabulary(
    name: str, token_ids: Sequence[int], vocab_size: int, violations: list[Violation]
) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            violations.append(
                Violation(
                    f"{name}[{index}]",
                    f"token id {token_id} is outside the vocabulary of {vocab_size}",
                )
            )
            return


def violations(
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    *,
    vocab_size: int,
    max_context: int,
) -> list[Violation]:
    """Every field of a request that cannot be honoured; empty when it can."""
    found: list[Violation] = []
    if not prompt:
        found.append(Violation("token_ids", "the prompt is empty"))
    _ids_in_vocabulary("token_ids", prompt, vocab_size, found)
    _ids_in_vocabulary("generated_token_ids", generated, vocab_size, found)
    if params.max_tokens < 1:
        found.append(Violation("params.max_tokens", f"must be at least 1, is {params.max_tokens}"))
    elif len(prompt) + params.max_tokens > max_context:
        found.append(
            Violation(
                "params.max_tokens",
                f"prompt of {len(prompt)} tokens + max_tokens {params.max_tokens} "
                f"exceeds the context of {max_context}",
            )
        )
    if len(generated) > params.max_tokens:
        found.append(
            Violation(
                "generated_token_ids",
                f"{len(generated)} tokens are more than max_tokens {params.max_tokens}",
            )
        )
    if params.min_tokens < 0 or params.min_tokens > params.max_tokens:
        found.append(
            Violation(
                "params.min_tokens",
                f"must be from 0 to max_tokens {params.max_tokens}, is {params.min_tokens}",
            )
        )
    if params.temperature != 0.0:
        _between("params.temperature", params.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, found)
    if not (math.isfinite(params.top_p) and 0.0 < params.top_p <= 1.0):
        found.append(
            Violation("params.top_p", f"must be above 0 and at most 1, is {params.top_p:g}")
        )
    if params.top_k < 0:
        found.append(Violation("params.top_k", f"must not be negative, is {params.top_k}"))
    _between("params.min_p", params.min_p, 0.0, 1.0, found)
    if not (math.isfinite(params.repetition_penalty) and 0.0 < params.repetition_penalty <= 10.0):
        found.append(
            Violation(
                "params.repetition_penalty",
                f"must be above 0 and at most 10, is {params.repetition_penalty:g}",
            )
        )
    _between("params.presence_penalty", params.presence_penalty, -2.0, 2.0, found)
    _between("params.frequency_penalty", params.frequency_penalty, -2.0, 2.0, found)
    if len(params.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        found.append(
            Violation(
                "params.logit_bias",
                f"at most {MAX_LOGIT_BIAS_ENTRIES} entries, has {len(params.logit_bias)}",
            )
        )
    else:
        for token_id, bias in params.logit_bias.items():
            if not 0 <= token_id < vocab_size:
                found.append(
                    Violation(
                        "params.logit_bias",
                        f"token id {token_id} is outside the vocabulary of {vocab_size}",
                    )
                )
                break
            if not (math.isfinite(bias) and abs(bias) <= 100.0):
                found.append(
                    Violation(
                        "params.logit_bias",
                        f"bias of token id {token_id} must be from -100 to 100, is {bias:g}",
                    )
                )
                break
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        found.append(
            Violation(
                "params.stop_token_ids",
                f"at most {MAX_STOP_TOKEN_IDS}, has {len(params.stop_token_ids)}",
            )
        )
    else:
        _ids_in_vocabulary("params.stop_token_ids", params.stop_token_ids, vocab_size, found)
    if params.num_logprobs is not None and not 0 <= params.num_logprobs <= MAX_LOGPROBS:
        found.append(
            Violation(
                "params.num_logprobs", f"must be from 0 to {MAX_LOGPROBS}, is {params.num_logprobs}"
            )
        )
    return found
