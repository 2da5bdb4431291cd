"""A step: admit -> share rows -> wait for a draft if that pays -> forward -> verify -> commit.

Everything that changes a sequence is a method here and runs on the engine's thread. Knows no
messages: links to drafters are numbers, updates are dataclasses.
"""

import functools
import itertools
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.lookup.recycling import NUM_TOP, Top
from paceline.model.engine import LanguageModel
from paceline.params import Speculation
from paceline.rounds import FinishReason, SpeculationTotals
from paceline.sampling import Chooser, NotFinite, NothingLeft, top_tokens
from verifier_service.config import VerifierSettings
from verifier_service.inbox import Inbox
from verifier_service.intake import take_blocks, take_lost
from verifier_service.links import DraftLinks, Update
from verifier_service.mailbox import Block
from verifier_service.opening import equip
from verifier_service.outbox import Outbox
from verifier_service.pacer import Pacer
from verifier_service.patience import sit_out
from verifier_service.places import Places
from verifier_service.round import (
    Outcome,
    StepFacts,
    final,
    play,
    prefill_report,
    report,
    round_cost,
    step_cost,
)
from verifier_service.sequence import Event, FailedEvent, Sink, VerifierSequence, delivered
from verifier_service.sources import Stores, warm_table
from verifier_service.tenants import Tenants
from verifier_service.turns import Step, Turn, take_turns, worthwhile_wait


