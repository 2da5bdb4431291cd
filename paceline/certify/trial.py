"""A trial of one parameter, and the requests that every trial varies. Pure.

What cannot be known without the model (which token a parameter should choose) is not judged, only
that the parameter matters; where the plain answer tells what must come, that is judged exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.certify.asker import Reply
from paceline.events import Request
from paceline.params import SamplingParams

NUM_TOKENS = 16
# Answers are stopped at the token that stands here: inside a draft block.
STOP_AT = 3
# Texts that repeat themselves, for drafts to be there; and others, with much left to chance.
_PROMPTS = (
    ("hello hello hello hello hello hello", 0.0),
    ("one two three four one two three four one two", 0.7),
    ("red, green, red, blue, red, green, red,", 1.2),
    ("Once upon a time there was a", 1.2),
)

Replies = Sequence[Reply]


@dataclass(frozen=True, slots=True)
class Trial:
    """Made from the plain answers to `base_requests`; `judge` says what is wrong with the replies
    to `requests`, or nothing."""

    name: str
    requests: Callable[[Replies], list[Request]]
    judge: Callable[[Replies, Replies], str]


def base_requests(seed: int) -> list[Request]:
    """What every trial varies."""
    return [
        Request(
            prompt=text,
            params=SamplingParams(temperature=temperature, max_tokens=NUM_TOKENS, ignore_eos=True),
            seed=(seed + number) % 2**64,
        )
        for number, (text, temperature) in enumerate(_PROMPTS)
    ]


def unusable(plain: Replies) -> str:
    """Why no trial can be made from these answers to `base_requests`; empty when all can."""
    shortest = min(len(reply.token_ids) for reply in plain)
    if shortest > STOP_AT:
        return ""
    return f"an answer ended after {shortest} tokens, asked to go on for {NUM_TOKENS}"


def with_params(request: Request, **params: object) -> Request:
    return replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]


def reseeded(request: Request) -> Request:
    return replace(request, seed=((request.seed or 0) + 1000) % 2**64)


def ids_of(replies: Replies) -> list[list[int]]:
    return [reply.token_ids for reply in replies]
