"""The draft clock of one sequence: when its drafter was told what, and when it was heard of.

Turns commits and blocks into what pacing learns of a drafter's pace, and of its aim: a block that
came too late still shows whether its tokens would have stood. Pure; times in nanoseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from verifier_service.mailbox import Block
from verifier_service.pacing import Pacing

_MAX_EPOCHS = 8


@dataclass(slots=True)
class DraftClock:
    """Owned by a sequence; the engine's thread calls it."""

    # How far the drafter may run ahead of the last commit; 0: it rests.
    credit: int = 0
    committed_ns: int = 0
    # When draft tokens came last, or the commit if that was later.
    heard_ns: int = 0
    # When the drafter was told of each of the last epochs, and where it began, until it answers.
    _epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    _heard_epoch: int = -1
    _was_full: bool = False

    def told(self, epoch: int, position: int, credit: int, now_ns: int) -> None:
        """The drafter is told of a commit that ends at this position."""
        self.credit = credit
        self.committed_ns = now_ns
        self._epochs.setdefault(epoch, (now_ns, position))
        if len(self._epochs) > _MAX_EPOCHS:
            del self._epochs[next(iter(self._epochs))]

    def since_us(self, num_ready: int, now_ns: int) -> float:
        """Since the commit when nothing is at hand, else since the last tokens came."""
        return (now_ns - (self.heard_ns if num_ready else self.committed_ns)) / 1e3

    def heard(
        self,
        block: Block,
        committed: Sequence[int],
        num_ready: int,
        pacing: Pacing,
        now_ns: int,
        *,
        is_late: bool,
    ) -> None:
        """A well-formed block came; `committed`: the sequence's tokens from its base on."""
        gap_us = (now_ns - self.heard_ns) / 1e3
        told = self._epochs.pop(block.epoch, None)
        if told is not None:
            told_ns, position = told
            pacing.arrival.answered((now_ns - told_ns) / 1e3, len(block.token_ids))
            if is_late and block.token_ids and block.base_position == position:
                tested, right = judge(block.token_ids, committed)
                if tested:
                    pacing.overheard(block.sources[0], tested, right)
        elif block.epoch == self._heard_epoch and block.token_ids and not self._was_full:
            pacing.arrival.followed(gap_us, len(block.token_ids))
        self._heard_epoch = block.epoch
        self.heard_ns = now_ns
        # With all its credit used, what it sends next was not being drafted meanwhile.
        self._was_full = num_ready >= self.credit


def judge(token_ids: Sequence[int], committed: Sequence[int]) -> tuple[int, int]:
    """(tested, right) of draft tokens whose places are taken by now."""
    right = 0
    for token_id, truth in zip(token_ids, committed, strict=False):
        if token_id != truth:
            return right + 1, right
        right += 1
    return right, right
