"""One round of one sequence: choose its tokens from the logits, then say what happened.

Changes the sequence it is given and nothing else. Knows no batch, drafter, thread or clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.lookup.recycling import Top
from paceline.lookup.thoughts import Thoughts
from paceline.rounds import FinishReason, PlainReason, PrefillReport, RoundReport, TokenSource
from paceline.sampling import Chooser, logprobs, verify
from verifier_service.pacing import RoundCost
from verifier_service.sequence import (
    FinalEvent,
    TokenLogprob,
    TokensEvent,
    VerifierSequence,
    delivered,
    digest,
    plain_reason,
    sources_of,
)
from verifier_service.turns import Step, Turn


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round gave one sequence, before the step's time is known."""

    turn: Turn
    start_index: int
    token_ids: list[int]
    num_tested: int
    num_accepted: int
    # Whether the token after the accepted ones replaced a draft token.
    rejected: bool
    # Sources of the accepted tokens.
    accepted: Sequence[TokenSource]
    # What the target thought at every row, if some source wants to know.
    thoughts: Thoughts | None
    logprobs: list[TokenLogprob]
    plain_reason: PlainReason
    finish_reason: FinishReason
    stop_token_id: int | None


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What all rounds of a step share. Times in microseconds."""

    start_unix_nanos: int
    time_us: float
    num_sequences: int
    num_rows: int


def ignore_step(step: StepFacts, outcomes: Sequence[Outcome]) -> None:
    """Nobody listens."""


def play(
    turn: Turn,
    logits: Tensor,
    chooser: Chooser,
    eos_token_ids: frozenset[int],
    tops: Sequence[Top] = (),
) -> Outcome:
    """Choose this round's tokens and keep what a stop leaves of them.

    logits: [num_draft_tokens + 1, vocab_size]; tops: the likeliest ids of each row, if some source
    wants to know them. Raises NotFinite or NothingLeft; the sequence is
    then of no further use.
    """
    sequence, draft = turn.sequence, turn.draft
    assert sequence.cache is not None
    before = len(sequence.state.output)
    why_plain = PlainReason.UNSPECIFIED if draft.token_ids else _plain_reason(turn)
    verdict = verify(
        chooser, logits, draft.token_ids, sequence.state, draft.distributions, draft.parents
    )
    count, finish_reason, stop_token_id = delivered(
        before, verdict.token_ids, sequence.params, eos_token_ids
    )
    token_ids = verdict.token_ids[:count]
    path = verdict.path[:count]
    sequence.state.pop(len(verdict.token_ids) - count)
    sequence.cache.keep(sequence.cache.length - len(draft.token_ids), path)
    sequence.token_ids += token_ids
    if sequence.credit is not None:
        sequence.credit -= count
    # The row that chose each delivered token: that of the token before it.
    rows = logits[[0, *(node + 1 for node in path)][:count], : chooser.vocab_size]
    return Outcome(
        turn=turn,
        start_index=before,
        token_ids=token_ids,
        num_tested=min(verdict.num_tested, count),
        num_accepted=len(path),
        rejected=verdict.num_tested > verdict.num_accepted,
        accepted=[draft.sources[node] for node in path],
        thoughts=Thoughts(draft.token_ids, draft.parents, draft.sources, tops) if tops else None,
        logprobs=_logprobs(sequence, rows, token_ids),
        plain_reason=why_plain,
        finish_reason=finish_reason,
        stop_token_id=stop_token_id,
    )


def _plain_reason(turn: Turn) -> PlainReason:
    if turn.is_probe:
        return PlainReason.PROBE
    reason = plain_reason(turn.sequence)
    if reason is PlainReason.NO_DRAFT and not turn.looked:
        return PlainReason.NOT_WORTH
    return reason


def _logprobs(
    sequence: VerifierSequence, rows: Tensor, token_ids: Sequence[int]
) -> list[TokenLogprob]:
    num_top = sequence.params.num_logprobs
    if num_top is None:
        return []
    return [
        TokenLogprob(*logprobs(row, token_id, num_top))
        for row, token_id in zip(rows, token_ids, strict=True)
    ]


def report(outcome: Outcome, step: StepFacts, prefill: PrefillReport | None) -> TokensEvent:
    """Count a round and put it into words. `prefill` belongs to the first one."""
    sequence, draft, wait_us = outcome.turn.sequence, outcome.turn.draft, outcome.turn.wait_us
    round_report = RoundReport(
        round=sequence.round_number,
        num_drafted=len(draft.token_ids),
        num_tested=outcome.num_tested,
        num_accepted=outcome.num_accepted,
        num_output=len(outcome.token_ids),
        source=draft.sources[0] if draft.token_ids else TokenSource.UNSPECIFIED,
        plain_reason=outcome.plain_reason,
        draft_us=draft.draft_us,
        wait_us=int(wait_us),
        verify_us=int(step.time_us),
        start_unix_nanos=step.start_unix_nanos - int(wait_us * 1e3),
        batch_sequences=step.num_sequences,
        batch_rows=step.num_rows,
        ledger_us=int(sequence.pacing.ledger.total_us),
    )
    sequence.totals.add_round(round_report)
    return TokensEvent(
        start_index=outcome.start_index,
        token_ids=outcome.token_ids,
        sources=sources_of(
            len(outcome.token_ids),
            outcome.accepted,
            drafted=bool(draft.token_ids),
            rejected=outcome.rejected,
        ),
        logprobs=outcome.logprobs,
        round=round_report,
        prefill=prefill,
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """What speculation added to a step. Times in microseconds, as in RoundCost; numbers of draft
    tokens verified, and wished for."""

    plain_us: float
    rows_us: float
    drafting_us: float
    look_us: float
    wished_us: float
    num_rows: int
    num_wished: int


def step_cost(step: Step, costs: tuple[float, float, float]) -> StepCost:
    """`costs`: as from the pacer."""
    return StepCost(
        *costs,
        look_us=sum(turn.look_us for turn in step.turns),
        wished_us=step.wished_us,
        num_rows=sum(len(turn.draft.token_ids) for turn in step.turns),
        num_wished=sum(turn.num_wished for turn in step.turns),
    )


def round_cost(outcome: Outcome, step: StepCost) -> RoundCost:
    """What a round of the step cost and brought."""
    turn = outcome.turn
    tested, stood = turn.evidence(outcome.token_ids)
    return RoundCost(
        source=turn.sent.sources[0] if turn.sent.sources else TokenSource.UNSPECIFIED,
        tested=tested,
        stood=stood,
        accepted=outcome.num_accepted,
        wait_us=turn.wait_us,
        rows_us=step.rows_us,
        drafting_us=step.drafting_us,
        plain_us=step.plain_us,
        row_share=len(turn.draft.token_ids) / max(step.num_rows, 1),
        waited=turn.waited,
        look_us=step.look_us,
        look_share=turn.look_us / step.look_us if step.look_us else 0.0,
        has_own=turn.view.has_own,
        hoped=turn.hoped,
        wished_us=step.wished_us,
        wished_share=turn.num_wished / max(step.num_wished, 1),
    )


def prefill_report(sequence: VerifierSequence, now_ns: int) -> PrefillReport:
    """What came before the first round, which has just ended. now_ns: monotonic."""
    return PrefillReport(
        queue_us=(sequence.prefill_started_ns - sequence.admitted_ns) // 1000,
        prefill_us=(now_ns - sequence.prefill_started_ns) // 1000,
        num_prompt_tokens=len(sequence.request.prompt),
        num_cached_tokens=sequence.num_cached,
        start_unix_nanos=sequence.admitted_unix_ns,
    )


def final(
    sequence: VerifierSequence, reason: FinishReason, stop_token_id: int | None
) -> FinalEvent:
    """The last event of an answer."""
    return FinalEvent(
        finish_reason=reason,
        stop_token_id=stop_token_id,
        num_cached_tokens=sequence.prefill.num_cached_tokens if sequence.prefill else 0,
        num_output_tokens=len(sequence.state.output),
        totals=sequence.totals,
        digest=digest(sequence.state.output),
    )
