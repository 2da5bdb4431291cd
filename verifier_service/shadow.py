"""Shadow: what draft tokens would have brought that nobody verified.

A sequence whose budget is spent decodes plainly, but its sources go on guessing, which costs next
to nothing. Whether the guesses would have stood is seen as the target decodes on: a probe for
free. Pure; times in microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_ROOT = -1
# Losses are counted up to this many plain steps: what is long past should not weigh for ever.
_MOST_LOST = 2.0


@dataclass(slots=True)
class Shadow:
    """One sequence. Looks at one tree at a time, until its path has left it."""

    # What the trees so far would have gained.
    account_us: float = 0.0
    _children: dict[tuple[int, int], int] | None = None
    _node: int = _ROOT
    _depth: int = 0
    _cost_us: float = 0.0

    def watch(self, token_ids: Sequence[int], parents: Sequence[int], cost_us: float) -> None:
        """Before a round: a tree that is not verified, and what its rows would cost."""
        if self._children is None and token_ids:
            edges = zip(parents, token_ids, strict=True)
            self._children = {edge: node for node, edge in enumerate(edges)}
            self._node, self._depth, self._cost_us = _ROOT, 0, cost_us

    def committed(self, token_ids: Sequence[int], plain_us: float) -> bool:
        """After a round. True when the trees would have gained a plain step, and from 0 again."""
        for token_id in token_ids:
            if self._children is None:
                break
            node = self._children.get((self._node, token_id))
            if node is None:
                self._settle(plain_us)
                break
            self._node, self._depth = node, self._depth + 1
        if self.account_us <= plain_us:
            return False
        self.account_us = 0.0
        return True

    def _settle(self, plain_us: float) -> None:
        gained_us = self._depth * plain_us - self._cost_us
        self.account_us = max(self.account_us + gained_us, -_MOST_LOST * plain_us)
        self._children = None
