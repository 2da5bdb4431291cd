"""Past answers: drafts from what was answered before. A support bot repeats its paragraphs.

A bounded store per tenant, never shared between tenants. Two automata, a recent and an older one:
when the recent one is full it takes the older one's place, so the oldest half is forgotten at once
and nothing has to be deleted from an automaton. Knows token ids only.
"""

from collections.abc import Sequence
from functools import partial

from paceline.lookup.guesses import Guess
from paceline.lookup.luck import Luck, luck_level
from paceline.lookup.suffix_automaton import NO_MATCH, Match, SuffixAutomaton
from paceline.rounds import TokenSource

# States of both automata of one tenant, of some 300 bytes each.
MAX_STATES = 65_536
# Tokens before an answer that are kept with it, so that its beginning can be found.
_LEAD = 16
# Of a sequence, how far back a match may begin when the store changes.
_MEMORY = 64
# Shorter matches say little, and prompt lookup says it already.
_MIN_MATCH = 3
_MAX_BRANCHES = 3
_LENGTHS = (4, 6, 9, 16)


class PastAnswers:
    """The answers of one tenant, the latest ones."""

    def __init__(self, max_states: int = MAX_STATES) -> None:
        self._half = max_states // 2
        self.recent = SuffixAutomaton()
        self.older = SuffixAutomaton()

    def __len__(self) -> int:
        """States of both automata: never more than `max_states`."""
        return len(self.recent) + len(self.older)

    def add(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Keep an answer; the oldest ones go if there is no room."""
        text = [*prompt[-_LEAD:], *answer]
        # At most two states per token and the root.
        if 2 * len(text) + 1 > self._half:
            return
        if len(self.recent) + 2 * len(text) > self._half:
            self.older, self.recent = self.recent, SuffixAutomaton()
        self.recent.add(text)


class PastGuesses:
    """The past answers of its tenant as a source of one sequence's trie."""

    def __init__(self, past: PastAnswers, token_ids: Sequence[int], luck: Luck | None) -> None:
        """`token_ids` is the sequence's own list, which grows with its commits."""
        self._past = past
        self._token_ids = token_ids
        self._luck = luck
        self._automata: tuple[SuffixAutomaton, ...] = ()
        self._matches: tuple[Match, ...] = ()
        self._num_read = 0

    def root(self) -> tuple[Match, ...]:
        automata = (self._past.recent, self._past.older)
        if automata != self._automata:
            # The store has turned over: match the last tokens anew.
            self._automata = automata
            self._matches = (NO_MATCH, NO_MATCH)
            self._num_read = max(0, len(self._token_ids) - _MEMORY)
        for token_id in self._token_ids[self._num_read :]:
            self._matches = self.step(self._matches, token_id)
        self._num_read = len(self._token_ids)
        return self._matches

    def step(self, state: tuple[Match, ...], token_id: int) -> tuple[Match, ...]:
        return tuple(
            automaton.step(match, token_id)
            for automaton, match in zip(self._automata, state, strict=True)
        )

    def guesses(self, state: tuple[Match, ...], position: int) -> list[Guess]:
        """What followed the longest match that anything followed."""
        found: dict[int, Guess] = {}
        pairs = zip(self._automata, state, strict=True)
        for automaton, match in sorted(pairs, key=lambda pair: -pair[1].length):
            for guess in self._following(automaton, match, position):
                found.setdefault(guess.token_id, guess)
        return list(found.values())

    def _following(self, automaton: SuffixAutomaton, match: Match, position: int) -> list[Guess]:
        while match.length >= _MIN_MATCH:
            following = automaton.continuations(match, _MAX_BRANCHES)
            if following:
                if self._luck is not None:
                    following.sort(key=partial(_handicap, self._luck, position))
                total = sum(count for _, count in following)
                return [
                    Guess(token_id, TokenSource.PAST_ANSWERS, (*bucket, luck))
                    for token_id, count in following
                    for bucket in (("past", _level(match.length), 4 * count // (total + 1)),)
                    for luck in (luck_level(self._luck, position, token_id),)
                ]
            match = automaton.shorter(match)
        return []


def _handicap(luck: Luck, position: int, following: tuple[int, int]) -> float:
    """Of a (token, count): the smallest is ahead in the race."""
    token_id, count = following
    return luck.exponential(position, token_id) / count


def _level(length: int) -> int:
    """Of a match's length: 0 to 4."""
    return sum(length >= bound for bound in _LENGTHS)
