"""The engine: one thread that runs the model, verifies, commits and emits.

admit -> share rows -> wait for a draft if that pays -> forward -> verify -> commit. Everything that
changes a sequence happens on this thread; the outside world puts commands into its inbox and is
called back with events. Knows no messages: links to drafters are numbers, updates are dataclasses.
"""

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace

from torch import Tensor

from paceline.model.cache import BLOCK_TOKENS, CapacityError, SequenceCache
from paceline.model.engine import LanguageModel
from paceline.params import SamplingMode, Speculation
from paceline.rounds import FinishReason, PrefillReport, SpeculationTotals, TokenSource
from paceline.sampling import Chooser, NotFinite, NothingLeft, SamplingState
from verifier_service.config import VerifierSettings
from verifier_service.links import DraftLinks, Update
from verifier_service.mailbox import Block, Draft, Mailbox
from verifier_service.pacer import Pacer
from verifier_service.pacing import RoundCost
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
from verifier_service.sources import Sources, Stores, warm_table
from verifier_service.tenants import Tenants
from verifier_service.turns import Step, Turn, take_turns, worthwhile_wait

log = logging.getLogger(__name__)


# A drafter may run so many blocks ahead: one that stands as a whole leaves some for the next.
AHEAD = 2


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
    step_us: int = 0
    forward_us: int = 0
    kv_blocks_reusable: int = 0
    num_preemptions: int = 0


