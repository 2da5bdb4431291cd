"""The trie of one round: what all sources guess, merged, best paths first.

Grown from the last committed token outwards: the likeliest open node is taken, every source is
asked what may follow it, and so on. So the first n nodes are the n likeliest, each with its
parent. Knows token ids and probabilities; no model, no message.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.lookup.confidence import Confidences
from paceline.lookup.guesses import Bucket, Guess, Predictor
from paceline.rounds import TokenSource

ROOT = -1
# A main-chain token has left the main chain nowhere.
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft tokens in topological order, the likeliest path first. All lists are parallel."""

    token_ids: list[int] = field(default_factory=list)
    # Index of the parent among these tokens; -1: the last committed token.
    parents: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    # Estimated probability that the target's text runs through the node.
    probabilities: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def expected(self) -> float:
        """Expected number of accepted tokens."""
        return sum(self.probabilities)


class _Branch:
    """One token that may follow a node: the best of what the sources said, and all they said."""

    __slots__ = ("buckets", "confidence", "source")

    def __init__(self, confidence: float, guess: Guess) -> None:
        self.confidence = confidence
        self.source = guess.source
        self.buckets: list[Bucket] = [guess.bucket]


class _Node:
    __slots__ = (
        "branches",
        "children",
        "left",
        "parent",
        "probability",
        "source",
        "states",
        "token_id",
    )

    def __init__(
        self,
        parent: int,
        left: int,
        token_id: int,
        source: TokenSource,
        probability: float,
        states: Sequence[Any],
    ) -> None:
        self.parent = parent
        # Position at which its path left the main chain.
        self.left = left
        self.token_id = token_id
        self.source = source
        self.probability = probability
        self.states = states
        self.branches: dict[int, _Branch] = {}
        self.children: dict[int, int] = {}


class Trie:
    """Draft tokens of one sequence for its next round. Make a new one after each commit."""

    def __init__(
        self,
        predictors: Sequence[Predictor],
        confidences: Confidences,
        *,
        position: int,
        max_depth: int,
        branch_block: int,
    ) -> None:
        """`position` is that of the next token; no path has more than `max_depth` tokens. Paths
        other than the main chain end before the next multiple of `branch_block` positions, so that
        a verifier finds all keys before their block where plain decoding has them."""
        self._predictors = predictors
        self._confidences = confidences
        self._position = position
        self._max_depth = max_depth
        self._branch_block = branch_block
        self._nodes: list[_Node] = []
        # (-probability, order of arrival, parent, token id, depth) of what may be taken next.
        self._open: list[tuple[float, int, int, int, int]] = []
        self._num_opened = 0
        states = [predictor.root() for predictor in predictors]
        self._root = _Node(ROOT, _NOWHERE, ROOT, TokenSource.UNSPECIFIED, 1.0, states)
        self._expand(ROOT, 0)

    def pick(self, max_nodes: int, min_probability: float = 0.0) -> Tree:
        """The likeliest `max_nodes` nodes whose probability is above `min_probability`."""
        while len(self._nodes) < max_nodes and self._grow(min_probability):
            pass
        count = min(max_nodes, len(self._nodes))
        while count > 0 and self._nodes[count - 1].probability <= min_probability:
            count -= 1
        return self._laid_out(count)

    @property
    def has_guesses(self) -> bool:
        """Whether any source had something to say."""
        return bool(self._root.branches)

    def learn(self, token_ids: Sequence[int]) -> None:
        """Tell the confidences what the target chose, from the first token of the round on."""
        index = ROOT
        for token_id in token_ids:
            node = self._root if index == ROOT else self._nodes[index]
            for guessed, branch in node.branches.items():
                for bucket in branch.buckets:
                    self._confidences.learn(bucket, right=guessed == token_id)
            if node.children:
                expected = sum(node.branches[child].confidence for child in node.children)
                self._confidences.tested(expected, right=token_id in node.children)
            if token_id not in node.children:
                return
            index = node.children[token_id]

    def _grow(self, min_probability: float) -> bool:
        """Take the likeliest open node; False when there is none above the bound."""
        if not self._open or -self._open[0][0] <= min_probability:
            return False
        negative, _, parent, token_id, depth = heapq.heappop(self._open)
        above = self._root if parent == ROOT else self._nodes[parent]
        left = above.left
        if left == _NOWHERE and above.children:
            left = self._position + depth - 1
        elif left != _NOWHERE and (self._position + depth - 1) % self._branch_block == 0:
            return True
        states = [
            predictor.step(state, token_id)
            for predictor, state in zip(self._predictors, above.states, strict=True)
        ]
        source = above.branches[token_id].source
        index = len(self._nodes)
        self._nodes.append(_Node(parent, left, token_id, source, -negative, states))
        above.children[token_id] = index
        self._expand(index, depth)
        return True

    def _expand(self, index: int, depth: int) -> None:
        """Ask every source what may follow a node of this depth."""
        if depth >= self._max_depth:
            return
        node = self._root if index == ROOT else self._nodes[index]
        branches, known = node.branches, self._confidences
        for predictor, state in zip(self._predictors, node.states, strict=True):
            for guess in predictor.guesses(state, self._position + depth):
                confidence = known[guess.bucket]
                branch = branches.get(guess.token_id)
                if branch is None:
                    branches[guess.token_id] = _Branch(confidence, guess)
                    continue
                branch.buckets.append(guess.bucket)
                # Sources err together too often for more: measured, the best one is as good.
                if confidence > branch.confidence:
                    branch.confidence, branch.source = confidence, guess.source
        trust = known.trust
        for token_id, branch in branches.items():
            self._num_opened += 1
            probability = node.probability * min(trust * branch.confidence, 1.0)
            heapq.heappush(self._open, (-probability, self._num_opened, index, token_id, depth + 1))

    def _laid_out(self, count: int) -> Tree:
        """The first `count` nodes, depth first: likelier children, which are older, come first."""
        tree = Tree()
        places: dict[int, int] = {ROOT: ROOT}
        stack = [i for i in reversed(self._root.children.values()) if i < count]
        while stack:
            index = stack.pop()
            node = self._nodes[index]
            places[index] = len(tree.token_ids)
            tree.token_ids.append(node.token_id)
            tree.parents.append(places[node.parent])
            tree.sources.append(node.source)
            tree.probabilities.append(node.probability)
            stack += [i for i in reversed(node.children.values()) if i < count]
        return tree
