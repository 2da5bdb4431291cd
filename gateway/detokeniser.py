"""Token ids to text, piece by piece, without ever splitting a character.

Pure. Decodes a short window, never the whole text, so the work per token does not grow.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

REPLACEMENT = "\ufffd"
# Bytes of an incomplete character; decoders show one U+FFFD for all of them or one for each.
_MAX_INCOMPLETE = 3
# Tokens without a whole character at their end, after which a cut is tried, and where.
_CUT_EVERY = 32
_CUT_TRIES = 16


class Detokeniser:
    """The text of one answer.

    The deltas together are `decode` of all the ids: for byte-level tokenizers always, and for
    byte-fallback ones unless the model emits bytes that are no UTF-8.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], hidden_ids: AbstractSet[int] = frozenset()
    ) -> None:
        """`hidden_ids` are ids that have no text."""
        self._decode = decode
        self._hidden_ids = hidden_ids
        # The window: first the tokens of the last whole piece, whose text is out and which the
        # next ones may depend on (such as for their leading space), then those still undecided.
        self._window: list[int] = []
        self._num_context = 0
        self._sent = ""

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        if token_id in self._hidden_ids:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.startswith(self._sent):
            # A byte-fallback decoder takes back whole characters when a stray byte follows them.
            self._window, self._sent = self._window[self._num_context :], ""
            self._num_context = 0
            text = self._decode(self._window)
        num_open = len(text) - len(text.rstrip(REPLACEMENT))
        whole = text[: len(text) - min(num_open, _MAX_INCOMPLETE)]
        delta = whole[len(self._sent) :]
        if delta:
            self._sent = whole
        if not num_open and delta:
            self._window = self._window[self._num_context :]
            self._num_context = len(self._window)
            self._sent = self._decode(self._window)
        elif len(self._window) % _CUT_EVERY == 0:
            self._cut(text)
        return delta

    def flush(self) -> str:
        """What was held back: the end of an answer that stops inside a character."""
        rest = self._decode(self._window)[len(self._sent) :]
        self._sent += rest
        return rest

    def _cut(self, text: str) -> None:
        """Forgets the head of a window that no whole character has ended for long.

        A cut is safe where both parts decode to what they are together. Where every token ends
        inside a character there is none, and the window goes on.
        """
        size = len(self._window)
        for middle in range(size - 1, size - 1 - _CUT_TRIES, -1):
            head = self._decode(self._window[:middle])
            if len(head) > len(self._sent):
                continue
            if head + self._decode(self._window[middle:]) == text:
                self._window = self._window[middle:]
                self._num_context = 0
                self._sent = self._sent[len(head) :]
                return