class StepRunner:
    """The sequences of one model, moved on step by step."""

    def __init__(
        self,
        model: LanguageModel,
        settings: VerifierSettings,
        inbox: Inbox,
        deliver: Callable[[list[tuple[Sink, Event]]], None],
        send_updates: Callable[[dict[int, list[Update]]], None],
    ) -> None:
        self.places = Places(model)
        self.links = DraftLinks()
        self.outbox = Outbox(self.links, deliver, send_updates)
        self.num_steps = 0
        self.step_us = 0.0
        self.forward_us = 0.0
        self.totals = SpeculationTotals()
        self.tenants = Tenants()
        self._model = model
        self._settings = settings
        self._inbox = inbox
        self._pacer = Pacer(1e3 * settings.draft_budget_ms, settings.draft_budget_share)
        # Draft tokens less likely to stand were not worth a row in the last step.
        self._price = 0.0
        identity = model.identity
        self._stores = Stores(
            warm_table(
                settings.recycling_table,
                identity.name,
                identity.tokenizer_fingerprint,
                identity.vocab_size,
            )
        )

    @functools.cached_property
    def _chooser(self) -> Chooser:
        return Chooser(self._model.vocab_size, self._model.device)

    # Between steps.

    def enter(self, sequence: VerifierSequence) -> None:
        """Queue a new sequence, or end it where its tokens already do."""
        request = sequence.request
        confidences = self._pacer.workloads.of(request.workload).confidences.of_one()
        equip(sequence, self._model, self._settings, self._stores, confidences)
        if request.generated:
            _, reason, stop_token_id = delivered(
                0, request.generated, request.params, self._model.eos_token_ids
            )
            if reason is not FinishReason.UNSPECIFIED:
                self._finish(sequence, reason, stop_token_id)
                return
        sequence.pacing = self._pacer.pacing(request.workload)
        self.places.enter(sequence)

    def drop(self, sequence: VerifierSequence) -> None:
        """Without another event."""
        sequence.cancelled = True
        self._release(sequence)

    def fail_all(self, kind: str, message: str) -> None:
        for sequence in self.places.all:
            self._fail(sequence, kind, message)

    def gain_link(self, link: int, max_context: int, max_draft_tokens: int) -> None:
        self.links.up(link, max_context, max_draft_tokens)
        self._pacer.new_drafter()

    def lose_link(self, link: int) -> None:
        for sequence in self.links.down(link):
            sequence.mailbox.restart()

    def take_blocks(
        self,
        link: int,
        blocks: Sequence[Block],
        arrived_ns: int,
        on_receipts: Callable[[int, int], None],
    ) -> None:
        on_receipts(*take_blocks(link, blocks, arrived_ns, self.places, self.links))

    def take_lost(self, link: int, lost: Sequence[tuple[int, int, bool]]) -> None:
        take_lost(link, lost, self.places, self.links)

    # The step.

    def run(self) -> tuple[StepFacts, list[Outcome]] | None:
        """One step, its rounds reported and counted; None if nobody could move."""
        for sequence in self.places.overdue():
            self._fail(sequence, "deadline", "timeout_ms ran out")
        self.places.admit()
        self.links.attach_new(self.places.all, self._credit)
        self.outbox.flush()
        step = self._take_turns()
        wait = worthwhile_wait(step, self._pacer, self._settings)
        step = self.places.make_room(sit_out(step, wait, self._inbox, self._take_turns))
        turns = step.turns
        if not turns:
            return None
        self._price = step.price
        for turn in turns:
            spent_us = turn.sequence.take_spent_us()
            turn.look_us = spent_us if turn.asked_own else 0.0
        start_ns, start_unix_ns = time.monotonic_ns(), time.time_ns()
        rows = [turn.rows for turn in turns]
        logits = self._model.forward(rows)
        if logits.device.type == "cuda":
            # Whoever reads the logits first would wait for it, and seem to be slow.
            torch.cuda.synchronize(logits.device)
        forward_us = (time.monotonic_ns() - start_ns) / 1e3
        self.forward_us += forward_us
        self._inbox.read_blocks()
        outcomes = self._play(turns, [segment.num_logits for segment in rows], logits)
        time_us = (time.monotonic_ns() - start_ns) / 1e3
        self.step_us += time_us
        num_rows = sum(len(segment.token_ids) for segment in rows)
        self.num_steps += 1
        self._pacer.measured(step.shape, step.plain, time_us, prefill=step.has_prefill)
        facts = StepFacts(
            start_unix_nanos=start_unix_ns,
            time_us=time_us,
            num_sequences=len(turns),
            num_rows=num_rows,
        )
        self._learn(step, outcomes, time_us)
        for outcome in outcomes:
            self._conclude(outcome, facts)
        return facts, outcomes

    def _take_turns(self) -> Step:
        return take_turns(self.places.running, self._pacer, self._settings, time.monotonic_ns())

    def _credit(self, sequence: VerifierSequence) -> int:
        """How far its drafter may run ahead."""
        limit = sequence.draft_limit
        if sequence.request.speculation is Speculation.FIXED:
            return limit
        is_reading = sequence.prefill is None
        credit = self._pacer.credit(sequence.pacing, limit, self._price, is_reading=is_reading)
        return min(credit, sequence.num_left)

    def _play(
        self, turns: Sequence[Turn], num_logits: Sequence[int], logits: Tensor
    ) -> list[Outcome]:
        """Every sequence's round; the drafters are told of each as soon as it is known."""
        outcomes = []
        tops = iter(self._tops(turns, num_logits, logits))
        start = 0
        for turn, count in zip(turns, num_logits, strict=True):
            if not count:
                continue
            rows, start = logits[start : start + count], start + count
            known = list(itertools.islice(tops, count)) if _wants_tops(turn) else ()
            sequence = turn.sequence
            try:
                outcome = play(turn, rows, self._chooser, self._model.eos_token_ids, known)
            except NotFinite as error:
                self._fail(sequence, "not_finite", f"{error}; retry")
                continue
            except NothingLeft as error:
                self._fail(sequence, "nothing_left", str(error))
                continue
            if sequence.sources is not None:
                sequence.sources.committed(outcome.token_ids, outcome.thoughts)
            assert sequence.cache is not None
            # Only now: what gave a token is known to be finite.
            sequence.cache.register(sequence.token_ids)
            if outcome.finish_reason is FinishReason.UNSPECIFIED:
                commit = sequence.mailbox.commit(outcome.token_ids)
                if sequence.link is not None:
                    self.links.commit(sequence, commit, self._credit(sequence))
            outcomes.append(outcome)
        return outcomes

    def _learn(self, step: Step, outcomes: Sequence[Outcome], time_us: float) -> None:
        """Let pacing learn; nothing from a first round, whose step also read the prompt."""
        whole = step_cost(step, self._pacer.costs(step.shape, step.plain, time_us))
        now_us = time.monotonic_ns() / 1e3
        for outcome in outcomes:
            turn = outcome.turn
            if turn.sequence.prefill is None:
                continue
            cost = round_cost(outcome, whole)
            self._pacer.learn(turn.view, cost, now_us, step.price)
            pacing = turn.sequence.pacing
            if not turn.asked_own:
                pacing.interest.rested()
            elif not turn.is_probe:
                self._pacer.learn_of_looking(pacing, cost, len(outcomes))
            self._pacer.learn_of_shadow(
                pacing, turn.shadow, outcome.token_ids, step.plain, step.wished_us
            )
        if outcomes and not step.has_prefill:
            num_tokens = sum(len(outcome.token_ids) for outcome in outcomes)
            self._pacer.looking.measured(
                time_us + whole.look_us, whole.plain_us, num_tokens / len(outcomes)
            )

    def _tops(
        self, turns: Sequence[Turn], num_logits: Sequence[int], logits: Tensor
    ) -> Sequence[Top]:
        """What the target thought at every row of the turns that have a use for it."""
        wanted = [
            wants
            for turn, count in zip(turns, num_logits, strict=True)
            for wants in [_wants_tops(turn)] * count
        ]
        if not any(wanted):
            return ()
        rows = logits[:, : self._model.vocab_size]
        if not all(wanted):
            rows = rows[torch.tensor(wanted, device=rows.device)]
        return [Top(*top) for top in top_tokens(rows, NUM_TOP)]

    def _conclude(self, outcome: Outcome, facts: StepFacts) -> None:
        """Report a round, and end the answer if it did."""
        sequence = outcome.turn.sequence
        first = sequence.prefill is None
        if first:
            sequence.prefill = prefill_report(sequence, time.monotonic_ns())
        event = report(outcome, facts, sequence.prefill if first else None)
        self.totals.add_round(event.round)
        self.tenants.add(
            sequence.request.tenant,
            draft_us=event.round.draft_us,
            wait_us=event.round.wait_us if outcome.turn.waited else 0,
            num_drafted=event.round.num_drafted,
            num_accepted=event.round.num_accepted,
        )
        self.outbox.emit(sequence, event)
        if outcome.finish_reason is not FinishReason.UNSPECIFIED:
            self._finish(sequence, outcome.finish_reason, outcome.stop_token_id)

    # The end of a sequence.

    def _finish(
        self, sequence: VerifierSequence, reason: FinishReason, stop_token_id: int | None
    ) -> None:
        if sequence.sources is not None:
            sequence.sources.finished()
            if sequence.sources.has_own and sequence.request.speculation is Speculation.AUTO:
                sequence.pacing.ended()
        self.outbox.emit(sequence, final(sequence, reason, stop_token_id))
        self.links.finish(sequence)
        self._release(sequence)

    def _fail(self, sequence: VerifierSequence, kind: str, message: str) -> None:
        self.outbox.emit(sequence, FailedEvent(kind, message))
        self._release(sequence)

    def _release(self, sequence: VerifierSequence) -> None:
        """Take a sequence out of everything. Safe to repeat."""
        self.links.detach(sequence)
        self.places.leave(sequence)


def _wants_tops(turn: Turn) -> bool:
    sources = turn.sequence.sources
    if sources is None or not turn.looked or not sources.wants_thoughts:
        return False
    # To look at all rows takes time, and those of a plain round teach little.
    return bool(turn.draft.token_ids) or sources.needs_every_step
