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
from paceline.model.engine import LanguageModel, Rows
from paceline.params import SamplingMode, Speculation
from paceline.rounds import (
    FinishReason,
    PlainReason,
    PrefillReport,
    RoundReport,
    SpeculationTotals,
    TokenSource,
)
from paceline.sampling import Chooser, NotFinite, NothingLeft, SamplingState, logprobs, verify
from verifier_service.config import VerifierSettings
from verifier_service.links import DraftLinks, Update
from verifier_service.mailbox import Block, Draft, Mailbox
from verifier_service.pacing import MAX_WAIT_US, StepTime
from verifier_service.scheduler import Share, Want, share_rows
from verifier_service.sequence import (
    Event,
    FailedEvent,
    FinalEvent,
    Request,
    Sink,
    TokenLogprob,
    TokensEvent,
    VerifierSequence,
    delivered,
    digest,
    plain_reason,
    sources_of,
)

log = logging.getLogger(__name__)

# A request with a fixed draft length is for measurements: it waits for its draft.
_FIXED_WAIT_US = 100_000.0


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


@dataclass(slots=True)
class _Turn:
    """One sequence's part in a step."""

    sequence: VerifierSequence
    share: Share
    draft: Draft
    wait_us: float = 0.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a round gave one sequence, before the step's time is known."""

    turn: _Turn
    start_index: int
    token_ids: list[int]
    num_tested: int
    num_accepted: int
    logprobs: list[TokenLogprob]
    plain_reason: PlainReason
    finish_reason: FinishReason
    stop_token_id: int | None


