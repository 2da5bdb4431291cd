"""Log-probabilities in the dialect's two forms. Knows one answer's tokens and their text. Pure."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.events import Delta

# JSON has no infinity; this is what the dialect says instead.
LOWEST = -9999.0


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A delivered token, the likeliest ones in its place, and where in the text it begins."""

    token: bytes
    logprob: float
    top: Sequence[tuple[bytes, float]]
    offset: int


class Scores:
    """The scored tokens of one answer."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def read(self, delta: Delta) -> list[ScoredToken]:
        """Those of the next delta; none when none were asked for."""
        return [
            self._scored(token_id, scores.logprob, scores.top_token_ids, scores.top_logprobs)
            for token_id, scores in zip(delta.token_ids, delta.logprobs, strict=False)
        ]

    def _scored(
        self, token_id: int, logprob: float, top_ids: Sequence[int], top_logprobs: Sequence[float]
    ) -> ScoredToken:
        token = self._token_bytes(token_id)
        offset = self._offset
        self._offset += len(self._decoder.decode(token))
        top = [
            (self._token_bytes(top_id), max(top_logprob, LOWEST))
            for top_id, top_logprob in zip(top_ids, top_logprobs, strict=True)
        ]
        return ScoredToken(token, max(logprob, LOWEST), top, offset)


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "content": [
            {
                **_chat_token(scored.token, scored.logprob),
                "top_logprobs": [_chat_token(*top) for top in scored.top],
            }
            for scored in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "tokens": [_text(scored.token) for scored in tokens],
        "token_logprobs": [scored.logprob for scored in tokens],
        "top_logprobs": [
            {_text(token): logprob for token, logprob in scored.top} for scored in tokens
        ],
        "text_offset": [scored.offset for scored in tokens],
    }


def _chat_token(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(token), "logprob": logprob, "bytes": list(token)}


def _text(token: bytes) -> str:
    return token.decode(errors="replace")
