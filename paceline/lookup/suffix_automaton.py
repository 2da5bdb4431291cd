"""A suffix automaton over many texts: the longest match of a running text, in constant time.

The smallest automaton of all substrings (Blumer et al., 1985), built online, one token at a time.
Each state also counts the texts it occurs in, which is what a continuation's confidence comes
from. Knows token ids only.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """A state and how many of the last tokens it stands for."""

    state: int
    length: int


NO_MATCH = Match(0, 0)


class SuffixAutomaton:
    """Substrings of the texts added so far. At most two states per token."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        # The state of the longest suffix that occurs elsewhere too; that of the root is itself.
        self._link: list[int] = [0]
        self._length: list[int] = [0]
        # Texts that a state occurs in, and the last of them.
        self._count: list[int] = [0]
        self._latest: list[int] = [0]
        self._num_texts = 0

    def __len__(self) -> int:
        """States: what memory it takes."""
        return len(self._next)

    def add(self, token_ids: Sequence[int]) -> None:
        """Learn a text. Its time is linear in its length but for the counts, which visit every
        state that the text occurs in once."""
        self._num_texts += 1
        last = 0
        ends = []
        for token_id in token_ids:
            last = self._extend(last, token_id)
            ends.append(last)
        # Only now: a state made for a later token may stand for an earlier suffix.
        for state in ends:
            while state and self._latest[state] != self._num_texts:
                self._latest[state] = self._num_texts
                self._count[state] += 1
                state = self._link[state]

    def _extend(self, last: int, token_id: int) -> int:
        """The state of `last`'s text with one token more."""
        known = self._next[last].get(token_id)
        if known is not None:
            if self._length[known] == self._length[last] + 1:
                return known
            return self._split(last, token_id, known)
        new = self._state({}, self._length[last] + 1)
        state = last
        while token_id not in self._next[state]:
            self._next[state][token_id] = new
            if state == 0:
                return new
            state = self._link[state]
        target = self._next[state][token_id]
        if self._length[target] != self._length[state] + 1:
            target = self._split(state, token_id, target)
        self._link[new] = target
        return new

    def _split(self, state: int, token_id: int, target: int) -> int:
        """A copy of `target` for its shorter strings, those that also follow `state`."""
        copy = self._state(dict(self._next[target]), self._length[state] + 1)
        self._link[copy] = self._link[target]
        self._count[copy] = self._count[target]
        self._latest[copy] = self._latest[target]
        self._link[target] = copy
        while self._next[state].get(token_id) == target:
            self._next[state][token_id] = copy
            if state == 0:
                break
            state = self._link[state]
        return copy

    def _state(self, following: dict[int, int], length: int) -> int:
        self._next.append(following)
        self._link.append(0)
        self._length.append(length)
        self._count.append(0)
        self._latest.append(0)
        return len(self._next) - 1

    def step(self, match: Match, token_id: int) -> Match:
        """The longest match one token further. Matches stay good while texts are added."""
        state, length = self._current(match)
        while token_id not in self._next[state]:
            if state == 0:
                return NO_MATCH
            state = self._link[state]
            length = self._length[state]
        return Match(self._next[state][token_id], length + 1)

    def continuations(self, match: Match, limit: int) -> list[tuple[int, int]]:
        """(token, texts in which it follows the match), most first, then the most recent."""
        following = self._next[self._current(match).state]
        ranked = sorted(
            following.items(),
            key=lambda item: (self._count[item[1]], self._latest[item[1]]),
            reverse=True,
        )
        return [(token_id, self._count[state]) for token_id, state in ranked[:limit]]

    def shorter(self, match: Match) -> Match:
        """The next shorter match that occurs in more places."""
        link = self._link[self._current(match).state]
        return Match(link, self._length[link])

    def _current(self, match: Match) -> Match:
        """A state that was split since stands for longer strings only: the copy has the rest."""
        state, length = match
        while state and length <= self._length[self._link[state]]:
            state = self._link[state]
        return Match(state, length)
