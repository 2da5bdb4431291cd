"""Lookahead: tokens to come, guessed by the target itself in spare rows of its own forward.

Behind the last committed token stands a window, a chain of guesses (Jacobi iteration, arXiv
2402.02057). Its rows run beside the draft tokens, and what the target chooses at each is the guess
for the position after it in the next round. With shared noise that choice is a function of the path
alone, at any temperature, so the window moves towards the very text that plain decoding gives. What
the target thought at all rows goes into a pool, from which draft tokens are taken. Knows token ids
and log-probabilities, no model.
"""

import random
from collections.abc import Sequence

from paceline.lookup.luck import Luck
from paceline.lookup.recycling import RecycledGuesses, RecyclingTable, Top
from paceline.lookup.thoughts import Thoughts
from paceline.lookup.trie import ROOT, Tree
from paceline.rounds import TokenSource

# Guesses in the window, each a row (docs/log.md).
WINDOW = 8
# Contexts of one sequence's pool.
_MAX_CONTEXTS = 8192
# Tokens that a row of the window gives: what a sequence measures itself counts beside this prior.
_PRIOR_GAIN, _PRIOR_ROWS = 0.03, 400.0


class Lookahead:
    """Window and pool of one sequence. Deterministic: no more than its tokens and seed decide."""

    def __init__(
        self, token_ids: Sequence[int], luck: Luck | None, seed: int, window: int = WINDOW
    ) -> None:
        """`token_ids` is the sequence's own list, which grows with its commits. The first guesses
        are tokens of it."""
        self._token_ids = token_ids
        self._luck = luck
        self._random = random.Random(seed)
        self._size = window
        self._pool = RecyclingTable(_MAX_CONTEXTS)
        self.guesses = RecycledGuesses(self._pool, token_ids, luck, TokenSource.LOOKAHEAD)
        self._gain, self._num_rows = _PRIOR_GAIN * _PRIOR_ROWS, _PRIOR_ROWS
        # Guesses at the tokens after the last committed one.
        self.window: list[int] = []
        self._fill()

    @property
    def credit(self) -> float:
        """Tokens that each row of the window has given, through the pool or by itself."""
        return self._gain / self._num_rows

    def graft(self, tree: Tree, max_rows: int, max_depth: int, branch_block: int) -> Tree:
        """The draft tokens and, in at most `max_rows` more rows, the window.

        What they share is one path. As in a trie, no path is deeper than `max_depth` and a side
        branch ends with its block.
        """
        position = len(self._token_ids)
        grafted = Tree(
            list(tree.token_ids), list(tree.parents), list(tree.sources), list(tree.probabilities)
        )
        children = _children(tree.token_ids, tree.parents)
        main = next((i for i, parent in enumerate(tree.parents) if parent != i - 1), len(tree))
        node, left = ROOT, None
        for depth, token_id in enumerate(self.window[:max_depth]):
            child = children.get((node, token_id))
            index = len(grafted) if child is None else child
            if left is None and (index != depth or index > main):
                left = position + depth
            if left is not None and (position + depth) // branch_block != left // branch_block:
                break
            if child is None:
                if len(grafted) - len(tree) == max_rows:
                    break
                main += index == main
                grafted.token_ids.append(token_id)
                grafted.parents.append(node)
                grafted.sources.append(TokenSource.LOOKAHEAD)
                grafted.probabilities.append(self.credit)
            node = index
        return grafted

    def learn(self, num_new: int, thoughts: Thoughts) -> None:
        """After a round: its `num_new` tokens stand at the end of the sequence by now."""
        known = self._token_ids
        start = len(known) - num_new
        children = _children(thoughts.token_ids, thoughts.parents)
        stood = _path(children, known[start:])
        looked = _path(children, self.window)
        self._num_rows += len(looked)
        self._gain += sum(thoughts.sources[node] is TokenSource.LOOKAHEAD for node in stood)
        self._remember(start, thoughts)
        chosen = [
            self._choice(start + depth, thoughts.tops[node + 1])
            for depth, node in enumerate([ROOT, *looked])
        ]
        self.window = [*chosen, *self.window[len(chosen) :]][num_new:]
        self._fill()

    def _remember(self, start: int, thoughts: Thoughts) -> None:
        """Into the pool with what was thought after the token before the round and after each of
        its draft tokens."""
        known = self._token_ids
        before = known[start - 2] if start > 1 else 0
        for context in thoughts.contexts(before, known[start - 1]):
            self._pool.put(*context)

    def _choice(self, position: int, top: Top) -> int:
        """The target's token there: exact at temperature 0, else the winner among the likeliest."""
        if self._luck is None:
            return top.token_ids[0]
        scores = self._luck.scores(position, top.token_ids, top.logprobs)
        return top.token_ids[max(range(len(scores)), key=scores.__getitem__)]

    def _fill(self) -> None:
        """Guesses at the end of the window: the pool's, else any token of the text."""
        known = self._token_ids
        while len(self.window) < self._size:
            before, last = [*known[-2:], *self.window][-2:] if len(known) > 1 else (0, known[-1])
            found = self.guesses.guesses((before, last), len(known) + len(self.window))
            self.window.append(found[0].token_id if found else self._random.choice(known))


def _children(token_ids: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, int], int]:
    pairs = zip(parents, token_ids, strict=True)
    return {pair: index for index, pair in enumerate(pairs)}


def _path(children: dict[tuple[int, int], int], token_ids: Sequence[int]) -> list[int]:
    """Nodes from the root on that carry these tokens, as far as there are any."""
    path: list[int] = []
    node = ROOT
    for token_id in token_ids:
        child = children.get((node, token_id))
        if child is None:
            break
        path.append(child)
        node = child
    return path
