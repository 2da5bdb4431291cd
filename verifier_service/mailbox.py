"""The mailbox of one sequence: draft tokens that continue its own, and nothing else.

A pure state machine (rules S2-S4 and S9 of the reliability reference). A drafter's tokens are one
continuous stream that starts at the commit its epoch names; whatever does not continue the stream
is dropped and counted, never an error. Knows no messages and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.rejection import DraftDistribution, draw
from paceline.rounds import TokenSource

# What only the target model may be the source of.
_TARGET_SOURCES = frozenset({TokenSource.PLAIN, TokenSource.RECOVERED, TokenSource.BONUS})
# An hour: what a drafter claims beyond it is not a time, and reports are 32 bits wide.
_MAX_DRAFT_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """Draft tokens as a drafter sent them."""

    sequence: int
    epoch: int
    base_position: int
    token_ids: Sequence[int]
    sources: Sequence[TokenSource]
    draft_us: int = 0
    # What the tokens were sampled from, one per token or none at all; None in it is malformed.
    distributions: Sequence[DraftDistribution | None] = ()


class Receipt(Enum):
    """What became of a block."""

    KEPT = "kept"
    STALE = "stale"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Commit:
    """What the drafter is told of committed tokens."""

    epoch: int
    base_position: int
    num_agreed: int
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a round verifies; empty for plain decoding."""

    token_ids: Sequence[int] = ()
    sources: Sequence[TokenSource] = ()
    # Each token's parent among them, -1 for the last committed token.
    parents: Sequence[int] = ()
    draft_us: int = 0
    # Expected number of accepted tokens, where it was estimated.
    expected: float = 0.0
    # One per token, or empty: then every token counts as certain.
    distributions: Sequence[DraftDistribution] = ()


class Mailbox:
    """Draft tokens beyond the committed `position`, all of the current epoch.

    With a `seed`, draft tokens must be the ones that their distributions and the noise give.
    """

    def __init__(
        self, position: int, vocab_size: int, max_draft_tokens: int, seed: int | None = None
    ) -> None:
        self.position = position
        self.epoch = 0
        self._vocab_size = vocab_size
        self._max_draft_tokens = max_draft_tokens
        self._seed = seed
        # Where the present epoch began: the base of the drafter's draws.
        self._epoch_position = position
        self._token_ids: list[int] = []
        self._sources: list[TokenSource] = []
        self._distributions: list[DraftDistribution] = []
        self._draft_us = 0
        # The drafter has said that it has nothing for this commit.
        self.is_empty_handed = False

    def __len__(self) -> int:
        return len(self._token_ids)

    def restart(self) -> None:
        """A new epoch from the committed position, as for an attach."""
        self._open_epoch()

    def _open_epoch(self) -> None:
        self.epoch += 1
        self._epoch_position = self.position
        self._token_ids.clear()
        self._sources.clear()
        self._distributions.clear()
        self._draft_us = 0
        self.is_empty_handed = False

    def offer(self, block: Block) -> Receipt:
        """Keep a block that continues the stream; say why not otherwise."""
        expected = self.position + len(self)
        if block.epoch < self.epoch:
            return Receipt.STALE
        if block.epoch > self.epoch or block.base_position != expected:
            return Receipt.MALFORMED
        if len(self) + len(block.token_ids) > self._max_draft_tokens:
            return Receipt.MALFORMED
        if not all(0 <= token_id < self._vocab_size for token_id in block.token_ids):
            return Receipt.MALFORMED
        if len(block.sources) != len(block.token_ids):
            return Receipt.MALFORMED
        if any(source in _TARGET_SOURCES for source in block.sources):
            return Receipt.MALFORMED
        if not self._is_honest(block):
            return Receipt.MALFORMED
        self.is_empty_handed = not block.token_ids
        self._token_ids += block.token_ids
        self._sources += block.sources
        self._distributions += [d for d in block.distributions if d is not None]
        self._draft_us = min(self._draft_us + block.draft_us, _MAX_DRAFT_US)
        return Receipt.KEPT

    def peek(self, limit: int) -> Draft:
        """The first `limit` draft tokens. They stay until a commit."""
        if limit <= 0 or not self._token_ids:
            return Draft()
        token_ids = self._token_ids[:limit]
        return Draft(
            token_ids,
            self._sources[:limit],
            range(-1, len(token_ids) - 1),
            self._draft_us,
            distributions=self._distributions[:limit],
        )

    def _is_honest(self, block: Block) -> bool:
        """Distributions come for all tokens or for none of an epoch, and replay to the tokens."""
        has_any = bool(block.distributions)
        if self._seed is None or not block.token_ids:
            return not has_any
        if has_any != bool(self._distributions) and self._token_ids:
            return False
        if not has_any:
            return True
        if len(block.distributions) != len(block.token_ids):
            return False
        return all(
            distribution is not None
            and draw(distribution, self._seed, self._epoch_position, position) == token_id
            for position, (token_id, distribution) in enumerate(
                zip(block.token_ids, block.distributions, strict=True), block.base_position
            )
        )

    def commit(self, token_ids: Sequence[int]) -> Commit:
        """Move on by committed tokens; a new epoch if they are not what the drafter sent."""
        num_agreed = 0
        for ours, theirs in zip(token_ids, self._token_ids, strict=False):
            if ours != theirs:
                break
            num_agreed += 1
        base_position = self.position
        self.position += len(token_ids)
        if num_agreed == len(token_ids):
            for stream in (self._token_ids, self._sources, self._distributions):
                del stream[:num_agreed]
            self._draft_us = 0
            self.is_empty_handed = False
        else:
            self._open_epoch()
        return Commit(self.epoch, base_position, num_agreed, token_ids[num_agreed:])
