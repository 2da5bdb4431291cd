"""The text of one answer: token ids in, characters out, and where a stop string ends it. Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gateway.detokeniser import Detokeniser
from gateway.stops import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain, and how many of the tokens belong to the answer."""

    text: str
    num_tokens: int
    # The stop string that the last of them completed, if one did.
    stop: str
    # Characters of `text` that each of these tokens made certain.
    lengths: Sequence[int] = ()


class AnswerText:
    """Detokeniser and stop strings of one answer."""

    def __init__(
        self, detokeniser: Detokeniser, stops: Sequence[str], stop_token_ids: AbstractSet[int]
    ) -> None:
        """`stop_token_ids` end an answer: part of its ids, not of its text."""
        self._detokeniser = detokeniser
        self._stops = StopStrings(stops)
        self._stop_token_ids = stop_token_ids

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The text that these tokens make certain, up to a stop string."""
        texts: list[str] = []
        for token_id in token_ids:
            if token_id in self._stop_token_ids:
                texts.append("")
                continue
            texts.append(self._stops.push(self._detokeniser.push(token_id)))
            if self._stops.found:
                return _piece(texts, self._stops.found)
        return _piece(texts, "")

    def flush(self) -> Piece:
        """The rest, when no more tokens come."""
        text = self._stops.push(self._detokeniser.flush())
        return Piece(text + self._stops.flush(), 0, self._stops.found)


def _piece(texts: Sequence[str], stop: str) -> Piece:
    return Piece("".join(texts), len(texts), stop, [len(text) for text in texts])