@dataclass
class Engine:
    """Runs until `stop`. `deliver` is called on the engine's thread with what a step emitted."""

    model: LanguageModel
    settings: VerifierSettings
    deliver: Callable[[list[tuple[Sink, Event]]], None]
    send_updates: Callable[[dict[int, list[Update]]], None]
    num_steps: int = 0
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)

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
                sequence.pacing.answered((arrived_ns - sent_ns) / 1e3)
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
        turns = self._turns()
        if not turns:
            return
        turns = self._wait_for_drafts(turns)
        if not turns:
            return
        start_ns, start_unix_ns = time.monotonic_ns(), time.time_ns()
        rows = [self._rows(turn) for turn in turns]
        logits = self.model.forward(rows)
        self.num_steps += 1
        num_rows = sum(len(r.token_ids) for r in rows)
        outcomes: list[_Outcome] = []
        start = 0
        for turn, segment in zip(turns, rows, strict=True):
            if segment.num_logits:
                outcome = self._verify(turn, logits[start : start + segment.num_logits])
                start += segment.num_logits
                if outcome is not None:
                    outcomes.append(outcome)
        time_us = (time.monotonic_ns() - start_ns) / 1e3
        self._step_time.add(num_rows, time_us)
        # The same company in plain decoding: no draft rows.
        plain_us = self._step_time.predict(num_rows - sum(len(t.draft.token_ids) for t in turns))
        for outcome in outcomes:
            self._conclude(
                outcome,
                start_unix_ns=start_unix_ns,
                time_us=time_us,
                plain_us=plain_us,
                num_sequences=len(turns),
                num_rows=num_rows,
            )

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

    def _rho(self) -> float:
        """Tokens per microsecond that one sequence earns by plain decoding, as things are."""
        plain_us = self._step_time.predict(max(len(self._running), 1))
        return 1.0 / plain_us if plain_us > 0 else 0.0

    def _turns(self) -> list[_Turn]:
        ready = [s for s in self._running if not s.is_paused]
        wants = [Want(s.num_pending, self._draft_length(s)) for s in ready]
        shares = share_rows(
            wants,
            step_rows=self.settings.step_rows,
            prefill_rows=self.settings.prefill_rows,
        )
        return [
            _Turn(sequence, share, sequence.mailbox.peek(share.num_draft))
            for sequence, share in zip(ready, shares, strict=True)
            if share.num_tokens
        ]

    def _draft_length(self, sequence: VerifierSequence) -> int:
        available = min(len(sequence.mailbox), sequence.draft_limit)
        if sequence.request.speculation is Speculation.FIXED:
            return available
        return sequence.pacing.draft_length(available, self._rho(), self._step_time.row_us)

    def _wait_for_drafts(self, turns: list[_Turn]) -> list[_Turn]:
        """Sit out for drafts that are on their way, if that pays; never on the first token."""
        wait_us = self._worthwhile_wait(turns)
        if wait_us <= 0:
            return turns
        start_ns = time.monotonic_ns()
        deadline_ns = start_ns + int(wait_us * 1e3)
        waiting = [t.sequence for t in turns if self._expects_draft(t)]
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            self._read_inbox(block=True, timeout_s=left_ns / 1e9)
            if not any(s.awaits_draft and s.link is not None for s in waiting):
                break
        waited_us = (time.monotonic_ns() - start_ns) / 1e3
        for sequence in waiting:
            if sequence.awaits_draft:
                sequence.pacing.missed(waited_us)
        turns = self._turns()
        for turn in turns:
            turn.wait_us = waited_us
        return turns

    def _expects_draft(self, turn: _Turn) -> bool:
        sequence = turn.sequence
        return (
            turn.share.num_tokens == 1
            and not turn.draft.token_ids
            and sequence.awaits_draft
            and sequence.link is not None
            and not sequence.mailbox.is_empty_handed
            and sequence.draft_limit > 0
        )

    def _worthwhile_wait(self, turns: list[_Turn]) -> float:
        """The wait is shared by the step, so every sequence in it pays for it."""
        if any(turn.share.num_tokens > 1 for turn in turns):
            return 0.0
        expecting = [turn.sequence for turn in turns if self._expects_draft(turn)]
        rho = self._rho() * len(turns) / max(len(expecting), 1)
        waits = [0.0]
        for sequence in expecting:
            if sequence.request.speculation is Speculation.FIXED:
                waits.append(_FIXED_WAIT_US)
            else:
                waits.append(sequence.pacing.wait_us(sequence.draft_limit, rho))
        fixed = any(s.request.speculation is Speculation.FIXED for s in expecting)
        return max(waits) if fixed else min(max(waits), MAX_WAIT_US)

    def _rows(self, turn: _Turn) -> Rows:
        sequence, share = turn.sequence, turn.share
        assert sequence.cache is not None
        start = sequence.cache.length
        token_ids = sequence.token_ids[start : start + share.num_tokens]
        complete = start + share.num_tokens == len(sequence.token_ids)
        return Rows(
            sequence.cache,
            [*token_ids, *turn.draft.token_ids],
            len(turn.draft.token_ids) + 1 if complete else 0,
        )

    def _verify(self, turn: _Turn, logits: Tensor) -> _Outcome | None:
        """Choose this round's tokens, keep what a stop leaves of them, tell the drafter."""
        sequence, draft = turn.sequence, turn.draft
        assert sequence.cache is not None
        before = len(sequence.state.output)
        reason_if_plain = plain_reason(
            sequence,
            limit=sequence.draft_limit,
            available=len(sequence.mailbox),
            any_link=sequence.link is not None,
        )
        try:
            verdict = verify(
                self._chooser, logits, draft.token_ids, sequence.state, draft.distributions
            )
        except NotFinite as error:
            self._fail(sequence, "not_finite", f"{error}; retry", poisoned=True)
            return None
        except NothingLeft as error:
            self._fail(sequence, "nothing_left", str(error))
            return None
        count, finish_reason, stop_token_id = delivered(
            before, verdict.token_ids, sequence.params, self.model.eos_token_ids
        )
        token_ids = verdict.token_ids[:count]
        num_accepted = min(verdict.num_accepted, count)
        sequence.state.pop(len(verdict.token_ids) - count)
        sequence.cache.rollback(sequence.cache.length - len(draft.token_ids) + num_accepted)
        sequence.token_ids += token_ids
        if sequence.credit is not None:
            sequence.credit -= count
        if finish_reason is FinishReason.UNSPECIFIED:
            self._commit(sequence, token_ids)
        return _Outcome(
            turn=turn,
            start_index=before,
            token_ids=token_ids,
            num_tested=min(verdict.num_tested, count),
            num_accepted=num_accepted,
            logprobs=self._logprobs(sequence, logits, token_ids),
            plain_reason=PlainReason.UNSPECIFIED if draft.token_ids else reason_if_plain,
            finish_reason=finish_reason,
            stop_token_id=stop_token_id,
        )

    def _logprobs(
        self, sequence: VerifierSequence, logits: Tensor, token_ids: Sequence[int]
    ) -> list[TokenLogprob]:
        num_top = sequence.params.num_logprobs
        if num_top is None:
            return []
        rows = logits[:, : self.model.vocab_size]
        return [
            TokenLogprob(*logprobs(row, token_id, num_top))
            for row, token_id in zip(rows, token_ids, strict=False)
        ]

    def _conclude(
        self,
        outcome: _Outcome,
        *,
        start_unix_ns: int,
        time_us: float,
        plain_us: float,
        num_sequences: int,
        num_rows: int,
    ) -> None:
        """Report a round, and end the answer if it did."""
        sequence, draft = outcome.turn.sequence, outcome.turn.draft
        first = sequence.prefill is None
        if first:
            sequence.prefill = self._prefill_report(sequence)
        else:
            sequence.pacing.learn(
                tested=outcome.num_tested,
                accepted=outcome.num_accepted,
                output=len(outcome.token_ids),
                time_us=time_us + outcome.turn.wait_us,
                plain_us=plain_us,
            )
        report = RoundReport(
            round=sequence.round_number,
            num_drafted=len(draft.token_ids),
            num_tested=outcome.num_tested,
            num_accepted=outcome.num_accepted,
            num_output=len(outcome.token_ids),
            source=draft.sources[0] if draft.token_ids else TokenSource.UNSPECIFIED,
            plain_reason=outcome.plain_reason,
            draft_us=draft.draft_us,
            wait_us=int(outcome.turn.wait_us),
            verify_us=int(time_us),
            start_unix_nanos=start_unix_ns - int(outcome.turn.wait_us * 1e3),
            batch_sequences=num_sequences,
            batch_rows=num_rows,
            ledger_us=int(sequence.pacing.ledger_us),
        )
        sequence.totals.add_round(report)
        self.totals.add_round(report)
        self._emit(
            sequence,
            TokensEvent(
                start_index=outcome.start_index,
                token_ids=outcome.token_ids,
                sources=sources_of(
                    len(outcome.token_ids),
                    outcome.num_accepted,
                    len(draft.token_ids),
                    draft.sources,
                ),
                logprobs=outcome.logprobs,
                round=report,
                prefill=sequence.prefill if first else None,
            ),
        )
        if outcome.finish_reason is not FinishReason.UNSPECIFIED:
            self._finish(sequence, outcome.finish_reason, outcome.stop_token_id)

    def _prefill_report(self, sequence: VerifierSequence) -> PrefillReport:
        now_ns = time.monotonic_ns()
        return PrefillReport(
            queue_us=(sequence.prefill_started_ns - sequence.admitted_ns) // 1000,
            prefill_us=(now_ns - sequence.prefill_started_ns) // 1000,
            num_prompt_tokens=len(sequence.request.prompt),
            num_cached_tokens=0,
            start_unix_nanos=sequence.admitted_unix_ns,
        )

    def _commit(self, sequence: VerifierSequence, token_ids: Sequence[int]) -> None:
        commit = sequence.mailbox.commit(token_ids)
        if sequence.link is None:
            return
        limit = 0 if sequence.pacing.is_paused else sequence.draft_limit
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