@dataclass
class Engine:
    """Runs until `stop`. `deliver` is called on the engine's thread with what a step emitted."""

    model: LanguageModel
    settings: VerifierSettings
    deliver: Callable[[list[tuple[Sink, Event]]], None]
    send_updates: Callable[[dict[int, list[Update]]], None]
    num_steps: int = 0
    num_preemptions: int = 0
    step_us: float = 0.0
    forward_us: float = 0.0
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    tenants: Tenants = field(default_factory=Tenants)
    # Called on the engine's thread after a step, its rounds counted.
    on_step: Callable[[StepFacts, Sequence[Outcome]], None] = ignore_step

    def __post_init__(self) -> None:
        self._links = DraftLinks()
        self._pacer = Pacer(1e3 * self.settings.draft_budget_ms, self.settings.draft_budget_share)
        # Draft tokens less likely to stand were not worth a row in the last step.
        self._price = 0.0
        model = self.model.identity
        self._stores = Stores(
            warm_table(
                self.settings.recycling_table,
                model.name,
                model.tokenizer_fingerprint,
                model.vocab_size,
            )
        )
        self._waiting: deque[VerifierSequence] = deque()
        self._running: list[VerifierSequence] = []
        self._by_number: dict[int, VerifierSequence] = {}
        self._events: list[tuple[Sink, Event]] = []
        self._inbox: deque[Callable[[], None]] = deque()
        # Blocks apart: they are also taken between a forward and its commits.
        self._blocks: deque[Callable[[], None]] = deque()
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
                AHEAD * request.max_draft_tokens,
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
        take = functools.partial(self._take_blocks, link, blocks, now_ns, on_receipts)
        with self._wake:
            self._blocks.append(take)
            self._wake.notify()

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
            step_us=int(self.step_us),
            forward_us=int(self.forward_us),
            kv_blocks_reusable=self.model.store.blocks_reusable,
            num_preemptions=self.num_preemptions,
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
            if block and not self._inbox and not self._blocks:
                # Deadlines of paused sequences are looked at once a second.
                self._wake.wait(1.0 if timeout_s is None else timeout_s)
            commands, self._inbox = self._inbox, deque()
        self._obey(commands)
        self._read_blocks()

    def _read_blocks(self) -> None:
        """Draft tokens that came during a forward still belong to its epoch: before the commit."""
        with self._wake:
            commands, self._blocks = self._blocks, deque()
        self._obey(commands)

    def _obey(self, commands: Iterable[Callable[[], None]]) -> None:
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
        if request.params.mode is SamplingMode.COUPLED and request.max_tree_tokens > 0:
            sequence.sources = Sources(
                self.settings.local_sources,
                self._stores,
                prompt=request.prompt,
                token_ids=sequence.token_ids,
                params=request.params,
                seed=request.seed,
                branch_block=BLOCK_TOKENS,
                tenant=request.tenant,
                keep=request.keep,
            )
        generated = request.generated
        if generated:
            _, reason, stop_token_id = delivered(
                0, generated, request.params, self.model.eos_token_ids
            )
            if reason is not FinishReason.UNSPECIFIED:
                self._finish(sequence, reason, stop_token_id)
                return
        sequence.pacing = self._pacer.pacing(request.workload)
        self._by_number[sequence.number] = sequence
        self._waiting.append(sequence)

    def _drop(self, sequence: VerifierSequence) -> None:
        sequence.cancelled = True
        self._release(sequence)

    def _release(self, sequence: VerifierSequence) -> None:
        """Take a sequence out of everything. Safe to repeat."""
        self._by_number.pop(sequence.number, None)
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._links.detach(sequence)
        if sequence.cache is not None:
            sequence.cache.free()
            sequence.cache = None

    def _emit(self, sequence: VerifierSequence, event: Event) -> None:
        if not sequence.cancelled:
            self._events.append((sequence.sink, event))

    def _fail(self, sequence: VerifierSequence, kind: str, message: str) -> None:
        self._emit(sequence, FailedEvent(kind, message))
        self._release(sequence)

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
            # A block that came too late tells as much about the drafter as one in time.
            sequence.clock.heard(
                block,
                sequence.token_ids[block.base_position :],
                len(sequence.mailbox),
                sequence.pacing,
                arrived_ns,
                is_late=receipt is receipt.STALE,
            )
            stale += receipt is receipt.STALE
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
        self._links.attach_new([*self._running, *self._waiting], self._credit)
        self._flush()
        step = self._make_room(self._wait_for_drafts(self._take_turns()))
        turns = step.turns
        if not turns:
            return
        self._price = step.price
        start_ns, start_unix_ns = time.monotonic_ns(), time.time_ns()
        rows = [turn.rows for turn in turns]
        logits = self.model.forward(rows)
        self.forward_us += (time.monotonic_ns() - start_ns) / 1e3
        self._read_blocks()
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
        for outcome in outcomes:
            self._learn(outcome, step, time_us)
            self._conclude(outcome, facts)
        self.on_step(facts, outcomes)

    def _take_turns(self) -> Step:
        return take_turns(self._running, self._pacer, self.settings, time.monotonic_ns())

    def _credit(self, sequence: VerifierSequence) -> int:
        """How far its drafter may run ahead."""
        limit = sequence.draft_limit
        if sequence.request.speculation is Speculation.FIXED:
            return limit
        return min(self._pacer.credit(sequence.pacing, limit, self._price), sequence.num_left)

    def _learn(self, outcome: Outcome, step: Step, time_us: float) -> None:
        """Let pacing learn from a round; not from the first, whose step also read the prompt."""
        turn = outcome.turn
        if turn.sequence.prefill is None:
            return
        plain_us, rows_us, drafting_us = self._pacer.costs(step.shape, step.plain, time_us)
        tested, stood = turn.evidence(outcome.token_ids)
        cost = RoundCost(
            source=turn.sent.sources[0] if turn.sent.sources else TokenSource.UNSPECIFIED,
            tested=tested,
            stood=stood,
            accepted=outcome.num_accepted,
            wait_us=turn.wait_us,
            rows_us=rows_us,
            drafting_us=drafting_us,
            plain_us=plain_us,
            row_share=len(turn.draft.token_ids) / max(step.shape.rows - step.plain.rows, 1),
            waited=turn.waited,
        )
        self._pacer.learn(turn.view, cost, time.monotonic_ns() / 1e3, step.price)

    def _expire(self) -> None:
        now_ns = time.monotonic_ns()
        for sequence in [*self._running, *self._waiting]:
            limit_s = sequence.request.timeout_s
            if limit_s is not None and now_ns - sequence.admitted_ns > limit_s * 1e9:
                self._fail(sequence, "deadline", "timeout_ms ran out")

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            try:
                cache = self.model.new_cache()
            except CapacityError:
                return
            num_cached = cache.adopt(sequence.token_ids, salt=sequence.request.tenant)
            if self._running and not self._has_room(cache, len(sequence.token_ids) + 1):
                cache.free()
                return
            self._waiting.popleft()
            sequence.cache = cache
            if not sequence.prefill_started_ns:
                sequence.prefill_started_ns = time.monotonic_ns()
                # Of an answer that is opened again, tokens of the answer may be cached, too.
                sequence.num_cached = min(num_cached, len(sequence.request.prompt))
            self._running.append(sequence)

    def _has_room(self, cache: SequenceCache, length: int) -> bool:
        return cache.num_missing(length) <= self.model.store.blocks_free

    def _make_room(self, step: Step) -> Step:
        """Turns that fit the KV cache: drafts yield first, then whoever was admitted last."""
        store, turns = self.model.store, step.turns
        if sum(turn.num_missing_blocks for turn in turns) > store.blocks_free:
            turns = [replace(turn, draft=Draft()) for turn in turns]
        while sum(turn.num_missing_blocks for turn in turns) > store.blocks_free:
            self._preempt(self._running[-1])
            turns = [turn for turn in turns if turn.sequence.cache is not None]
        return step if turns is step.turns else replace(step, turns=turns)

    def _preempt(self, sequence: VerifierSequence) -> None:
        """Back into the queue, first in line; its tokens are computed again later."""
        assert sequence.cache is not None
        sequence.cache.free()
        sequence.cache = None
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _wait_for_drafts(self, step: Step) -> Step:
        """Sit out for drafts that are on their way, if that pays."""
        wait = worthwhile_wait(step, self._pacer, self.settings)
        if wait.wait_us <= 0:
            return step
        start_ns = time.monotonic_ns()
        deadline_ns = start_ns + int(wait.wait_us * 1e3)
        wanted = {
            turn.sequence: count
            for turn, count in zip(step.turns, wait.num_wanted, strict=True)
            if count > len(turn.sequence.mailbox)
        }
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            self._read_inbox(block=True, timeout_s=left_ns / 1e9)
            if not any(_is_short(sequence, count) for sequence, count in wanted.items()):
                break
        now_ns = time.monotonic_ns()
        for sequence in wanted:
            if _is_short(sequence, 1):
                sequence.pacing.arrival.missed(sequence.clock.since_us(0, now_ns))
        step = self._take_turns()
        for turn in step.turns:
            turn.wait_us = (now_ns - start_ns) / 1e3
            turn.waited = turn.sequence in wanted
        return step

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
        self.tenants.add(
            sequence.request.tenant,
            draft_us=event.round.draft_us,
            wait_us=event.round.wait_us if outcome.turn.waited else 0,
            num_drafted=event.round.num_drafted,
            num_accepted=event.round.num_accepted,
        )
        self._emit(sequence, event)
        if outcome.finish_reason is not FinishReason.UNSPECIFIED:
            self._finish(sequence, outcome.finish_reason, outcome.stop_token_id)

    def _prefill_report(self, sequence: VerifierSequence) -> PrefillReport:
        return PrefillReport(
            queue_us=(sequence.prefill_started_ns - sequence.admitted_ns) // 1000,
            prefill_us=(time.monotonic_ns() - sequence.prefill_started_ns) // 1000,
            num_prompt_tokens=len(sequence.request.prompt),
            num_cached_tokens=sequence.num_cached,
            start_unix_nanos=sequence.admitted_unix_ns,
        )

    def _commit(self, sequence: VerifierSequence, token_ids: Sequence[int]) -> None:
        commit = sequence.mailbox.commit(token_ids)
        if sequence.link is None:
            return
        self._links.commit(sequence, commit, self._credit(sequence))

    def _finish(
        self, sequence: VerifierSequence, reason: FinishReason, stop_token_id: int | None
    ) -> None:
        if sequence.sources is not None:
            sequence.sources.finished()
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


def _is_short(sequence: VerifierSequence, num_wanted: int) -> bool:
    """More draft tokens may still come than these."""
    mailbox = sequence.mailbox
    if sequence.link is None or mailbox.is_empty_handed:
        return False
    return len(mailbox) < min(num_wanted, sequence.clock.credit)
