"""Turns: which sequences take part in a step, with how many rows, and whether to wait first.

Reads sequences, decides by pacing and the scheduler, changes nothing. Knows no thread and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.model.engine import Rows
from paceline.params import Speculation
from verifier_service.config import VerifierSettings
from verifier_service.mailbox import Draft
from verifier_service.pacing import MAX_WAIT_US, StepTime
from verifier_service.scheduler import Share, Want, share_rows
from verifier_service.sequence import VerifierSequence
from verifier_service.sources import Chain

# A request with a fixed draft length is for measurements: it waits for its draft.
_FIXED_WAIT_US = 100_000.0


@dataclass(slots=True)
class Turn:
    """One sequence's part in a step."""

    sequence: VerifierSequence
    share: Share
    draft: Draft
    wait_us: float = 0.0

    @property
    def rows(self) -> Rows:
        """What the forward is to compute; logits only where a token is to be chosen."""
        sequence, share = self.sequence, self.share
        assert sequence.cache is not None
        start = sequence.cache.length
        end = start + share.num_tokens
        return Rows(
            sequence.cache,
            [*sequence.token_ids[start:end], *self.draft.token_ids],
            len(self.draft.token_ids) + 1 if end == len(sequence.token_ids) else 0,
            self.draft.parents,
        )

    @property
    def num_missing_blocks(self) -> int:
        """KV blocks that the turn needs beyond its sequence's own."""
        cache = self.sequence.cache
        assert cache is not None
        return cache.num_missing(cache.length + self.share.num_tokens + len(self.draft.token_ids))

    @property
    def expects_draft(self) -> bool:
        """A drafter's block is under way that this turn could still use; never the first token's,
        and not where the sequence's own sources promise as much as its first token."""
        sequence = self.sequence
        return (
            sequence.prefill is not None
            and not len(sequence.mailbox)
            and (
                self.draft.expected < sequence.pacing.acceptance
                or sequence.request.speculation is Speculation.FIXED
            )
            and sequence.awaits_draft
            and sequence.link is not None
            and not sequence.mailbox.is_empty_handed
            and sequence.draft_limit > 0
        )


def rho(step_time: StepTime, num_sequences: int) -> float:
    """Tokens per microsecond that one sequence earns by plain decoding in this company."""
    plain_us = step_time.predict(max(num_sequences, 1))
    return 1.0 / plain_us if plain_us > 0 else 0.0


def take_turns(
    running: Sequence[VerifierSequence], step_time: StepTime, settings: VerifierSettings
) -> list[Turn]:
    """The sequences of the next step and the draft tokens each verifies."""
    ready = [sequence for sequence in running if not sequence.is_paused]
    earning = rho(step_time, len(running))
    min_probability = earning * step_time.row_us
    wants = [
        Want(sequence.num_pending, len(_draft(sequence, min_probability, None).token_ids))
        for sequence in ready
    ]
    shares = share_rows(wants, step_rows=settings.step_rows, prefill_rows=settings.prefill_rows)
    return [
        Turn(sequence, share, _draft(sequence, min_probability, share))
        for sequence, share in zip(ready, shares, strict=True)
        if share.num_tokens
    ]


def _draft(sequence: VerifierSequence, min_probability: float, share: Share | None) -> Draft:
    """The draft tokens that are worth a row each: all of them, or as many as `share` has."""
    if sequence.is_over_budget or (share is not None and not share.num_draft):
        return Draft()
    is_fixed = sequence.request.speculation is Speculation.FIXED
    if sequence.sources is None:
        available = min(len(sequence.mailbox), sequence.draft_limit)
        if not is_fixed:
            available = sequence.pacing.draft_length(available, min_probability, 1.0)
        return sequence.mailbox.peek(available if share is None else share.num_draft)
    sent = sequence.mailbox.peek(sequence.draft_limit)
    trie = sequence.sources.trie(Chain(sent.token_ids, sent.sources), sequence.max_depth)
    limit = sequence.tree_limit if share is None else share.num_draft
    tree = trie.pick(limit, 0.0 if is_fixed else min_probability)
    return Draft(tree.token_ids, tree.sources, tree.parents, sent.draft_us, tree.expected)


def worthwhile_wait_us(turns: Sequence[Turn], step_time: StepTime, num_running: int) -> float:
    """How long the step should wait for drafts; 0 when a step without them earns more.

    The wait is shared: every sequence of the step pays for it, only those that expect a draft gain.
    """
    expecting = [turn.sequence for turn in turns if turn.expects_draft]
    if not expecting or any(turn.share.num_tokens > 1 for turn in turns):
        return 0.0
    if any(s.request.speculation is Speculation.FIXED for s in expecting):
        return _FIXED_WAIT_US
    price = rho(step_time, num_running) * len(turns) / len(expecting)
    waits = [s.pacing.wait_us(s.draft_limit, price) for s in expecting]
    return min(max(waits), MAX_WAIT_US)
