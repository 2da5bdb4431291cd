"""Turns: which sequences take part in a step, with how many rows, and whether to wait first.

Reads sequences, decides by the pacer and the scheduler, changes nothing. Knows no thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.lookup.trie import Tree
from paceline.model.engine import Rows
from paceline.params import Speculation
from verifier_service.config import VerifierSettings
from verifier_service.mailbox import Draft
from verifier_service.pacer import Pacer, View
from verifier_service.pacing import Mode
from verifier_service.rule import Stake, Wait
from verifier_service.scheduler import Share, Want, share_rows
from verifier_service.sequence import VerifierSequence
from verifier_service.sources import Chain, Sources
from verifier_service.step_time import StepShape

# A request with a fixed draft length is for measurements: it waits for its draft.
_FIXED_WAIT_US = 250_000.0
# Draft tokens beside the last pieces of prompts, shared by all that are read at the moment (but one
# each): they delay first tokens by a few per cent.
_FIRST_DRAFT = 4
# What stands less often than it fails only delays the first token.
_FIRST_LEAST = 0.5


@dataclass(slots=True)
class Turn:
    """One sequence's part in a step."""

    sequence: VerifierSequence
    view: View
    share: Share
    draft: Draft
    # What the drafter had sent by then, whether verified or not.
    sent: Draft
    # Time the step waited, and whether this sequence's draft was among what it waited for.
    wait_us: float = 0.0
    waited: bool = False
    # Draft tokens are at hand, and pacing looks at plain decoding instead.
    is_probe: bool = False
    # Draft tokens that pacing would verify if nobody's stake forbade it.
    num_wished: int = 0
    # Of these, expected to stand.
    hoped: float = 0.0
    # What it would verify if its budget were not spent.
    shadow: Draft = field(default_factory=Draft)
    # The sequence's own sources were asked, and what that took.
    looked: bool = True
    look_us: float = 0.0

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
    def asked_own(self) -> bool:
        """Its own sources were asked, as pacing wanted."""
        return self.looked and (self.view.has_own or self.view.is_shadowed)

    def evidence(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Of what the drafter had sent: tokens compared with the round's, and that would stand."""
        compared = list(zip(self.sent.token_ids, token_ids, strict=False))
        stood = next((i for i, (a, b) in enumerate(compared) if a != b), len(compared))
        return min(stood + 1, len(compared)), stood

    @property
    def num_missing_blocks(self) -> int:
        """KV blocks that the turn needs beyond its sequence's own."""
        cache = self.sequence.cache
        assert cache is not None
        return cache.num_missing(cache.length + self.share.num_tokens + len(self.draft.token_ids))


@dataclass(frozen=True, slots=True)
class Step:
    """The turns of a step. price: draft tokens less likely to stand are not worth a row now."""

    turns: list[Turn]
    plain: StepShape
    price: float = 0.0
    # What the draft rows would take that pacing wished for.
    wished_us: float = 0.0

    @property
    def shape(self) -> StepShape:
        num_draft = sum(len(turn.draft.token_ids) for turn in self.turns)
        return self.plain.with_rows(self.plain.rows + num_draft)

    @property
    def has_prefill(self) -> bool:
        return any(turn.share.num_tokens > 1 for turn in self.turns)


def take_turns(
    running: Sequence[VerifierSequence],
    pacer: Pacer,
    settings: VerifierSettings,
    now_ns: int,
) -> Step:
    """The sequences of the next step and the draft tokens each verifies."""
    ready = [sequence for sequence in running if not sequence.is_paused]
    limits = {
        "step_rows": settings.step_rows,
        "prefill_rows": settings.prefill_rows,
        "busy_prefill_rows": settings.busy_prefill_rows,
    }
    bare = share_rows([Want(sequence.num_pending, 0) for sequence in ready], **limits)
    plain = _plain_shape(ready, [share.num_tokens for share in bare], running)
    num_reading = sum(sequence.prefill is None for sequence in ready)
    first_draft = max(_FIRST_DRAFT // max(num_reading, 1), 1)
    whole = [share.num_tokens == s.num_pending for share, s in zip(bare, ready, strict=True)]
    looking = _looking(ready, whole, pacer, num_reading)
    least = pacer.least_probability(plain)
    views = [
        _view(sequence, now_ns, first_draft, least, looks=looks)
        for sequence, looks in zip(ready, looking, strict=True)
    ]
    plan = pacer.plan(views, plain, max(settings.step_rows - plain.rows, 0))
    wants = [
        Want(sequence.num_pending, count)
        for sequence, count in zip(ready, plan.num_draft, strict=True)
    ]
    shares = share_rows(wants, **limits)
    turns = [
        Turn(
            sequence,
            view,
            share,
            _draft(sequence, share.num_draft, least, looks=looks),
            sequence.mailbox.peek(sequence.draft_limit),
            is_probe=plan.is_probe and view.num_drafted > 0,
            num_wished=plan.wish.num_draft[index] if plan.wish.num_draft else 0,
            hoped=plan.wish.tokens[index] if plan.wish.tokens else 0.0,
            shadow=_shadow(sequence, view, max(least, plan.min_probability), looks=looks),
            looked=looks,
        )
        for index, (sequence, view, share, looks) in enumerate(
            zip(ready, views, shares, looking, strict=True)
        )
        if share.num_tokens
    ]
    return Step(
        turns, plain._replace(sequences=len(turns)), plan.min_probability, plan.wish.rows_us
    )


def worthwhile_wait(step: Step, pacer: Pacer, settings: VerifierSettings) -> Wait:
    """How long the step should wait for drafts, and for how many of each turn's sequence."""
    if step.has_prefill:
        return Wait(0.0, [])
    views = [turn.view for turn in step.turns]
    if any(view.fixed and view.expects and not view.num_ready for view in views):
        return Wait(_FIXED_WAIT_US, [int(view.fixed and view.expects) for view in views])
    return pacer.wait(views, step.plain, max(settings.step_rows - step.plain.rows, 0))


def _tree(sequence: VerifierSequence, sources: Sources, count: int, least: float) -> Tree:
    sent = sequence.mailbox.peek(sequence.draft_limit)
    is_fixed = sequence.request.speculation is Speculation.FIXED
    if is_fixed or sequence.pacing.mode is Mode.PROBE:
        least = 0.0
    elif sequence.prefill is None:
        least = max(least, _FIRST_LEAST)
    return sources.draft(Chain(sent.token_ids, sent.sources), sequence.num_left, count, least)


def _looking(
    ready: Sequence[VerifierSequence],
    whole: Sequence[bool],
    pacer: Pacer,
    num_reading: int,
) -> list[bool]:
    """Which sequences' own sources are asked in this step; `whole`: who will be read to its end,
    without which no token is chosen."""
    looking = [is_whole and _must_look(s) for s, is_whole in zip(ready, whole, strict=True)]
    open_ = [
        index
        for index, sequence in enumerate(ready)
        if whole[index] and not looking[index] and _may_look(sequence, num_reading)
    ]
    # A quiet step is plain whatever they find; and what asking costs, it costs all.
    if open_ and not pacer.is_quiet:
        stake_us = min(_stake(sequence).allows_us(0.0) for sequence in ready)
        pacings = [ready[index].pacing for index in open_]
        chosen = pacer.looking.choose(
            [pacing.interest for pacing in pacings],
            stake_us,
            [pacing.has_shadow for pacing in pacings],
        )
        for index, looks in zip(open_, chosen, strict=True):
            looking[index] = looks
    return looking


def _must_look(sequence: VerifierSequence) -> bool:
    if sequence.sources is None or sequence.request.speculation is Speculation.FIXED:
        return True
    return sequence.sources.needs_every_step or not sequence.sources.has_own


def _may_look(sequence: VerifierSequence, num_reading: int) -> bool:
    """Not where the first tokens of others come before its draft rows."""
    return not num_reading or sequence.prefill is None


def _has_sources(sequence: VerifierSequence) -> bool:
    return sequence.sources is not None and sequence.sources.has_own


def _has_own(sequence: VerifierSequence) -> bool:
    """It drafts by itself, and its budget for that is not spent."""
    return _has_sources(sequence) and not sequence.pacing.is_spent


def _is_drafting(sequence: VerifierSequence) -> bool:
    return sequence.link is not None and sequence.clock.credit > 0


def _stake(sequence: VerifierSequence) -> Stake:
    return sequence.pacing.stake(has_own=_has_sources(sequence), is_drafting=_is_drafting(sequence))


def _draft(sequence: VerifierSequence, count: int, least: float, *, looks: bool) -> Draft:
    """The likeliest so many draft tokens of all sources; without any, the drafter's first ones."""
    if sequence.sources is None or not count or not looks:
        return sequence.mailbox.peek(count)
    tree = _tree(sequence, sequence.sources, count, least)
    draft_us = sequence.mailbox.peek(count).draft_us
    return Draft(tree.token_ids, tree.sources, tree.parents, draft_us)


def _shadow(sequence: VerifierSequence, view: View, least: float, *, looks: bool) -> Draft:
    if sequence.sources is None or not looks or not view.is_shadowed:
        return Draft()
    tree = _tree(sequence, sequence.sources, sequence.tree_limit, least)
    return Draft(tree.token_ids, tree.sources, tree.parents)


def _view(
    sequence: VerifierSequence, now_ns: int, first_draft: int, least: float, *, looks: bool
) -> View:
    """Never expects a draft for the first token: that one is not to wait. Nor does it expect one
    where the sequence's own sources promise more than the drafter's first token."""
    ready = len(sequence.mailbox)
    survival, is_content = None, False
    fixed = sequence.request.speculation is Speculation.FIXED
    if sequence.sources is not None and looks:
        limit = sequence.tree_limit
        if sequence.prefill is None and not fixed:
            limit = min(limit, first_draft)
        tree = _tree(sequence, sequence.sources, limit, least)
        survival = sorted(tree.probabilities, reverse=True)
        is_content = tree.expected > sequence.pacing.acceptance.survival(1)[0]
    return View(
        survival=survival,
        pacing=sequence.pacing,
        num_ready=ready,
        limit=sequence.draft_limit,
        source=sequence.mailbox.peek(1).sources[0] if ready else None,
        expects=(
            sequence.prefill is not None
            and sequence.link is not None
            and not sequence.mailbox.is_empty_handed
            and (fixed or not is_content)
            and ready < min(sequence.clock.credit, sequence.draft_limit)
        ),
        since_us=sequence.clock.since_us(ready, now_ns),
        # First tokens come before the draft rows of others.
        stake=_stake(sequence) if sequence.prefill is not None else Stake(0.0),
        has_own=not fixed and _has_own(sequence),
        is_shadowed=not fixed and _has_sources(sequence) and sequence.pacing.has_shadow,
        fixed=fixed,
    )


def _plain_shape(
    ready: Sequence[VerifierSequence], counts: Sequence[int], running: Sequence[VerifierSequence]
) -> StepShape:
    return StepShape(
        rows=sum(counts),
        context=sum(s.cache.length for s in ready if s.cache is not None),
        sequences=len(ready),
        drafting=any(map(_is_drafting, running)),
    )
