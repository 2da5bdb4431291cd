"""The engine: one thread that applies the updates of all streams and drafts for all of them.

Between two drafting steps it applies whatever has come in, in order, so a commit is also the cancel
of what it contradicts. What a step drafted leaves at once. Knows no messages and no sockets.
"""

import logging
import queue
import threading
import time

from opentelemetry.trace import SpanKind, Tracer

from drafter_service.drafter import NO_LIMIT, Drafter
from drafter_service.sequences import Deliver, Sequences, Stream, Tracked
from drafter_service.updates import Block, Limits, Updates
from paceline import telemetry
from paceline.round_sampler import is_regular

log = logging.getLogger(__name__)


class DraftEngine:
    """Drives a drafter on a thread of its own. Its public methods are for other threads."""

    def __init__(
        self,
        drafter: Drafter,
        *,
        max_sequences: int,
        max_draft_tokens: int,
        tracer: Tracer | None = None,
    ) -> None:
        """Without a tracer no spans are made."""
        self.drafter = drafter
        self.max_sequences = max_sequences
        self.max_draft_tokens = max_draft_tokens
        self._tracer = tracer
        self._sequences = Sequences(drafter, max_sequences)
        self.counters = self._sequences.counters
        # None for the updates: the stream is gone. None altogether: stop.
        self._inbox: queue.SimpleQueue[tuple[Stream, Updates | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="drafting", daemon=True)

    @property
    def num_sequences(self) -> int:
        """Sequences of all streams."""
        return self._sequences.count

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Frees everything and waits for the thread. Blocks for as long as a drafting step."""
        self._inbox.put(None)
        self._thread.join()

    def connect(
        self, vocab_size: int, max_context: int, max_draft_tokens: int, deliver: Deliver
    ) -> Stream:
        """A stream for a verifier with these limits; a `max_context` of 0 is none."""
        return Stream(
            Limits(
                vocab_size=vocab_size,
                max_length=max_context or NO_LIMIT,
                max_context=self.drafter.max_context or NO_LIMIT,
                max_draft_tokens=min(max_draft_tokens, self.max_draft_tokens),
                eos_token_ids=self.drafter.eos_token_ids,
            ),
            deliver,
        )

    def submit(self, stream: Stream, updates: Updates) -> None:
        self._inbox.put((stream, updates))

    def disconnect(self, stream: Stream) -> None:
        """Frees all of a stream's sequences."""
        self._inbox.put((stream, None))

    def _run(self) -> None:
        is_running = True
        while is_running:
            try:
                is_running = self._apply_news()
                self._send()
                self._draft()
                self._send()
            except Exception:
                log.exception("a drafting step failed; every sequence is given up")
                self._sequences.lose_all()
        for stream in list(self._sequences.streams):
            self._sequences.forget(stream)

    def _apply_news(self) -> bool:
        """Applies what came in, and waits for it when there is nothing to do. False: stop."""
        is_idle = not self._sequences.has_work()
        while True:
            try:
                news = self._inbox.get(block=is_idle)
            except queue.Empty:
                return True
            if news is None:
                return False
            stream, updates = news
            if updates is None:
                self._sequences.forget(stream)
            else:
                self._sequences.apply(stream, updates)
            is_idle = False

    def _draft(self) -> None:
        wanting = self._sequences.wanting()
        if not wanting:
            return
        started_unix_nanos, start = time.time_ns(), time.perf_counter_ns()
        proposals = self.drafter.extend([tracked.state for tracked in wanting])
        nanos = time.perf_counter_ns() - start
        self.counters.step(nanos, [len(ids or ()) for ids in proposals])
        for tracked, token_ids in zip(wanting, proposals, strict=True):
            if not tracked.drafting_nanos:
                tracked.started_unix_nanos = started_unix_nanos
            tracked.drafting_nanos += nanos
            if token_ids is None:
                tracked.state.rest()
            else:
                tracked.state.extend(token_ids)

    def _send(self) -> None:
        """One delivery to each stream that there is news for."""
        for stream in self._sequences.streams:
            taken = ((tracked, self._take(tracked)) for tracked in stream.sequences.values())
            blocks = [(tracked, block) for tracked, block in taken if block]
            lost, stream.lost = stream.lost, []
            if blocks or lost:
                stream.deliver([block for _, block in blocks], lost)
            for tracked, block in blocks:
                self._record(tracked, block)
                tracked.drafting_nanos = 0

    def _take(self, tracked: Tracked) -> Block | None:
        return tracked.state.take_block(
            self.drafter.source,
            tracked.drafting_nanos // 1000,
            lambda start, end: self.drafter.distributions(tracked.state, start, end),
        )

    def _record(self, tracked: Tracked, block: Block) -> None:
        """The block's span, with the time from the first step that drafted for it."""
        # A block that is sent again under a new epoch took no time.
        if not (self._tracer and tracked.span and tracked.drafting_nanos):
            return
        # Which rounds will be odd is not known yet.
        if not (telemetry.wants_every_round(tracked.span) or is_regular(block.round)):
            return
        telemetry.record_span(
            self._tracer,
            telemetry.SPAN_DRAFT,
            telemetry.round_context(tracked.span, block.round),
            tracked.started_unix_nanos,
            time.time_ns(),
            {
                telemetry.DRAFT_TOKENS: len(block.token_ids),
                telemetry.DRAFT_SOURCE: block.source.name.lower(),
            },
            kind=SpanKind.SERVER,
        )
