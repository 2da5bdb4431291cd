"""Token recycling: the target's own last top ids after a token, kept instead of thrown away.

An adjacency table (arXiv 2408.08696), here with the token before as well where that was seen: what
follows two tokens is known better than what follows one. At temperature above 0 candidates are
ranked by their log-probability plus the noise of their position, which the verifier will use too.
Knows token ids and log-probabilities, no model.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.lookup.guesses import Guess
from paceline.lookup.luck import Luck
from paceline.rounds import TokenSource

# Ids kept after each token.
NUM_TOP = 8
# Contexts kept: of one token, and of two.
MAX_CONTEXTS = 32_768
_MAX_LEVEL = 14
_MAX_MARGIN = 7


class Top(NamedTuple):
    """The likeliest ids at one position, best first, and their raw log-probabilities."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


class Tops(Protocol):
    """What may follow a context, as known from elsewhere."""

    def get(self, context: int) -> Top | None: ...


def after(last: int, before: int | None = None) -> int:
    """A context as one number: the last token, and the one before it if that is known."""
    return last if before is None else (before + 1) << 32 | last


class RecyclingTable:
    """From the last one or two tokens to what the target thought would follow. Bounded: the
    contexts that were not seen for longest go first."""

    def __init__(self, max_contexts: int = MAX_CONTEXTS, warm: Tops | None = None) -> None:
        """`warm` knows contexts that were not seen yet."""
        self._max_contexts = max_contexts
        self._warm = warm
        # One dictionary for both, in order of the last visit.
        self._tops: dict[int, Top] = {}

    def __len__(self) -> int:
        return len(self._tops)

    def put(self, before: int, last: int, top: Top) -> None:
        """`top` is what followed the tokens `before`, `last`."""
        kept = Top(array("i", top.token_ids), array("f", top.logprobs))
        tops = self._tops
        for context in (after(last), after(last, before)):
            tops.pop(context, None)
            tops[context] = kept
        while len(tops) > self._max_contexts:
            del tops[next(iter(tops))]

    def after_two(self, before: int, last: int) -> Top | None:
        return self._get(after(last, before))

    def after_one(self, last: int) -> Top | None:
        return self._get(after(last))

    def _get(self, context: int) -> Top | None:
        top = self._tops.get(context)
        return self._warm.get(context) if top is None and self._warm is not None else top


class RecycledGuesses:
    """A recycling table as a source of the trie."""

    def __init__(
        self,
        table: RecyclingTable,
        token_ids: Sequence[int],
        luck: Luck | None,
        source: TokenSource = TokenSource.RECYCLED,
    ) -> None:
        """`token_ids` is the sequence's own list, which grows with its commits. `source` tells who
        filled the table: its guesses are of kinds of their own."""
        self._source = source
        self._kind = "raced" if luck is not None else "recycled"
        if source is not TokenSource.RECYCLED:
            self._kind = f"{source.name.lower()} {self._kind}"
        self._table = table
        self._token_ids = token_ids
        self._luck = luck

    def root(self) -> tuple[int, int]:
        known = self._token_ids
        return (known[-2] if len(known) > 1 else 0, known[-1])

    def step(self, state: tuple[int, int], token_id: int) -> tuple[int, int]:
        return (state[1], token_id)

    def guesses(self, state: tuple[int, int], position: int) -> list[Guess]:
        """Those after two tokens, then what is new after one."""
        # (token id, log-probability, kind): kind 0 is after two tokens, 1 after one that was seen
        # with another token before it, 2 after one when the two are known.
        found: list[tuple[int, float, int]] = []
        near = self._table.after_two(*state)
        far = self._table.after_one(state[1])
        if near is not None:
            found += ((i, p, 0) for i, p in zip(near.token_ids, near.logprobs, strict=True))
        if far is not None and far is not near:
            seen = near.token_ids if near is not None else ()
            kind = 1 if near is None else 2
            found += (
                (i, p, kind)
                for i, p in zip(far.token_ids, far.logprobs, strict=True)
                if i not in seen
            )
        if self._luck is None:
            return [
                Guess(i, self._source, (self._kind, kind, min(int(p * -2.885), _MAX_LEVEL)))
                for i, p, kind in found
            ]
        return self._raced(self._luck, found, position)

    def _raced(self, luck: Luck, found: list[tuple[int, float, int]], position: int) -> list[Guess]:
        """By rank in the race that the target will run, and by the lead or lag there."""
        if not found:
            return []
        # Other contexts' log-probabilities are worth less than this one's.
        scores = luck.scores(
            position, [i for i, _, _ in found], [p - (kind == 2) for _, p, kind in found]
        )
        order = sorted(range(len(found)), key=scores.__getitem__, reverse=True)
        best = scores[order[0]]
        second = scores[order[1]] if len(order) > 1 else best - _MAX_MARGIN
        guesses = []
        for rank, index in enumerate(order):
            margin = best - second if rank == 0 else best - scores[index]
            level = min(int(margin * 1.5), _MAX_MARGIN)
            token_id, _, kind = found[index]
            bucket = (self._kind, kind, min(rank, 3), level)
            guesses.append(Guess(token_id, self._source, bucket))
        return guesses
