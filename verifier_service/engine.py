"""The engine: one thread that runs the model, verifies, commits and emits.

admit -> share rows -> wait for a draft if that pays -> forward -> verify -> commit. Everything that
changes a sequence happens on this thread; the outside world puts commands into its inbox and is
called back with events. Knows no messages: links to drafters are numbers, updates are dataclasses.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from torch import Tensor

from paceline.model.cache import CapacityError
from paceline.model.engine import LanguageModel
from paceline.params import SamplingMode
from paceline.rounds import FinishReason, PrefillReport, SpeculationTotals
from paceline.sampling import Chooser, NotFinite, NothingLeft, SamplingState
from verifier_service.config import VerifierSettings
from verifier_service.links import DraftLinks, Update
from verifier_service.mailbox import Block, Mailbox
from verifier_service.pacing import StepTime
from verifier_service.round import Outcome, StepFacts, ignore_step, play, report
from verifier_service.sequence import (
    Event,
    FailedEvent,
    FinalEvent,
    Request,
    Sink,
    VerifierSequence,
    delivered,
    digest,
)
from verifier_service.turns import Turn, take_turns, worthwhile_wait_us

log = logging.getLogger(__name__)


class QueueFull(RuntimeError):
    """No place to wait in."""


@dataclass(frozen=True, slots=True)
class Status:
    """Gauges and counters at one moment."""

    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    num_steps: int
    totals: SpeculationTotals


@dataclass
class Engine:
    """Runs until `stop`. `deliver` is called on the engine's thread with what a step emitted."""

    model: LanguageModel
    settings: VerifierSettings
    deliver: Callable[[list[tuple[Sink, Event]]], None]
    send_updates: Callable[[dict[int, list[Update]]], None]
    num_steps: int = 0
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    # Called on the engine's thread after a step, its rounds counted.
    on_step: Callable[[StepFacts, Sequence[Outcome]], None] = ignore_step

    def __post_init__(self) -> None:
        self._links = DraftLinks()
        self._step_time = StepTime()
        self._waiting: deque[VerifierSequence] = deque()
        self._running: list[VerifierSequence] = []
        self._by_number: dict[int, VerifierSequence] = {}
        self._events: list[tuple[Sink, Event]] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._finished: Future[None] | None = None

    # From any thread.

    def start(self, model_thread: Executor) -> None:
        """Runs on the one thread that loaded the model, until `stop`."""
        self._finished = model_thread.submit(self._run)

    def stop(self) -> None:
        """Fails what still runs and waits for the engine's end."""
        self._tell(self._begin_stop)
        if self._finished is not None:
            self._finished.result()

    def submit(self, request: Request, sink: Sink) -> VerifierSequence:
        """Queue a checked request; events go to `sink` through `deliver`. Raises QueueFull."""
        if len(self._waiting) >= self.settings.max_waiting + self.settings.max_sequences:
            raise QueueFull(f"{len(self._waiting)} requests are waiting")
        token_ids = [*request.prompt, *request.generated]
        sequence = VerifierSequence(
            request=request,
            mailbox=Mailbox(
                len(token_ids),
                self.model.vocab_size,
                request.max_draft_tokens,
                request.seed if request.params.mode is SamplingMode.REJECTION else None,
            ),
            sink=sink,
            admitted_ns=time.monotonic_ns(),
            admitted_unix_ns=time.time_ns(),
            token_ids=token_ids,
        )
        self._tell(lambda: self._enqueue(sequence))
        return sequence

    def cancel(self, sequence: VerifierSequence) -> None:
        """Forget a sequence; no more events. Safe at any time, also after its end."""
        self._tell(lambda: self._drop(sequence))

    def add_credit(self, sequence: VerifierSequence, num_tokens: int) -> None:
        def add() -> None:
            sequence.credit = (sequence.credit or 0) + num_tokens

        self._tell(add)

    def link_up(self, link: int, max_context: int, max_draft_tokens: int) -> None:
        self._tell(lambda: self._links.up(link, max_context, max_draft_tokens))

    def link_down(self, link: int) -> None:
        self._tell(lambda: self._lose_link(link))

    def blocks_arrived(
        self, link: int, blocks: Sequence[Block], on_receipts: Callable[[int, int], None]
    ) -> None:
        """Draft blocks of one link; `on_receipts` is told how many were stale and malformed."""
        now_ns = time.monotonic_ns()
        self._tell(lambda: self._take_blocks(link, blocks, now_ns, on_receipts))

    def sequences_lost(self, link: int, lost: Sequence[tuple[int, int, bool]]) -> None:
        """(sequence, epoch, whether another attach may help) that a drafter cannot follow."""
        self._tell(lambda: self._take_lost(link, lost))

    def status(self) -> Status:
        return Status(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_blocks_used=self.model.store.blocks_used,
            kv_blocks_total=self.model.store.blocks_total,
            num_steps=self.num_steps,
            totals=self.totals,
        )

    def sequences_on(self, link: int) -> int:
        return self._links.load(link)

    def _tell(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    # On the engine's thread.

    def _run(self) -> None:
        self._chooser = Chooser(self.model.vocab_size, self.model.device)
        while not self._stopping:
            try:
                self._read_inbox(block=not self._has_work())
                self._step()
            except Exception:
                log.exception("a step failed; its sequences are failed and the engine goes on")
                self._fail_all("internal", "the step failed")
            self._flush()
        self._fail_all("unavailable", "the verifier is shutting down")
        self._flush()

    def _begin_stop(self) -> None:
        self._stopping = True

    def _has_work(self) -> bool:
        return bool(self._waiting) or any(not s.is_paused for s in self._running)

    def _read_inbox(self, *, block: bool, timeout_s: float | None = None) -> None:
        """Run the commands that came in; with `block`, wait for at least one (or the timeout)."""
        with self._wake:
            if block and not self._inbox:
                # Deadlines of paused sequences are looked at once a second.
                self._wake.wait(1.0 if timeout_s is None else timeout_s)
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            try:
                command()
            except Exception:
                # One command is about one sequence or one link: the others go on.
                log.exception("a command failed")

    def _enqueue(self, sequence: VerifierSequence) -> None:
        request = sequence.request
        # Here, not in `submit`: a whole vocabulary's tensors belong on the model's thread (app.py).
        sequence.state = SamplingState(
            request.params,
            request.seed,
            request.prompt,
            request.generated,
            vocab_size=self.model.vocab_size,
            end_token_ids=() if request.params.ignore_eos else self.model.eos_token_ids,
        )
        generated = request.generated
        if generated:
            _, reason, stop_token_id = delivered(
                0, generated, request.params, self.model.eos_token_ids
            )
            if reason is not FinishReason.UNSPECIFIED:
                self._finish(sequence, reason, stop_token_id)
                return
        self._by_number[sequence.number] = sequence
        self._waiting.append(sequence)

    def _drop(self, sequence: VerifierSequence) -> None:
        sequence.cancelled = True
        self._release(sequence)

    def _release(self, sequence: VerifierSequence, *, poisoned: bool = False) -> None:
        """Take a sequence out of everything. Safe to repeat."""
        self._by_number.pop(sequence.number, None)
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._links.detach(sequence)
        if sequence.cache is not None:
            sequence.cache.free(poisoned=poisoned)
            sequence.cache = None

    def _emit(self, sequence: VerifierSequence, event: Event) -> None:
        if not sequence.cancelled:
            self._events.append((sequence.sink, event))

    def _fail(self, sequence: VerifierSequence, kind: str, message: str, **release: bool) -> None:
        self._emit(sequence, FailedEvent(kind, message))
        self._release(sequence, **release)

    def _fail_all(self, kind: str, message: str) -> None:
        for sequence in [*self._running, *self._waiting]:
            self._fail(sequence, kind, message)

    def _flush(self) -> None:
        """Hand out what the step made: updates first, a drafter's time is worth more."""
        updates = self._links.take_updates()
        if updates:
            self.send_updates(updates)
        if self._events:
            events, self._events = self._events, []
            self.deliver(events)

    def _lose_link(self, link: int) -> None:
        for sequence in self._links.down(link):
            sequence.mailbox.restart()
            sequence.awaits_draft = False

    def _take_blocks(
        self,
        link: int,
        blocks: Sequence[Block],
        arrived_ns: int,
        on_receipts: Callable[[int, int], None],
    ) -> None:
        stale = malformed = 0
        for block in blocks:
            sequence = self._by_number.get(block.sequence)
            if sequence is None or sequence.link != link:
                # Either ended a moment ago, or never this drafter's: of no use in both cases.
                stale += 1
                continue
            receipt = sequence.mailbox.offer(block)
            if receipt is receipt.MALFORMED:
                malformed += 1
                self._links.attach_again(sequence)
                continue
            # A block that came too late tells as much about the drafter's pace as one in time.
            sent_ns = sequence.commit_ns.pop(block.epoch, None)
            if sent_ns is not None:
                sequence.pacing.answered((arrived_ns - sent_ns) / 1e3, len(block.token_ids))
            if receipt is receipt.STALE:
                stale += 1
            else:
                sequence.awaits_draft = False
        on_receipts(stale, malformed)

    def _take_lost(self, link: int, lost: Sequence[tuple[int, int, bool]]) -> None:
        for number, epoch, may_help in lost:
            sequence = self._by_number.get(number)
            if sequence is None or sequence.link != link or epoch != sequence.mailbox.epoch:
                continue
            self._links.lost(sequence, may_help=may_help)

    def _step(self) -> None:
        self._expire()
        self._admit()
        self._links.attach_new([*self._running, *self._waiting])
        self._flush()
        turns = self._wait_for_drafts(take_turns(self._running, self._step_time, self.settings))
        if not turns:
            return
        start_ns, start_unix_ns = time.monotonic_ns(), time.time_ns()
        rows = [turn.rows for turn in turns]
        logits = self.model.forward(rows)
        outcomes = self._play(turns, [segment.num_logits for segment in rows], logits)
        time_us = (time.monotonic_ns() - start_ns) / 1e3
        num_rows = sum(len(segment.token_ids) for segment in rows)
        self.num_steps += 1
        self._step_time.add(num_rows, time_us)
        num_draft = sum(len(turn.draft.token_ids) for turn in turns)
        facts = StepFacts(
            start_unix_nanos=start_unix_ns,
            time_us=time_us,
            plain_us=self._step_time.predict(num_rows - num_draft),
            num_sequences=len(turns),
            num_rows=num_rows,
        )
        for outcome in outcomes:
            self._conclude(outcome, facts)
        self.on_step(facts, outcomes)

    def _expire(self) -> None:
        now_ns = time.monotonic_ns()
        for sequence in [*self._running, *self._waiting]:
            limit_s = sequence.request.timeout_s
            if limit_s is not None and now_ns - sequence.admitted_ns > limit_s * 1e9:
                self._fail(sequence, "deadline", "timeout_ms ran out")

    def _admit(self) -> None:
        while self._waiting:
            try:
                cache = self.model.new_cache()
            except CapacityError:
                return
            sequence = self._waiting.popleft()
            sequence.cache = cache
            sequence.prefill_started_ns = time.monotonic_ns()
            self._running.append(sequence)

    def _wait_for_drafts(self, turns: list[Turn]) -> list[Turn]:
        """Sit out for drafts that are on their way, if that pays."""
        wait_us = worthwhile_wait_us(turns, self._step_time, len(self._running))
        if wait_us <= 0:
            return turns
        start_ns = time.monotonic_ns()
        deadline_ns = start_ns + int(wait_us * 1e3)
        waiting = [turn.sequence for turn in turns if turn.expects_draft]
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            self._read_inbox(block=True, timeout_s=left_ns / 1e9)
            if not any(s.awaits_draft and s.link is not None for s in waiting):
                break
        waited_us = (time.monotonic_ns() - start_ns) / 1e3
        for sequence in waiting:
            if sequence.awaits_draft:
                sequence.pacing.missed(waited_us)
        turns = take_turns(self._running, self._step_time, self.settings)
        for turn in turns:
            turn.wait_us = waited_us
        return turns

    def _play(
        self, turns: Sequence[Turn], num_logits: Sequence[int], logits: Tensor
    ) -> list[Outcome]:
        """Every sequence's round; the drafters are told of each as soon as it is known."""
        outcomes = []
        start = 0
        for turn, count in zip(turns, num_logits, strict=True):
            if not count:
                continue
            rows, start = logits[start : start + count], start + count
            sequence = turn.sequence
            try:
                outcome = play(turn, rows, self._chooser, self.model.eos_token_ids)
            except NotFinite as error:
                self._fail(sequence, "not_finite", f"{error}; retry", poisoned=True)
                continue
            except NothingLeft as error:
                self._fail(sequence, "nothing_left", str(error))
                continue
            if outcome.finish_reason is FinishReason.UNSPECIFIED:
                self._commit(sequence, outcome.token_ids)
            outcomes.append(outcome)
        return outcomes

    def _conclude(self, outcome: Outcome, facts: StepFacts) -> None:
        """Report a round, and end the answer if it did."""
        sequence = outcome.turn.sequence
        first = sequence.prefill is None
        if first:
            sequence.prefill = self._prefill_report(sequence)
        event = report(outcome, facts, sequence.prefill if first else None)
        self.totals.add_round(event.round)
        self._emit(sequence, event)
        if outcome.finish_reason is not FinishReason.UNSPECIFIED:
            self._finish(sequence, outcome.finish_reason, outcome.stop_token_id)

    def _prefill_report(self, sequence: VerifierSequence) -> PrefillReport:
        return PrefillReport(
            queue_us=(sequence.prefill_started_ns - sequence.admitted_ns) // 1000,
            prefill_us=(time.monotonic_ns() - sequence.prefill_started_ns) // 1000,
            num_prompt_tokens=len(sequence.request.prompt),
            num_cached_tokens=0,
            start_unix_nanos=sequence.admitted_unix_ns,
        )

    def _commit(self, sequence: VerifierSequence, token_ids: Sequence[int]) -> None:
        commit = sequence.mailbox.commit(token_ids)
        if sequence.link is None:
            return
        limit = 0 if sequence.is_over_budget else sequence.draft_limit
        sequence.awaits_draft = limit > 0 and not len(sequence.mailbox)
        sequence.note_commit()
        self._links.commit(sequence, commit, limit)

    def _finish(
        self, sequence: VerifierSequence, reason: FinishReason, stop_token_id: int | None
    ) -> None:
        self._emit(
            sequence,
            FinalEvent(
                finish_reason=reason,
                stop_token_id=stop_token_id,
                num_cached_tokens=sequence.prefill.num_cached_tokens if sequence.prefill else 0,
                num_output_tokens=len(sequence.state.output),
                totals=sequence.totals,
                digest=digest(sequence.state.output),
            ),
        )
        self._links.finish(sequence)
        self._release(sequence)
