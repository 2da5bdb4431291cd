"""What the target thought in a round: its likeliest ids after every row, those that did not stand
included. They come for free with the forward, and feed recycling and lookahead. Knows no tensors.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.lookup.recycling import Top
from paceline.rounds import TokenSource


class Thoughts(NamedTuple):
    """A round's draft tokens, and what the target thought after the token before them and after
    each of them: `tops` is one longer than the other lists, which are parallel."""

    token_ids: Sequence[int]
    parents: Sequence[int]
    sources: Sequence[TokenSource]
    tops: Sequence[Top]

    def contexts(self, before: int, last: int) -> Iterator[tuple[int, int, Top]]:
        """(the last but one token, the last one, what may follow) of every row; `before` and `last`
        are those in front of the round."""
        pairs = [(before, last)]
        for parent, token_id in zip(self.parents, self.token_ids, strict=True):
            pairs.append((pairs[parent + 1][1], token_id))
        for pair, top in zip(pairs, self.tops, strict=True):
            # Nobody has looked yet at what a row that did not stand contains.
            if all(map(math.isfinite, top.logprobs)):
                yield (*pair, top)
