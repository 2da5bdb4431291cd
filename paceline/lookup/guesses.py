"""Guesses: what a source of draft tokens says about the token after a path.

Every source answers the same question, so the trie can ask all of them at every node. Knows token
ids only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from paceline.rounds import TokenSource

# What tells guesses of unlike reliability apart: a source's letter, then small numbers.
Bucket = tuple[str | int, ...]


class Guess(NamedTuple):
    """One token that may come next, and the bucket by which its confidence is known."""

    token_id: int
    source: TokenSource
    bucket: Bucket


class Predictor(Protocol):
    """A source of one sequence. A state stands for the committed tokens and a path after them.

    States are immutable: many paths start from the same one.
    """

    def root(self) -> Any:
        """The state after the committed tokens."""
        ...

    def step(self, state: Any, token_id: int) -> Any:
        """The state one token further."""
        ...

    def guesses(self, state: Any, position: int) -> Sequence[Guess]:
        """What may come at `position` (its index in the sequence); each token at most once."""
        ...
