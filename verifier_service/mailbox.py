"""The mailbox of one sequence: draft tokens that continue its own, and nothing else.

A pure state machine (rules S2-S4 and S9 of the reliability reference). A drafter's tokens are one
continuous stream that starts at the commit its epoch names; whatever does not continue the stream
is dropped and counted, never an error. Knows no messages and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.rounds import TokenSource


@dataclass(frozen=True, slots=True)
class Block:
    """Draft tokens as a drafter sent them."""

    sequence: int
    epoch: int
    base_position: int
    token_ids: Sequence[int]
    sources: Sequence[TokenSource]
    draft_us: int = 0


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
    draft_us: int = 0


class Mailbox:
    """Draft tokens beyond the committed `position`, all of the current epoch."""

    def __init__(self, position: int, vocab_size: int, max_draft_tokens: int) -> None:
        self.position = position
        self.epoch = 0
        self._vocab_size = vocab_size
        self._max_draft_tokens = max_draft_tokens
        self._token_ids: list[int] = []
        self._sources: list[TokenSource] = []
        self._draft_us = 0
        # The drafter has said that it has nothing for this commit.
        self.is_empty_handed = False

    def __len__(self) -> int:
        return len(self._token_ids)

    def restart(self) -> None:
        """A new epoch from the committed position, as for an attach."""
        self._clear()
        self.epoch += 1

    def _clear(self) -> None:
        self._token_ids.clear()
        self._sources.clear()
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
        self.is_empty_handed = not block.token_ids
        self._token_ids += block.token_ids
        self._sources += block.sources
        self._draft_us += block.draft_us
        return Receipt.KEPT

    def peek(self, limit: int) -> Draft:
        """The first `limit` draft tokens. They stay until a commit."""
        if limit <= 0 or not self._token_ids:
            return Draft()
        return Draft(self._token_ids[:limit], self._sources[:limit], self._draft_us)

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
            del self._token_ids[:num_agreed], self._sources[:num_agreed]
            self._draft_us = 0
            self.is_empty_handed = False
        else:
            self._clear()
            self.epoch += 1
        return Commit(self.epoch, base_position, num_agreed, token_ids[num_agreed:])
