"""The engine: one thread that runs the model, and the doors to it from other threads.

The outside world puts commands into the inbox and is called back with events; what a step does is
step_runner.py's.
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from paceline.model.engine import LanguageModel
from paceline.rounds import SpeculationTotals
from verifier_service.config import VerifierSettings
from verifier_service.inbox import Inbox
from verifier_service.links import Update
from verifier_service.mailbox import Block
from verifier_service.opening import new_sequence
from verifier_service.round import Outcome, StepFacts, ignore_step
from verifier_service.sequence import Event, Request, Sink, VerifierSequence
from verifier_service.step_runner import StepRunner
from verifier_service.tenants import Tenants

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
    # Called on the engine's thread after a step, its rounds counted.
    on_step: Callable[[StepFacts, Sequence[Outcome]], None] = ignore_step

    def __post_init__(self) -> None:
        self._inbox = Inbox()
        self._runner = StepRunner(
            self.model, self.settings, self._inbox, self.deliver, self.send_updates
        )
        self._places = self._runner.places
        self._stopping = False
        self._finished: Future[None] | None = None

    # From any thread.

    def start(self, model_thread: Executor) -> None:
        """Runs on the one thread that loaded the model, until `stop`."""
        self._finished = model_thread.submit(self._run)

    def stop(self) -> None:
        """Fails what still runs and waits for the engine's end."""
        self._inbox.tell(self._begin_stop)
        if self._finished is not None:
            self._finished.result()

    def submit(self, request: Request, sink: Sink) -> VerifierSequence:
        """Queue a checked request; events go to `sink` through `deliver`. Raises QueueFull."""
        num_waiting = len(self._places.waiting)
        if num_waiting >= self.settings.max_waiting + self.settings.max_sequences:
            raise QueueFull(f"{num_waiting} requests are waiting")
        sequence = new_sequence(request, sink, self.model.vocab_size)
        self._inbox.tell(lambda: self._runner.enter(sequence))
        return sequence

    def cancel(self, sequence: VerifierSequence) -> None:
        """Forget a sequence; no more events. Safe at any time, also after its end."""
        self._inbox.tell(lambda: self._runner.drop(sequence))

    def add_credit(self, sequence: VerifierSequence, num_tokens: int) -> None:
        def add() -> None:
            sequence.credit = (sequence.credit or 0) + num_tokens

        self._inbox.tell(add)

    def link_up(self, link: int, max_context: int, max_draft_tokens: int) -> None:
        self._inbox.tell(lambda: self._runner.gain_link(link, max_context, max_draft_tokens))

    def link_down(self, link: int) -> None:
        self._inbox.tell(lambda: self._runner.lose_link(link))

    def blocks_arrived(
        self, link: int, blocks: Sequence[Block], on_receipts: Callable[[int, int], None]
    ) -> None:
        """Draft blocks of one link; `on_receipts` is told how many were stale and malformed."""
        now_ns = time.monotonic_ns()
        self._inbox.tell_of_blocks(
            functools.partial(self._runner.take_blocks, link, blocks, now_ns, on_receipts)
        )

    def sequences_lost(self, link: int, lost: Sequence[tuple[int, int, bool]]) -> None:
        """(sequence, epoch, whether another attach may help) that a drafter cannot follow."""
        self._inbox.tell(lambda: self._runner.take_lost(link, lost))

    def status(self) -> Status:
        runner, store = self._runner, self.model.store
        return Status(
            num_running=len(self._places.running),
            num_waiting=len(self._places.waiting),
            kv_blocks_used=store.blocks_used,
            kv_blocks_total=store.blocks_total,
            num_steps=runner.num_steps,
            totals=runner.totals,
            step_us=int(runner.step_us),
            forward_us=int(runner.forward_us),
            kv_blocks_reusable=store.blocks_reusable,
            num_preemptions=self._places.num_preemptions,
        )

    def sequences_on(self, link: int) -> int:
        return self._runner.links.load(link)

    @property
    def tenants(self) -> Tenants:
        return self._runner.tenants

    # On the engine's thread.

    def _run(self) -> None:
        runner = self._runner
        while not self._stopping:
            try:
                # Deadlines of paused sequences are looked at once a second.
                self._inbox.read(block=not self._places.has_work, timeout_s=1.0)
                played = runner.run()
                if played is not None:
                    self.on_step(*played)
            except Exception:
                log.exception("a step failed; its sequences are failed and the engine goes on")
                runner.fail_all("internal", "the step failed")
            runner.outbox.flush()
        runner.fail_all("unavailable", "the verifier is shutting down")
        runner.outbox.flush()

    def _begin_stop(self) -> None:
        self._stopping = True
