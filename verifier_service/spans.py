"""The verifier's spans: one per round of a request, one per forward with links to its rounds.

Made only when somebody listens and the request is sampled. Times and counts, never tokens.
"""

import asyncio
from collections.abc import Sequence

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, SpanKind, Tracer

from paceline import telemetry
from paceline.round_sampler import RoundSampler
from paceline.rounds import PrefillReport, RoundReport
from verifier_service.metrics import VerifierMetrics
from verifier_service.round import Outcome, StepFacts


class VerifySpans:
    """The `paceline.verify` spans of all requests."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("verifier_service")
        self._exports = telemetry.exports(provider)

    def of(self, request: SpanContext | None) -> "RequestSpans":
        """`request` is the span that the request's rounds are under."""
        wanted = self._exports and telemetry.is_sampled(request)
        return RequestSpans(self._tracer, request if wanted else None)


class RequestSpans:
    """Those of one request, told of its rounds in order."""

    def __init__(self, tracer: Tracer, request: SpanContext | None) -> None:
        self._tracer = tracer
        self._request = request
        every_round = request is None or telemetry.wants_every_round(request)
        # The gateway, told of the same rounds, picks the same.
        self._sampler = None if every_round else RoundSampler()

    def record(self, report: RoundReport) -> None:
        if self._request is None or (self._sampler and not self._sampler.picks(report)):
            return
        start = report.start_unix_nanos + report.wait_us * 1000
        telemetry.record_span(
            self._tracer,
            telemetry.SPAN_VERIFY,
            telemetry.round_context(self._request, report.round),
            start,
            start + report.verify_us * 1000,
            {
                telemetry.ROUND_INDEX: report.round,
                telemetry.ROUND_DRAFTED: report.num_drafted,
                telemetry.ROUND_ACCEPTED: report.num_accepted,
                telemetry.BATCH_SEQUENCES: report.batch_sequences,
                telemetry.BATCH_ROWS: report.batch_rows,
            },
            kind=SpanKind.SERVER,
        )


class StepWatcher:
    """Takes note of each step on the engine's thread, and writes it down on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, provider: TracerProvider) -> None:
        self._loop = loop
        self._tracer = provider.get_tracer("verifier_service")
        self._exports = telemetry.exports(provider)
        self.metrics: VerifierMetrics | None = None

    @property
    def is_needed(self) -> bool:
        return self._exports or self.metrics is not None

    def watch(self, facts: StepFacts, outcomes: Sequence[Outcome]) -> None:
        """For the engine's `on_step`."""
        rounds: list[SpanContext] = []
        prefills: list[PrefillReport] = []
        for outcome in outcomes:
            sequence = outcome.turn.sequence
            number, request = sequence.totals.num_rounds, sequence.request.trace
            first = sequence.request.num_rounds
            if self._exports and request is not None and telemetry.is_sampled(request):
                rounds.append(telemetry.round_context(request, first + number))
            if number == 1 and sequence.prefill is not None:
                prefills.append(sequence.prefill)
        self._loop.call_soon_threadsafe(self._write_down, facts, rounds, prefills)

    def _write_down(
        self, facts: StepFacts, rounds: Sequence[SpanContext], prefills: Sequence[PrefillReport]
    ) -> None:
        if self.metrics:
            self.metrics.record_step(facts, prefills)
        if rounds:
            telemetry.record_span(
                self._tracer,
                telemetry.SPAN_VERIFY_BATCH,
                None,
                facts.start_unix_nanos,
                facts.start_unix_nanos + int(facts.time_us * 1000),
                {
                    telemetry.BATCH_SEQUENCES: facts.num_sequences,
                    telemetry.BATCH_ROWS: facts.num_rows,
                },
                links=rounds,
            )
