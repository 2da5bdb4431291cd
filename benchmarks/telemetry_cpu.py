"""CPU time of the code that tells of a round, with nothing else running in the process.

Plays the rounds of answers through what the gateway and the verifier do for each of them. No model
runs and no clock but the process's own CPU time is read, so other work on the machine hardly shows.
"""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from gateway.metrics import GatewayMetrics
from gateway.recent import RecentAnswers
from gateway.traces import Traces
from paceline import telemetry
from paceline.events import Request
from paceline.metrics import instruments as names
from paceline.metrics.reader import Metrics
from paceline.rounds import RoundReport, SpeculationTotals, TokenSource
from verifier_service.metrics import VerifierMetrics
from verifier_service.round import StepFacts
from verifier_service.spans import StepWatcher, VerifySpans

ROUNDS = 200
ANSWERS = 20
TIMES = 3
OFF, METRICS, ALL = "off", "metrics", "metrics and every span"
SETUPS = (OFF, METRICS, ALL)


class Shredder(SpanExporter):
    """Encodes what it is given, as an exporter does, and sends it nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


class Inline:
    """For an event loop: calls at once."""

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
        call(*arguments)


def reports() -> list[RoundReport]:
    block = {"num_drafted": 8, "num_tested": 5, "num_accepted": 4, "num_output": 5}
    times = {"draft_us": 300, "wait_us": 900, "verify_us": 41_000, "start_unix_nanos": 1}
    return [
        RoundReport(n, **block, **times, source=TokenSource.PROMPT_LOOKUP, ledger_us=-n)
        for n in range(1, ROUNDS + 1)
    ]


def gateway_side(provider: TracerProvider, *, with_metrics: bool) -> Traces:
    counted = None
    if with_metrics:
        counted = GatewayMetrics(
            Metrics(names.GATEWAY),
            workloads=(),
            served=lambda: ["m"],
            num_active=int,
            num_queued=int,
            num_ready=int,
        )
    return Traces(provider, every_round=True, recent=RecentAnswers(16), metrics=counted)


def verifier_side(provider: TracerProvider, *, with_metrics: bool) -> StepWatcher:
    loop: Any = Inline()
    watcher = StepWatcher(loop, provider)
    if with_metrics:
        unread: Any = SimpleNamespace()
        watcher.metrics = VerifierMetrics(Metrics(names.VERIFIER), unread, unread)
    return watcher


def cpu_us(setup: str) -> float:
    """CPU microseconds of a round, of all threads of this process; the least of some times."""
    provider = telemetry.set_up("bench")
    if setup == ALL:
        provider.add_span_processor(BatchSpanProcessor(Shredder(), max_queue_size=2**16))
    traces = gateway_side(provider, with_metrics=setup != OFF)
    watcher = verifier_side(provider, with_metrics=setup != OFF)
    verify = VerifySpans(provider)
    facts, rounds, best = StepFacts(1, 41_000.0, 1, 9), reports(), float("inf")
    for _ in range(TIMES):
        begun = time.process_time()
        for number in range(ANSWERS):
            answer = traces.begin(
                Request(""),
                answer_id=str(number),
                model="m",
                session_id="",
                tenant="",
                parent=None,
                start_unix_nanos=time.time_ns(),
            )
            context = telemetry.parse_context(*answer.headers())
            spans, totals = verify.of(context), SpeculationTotals()
            request = SimpleNamespace(trace=context, num_rounds=0)
            sequence = SimpleNamespace(totals=totals, request=request, prefill=None)
            outcomes: Any = [SimpleNamespace(turn=SimpleNamespace(sequence=sequence))]
            for report in rounds:
                totals.num_rounds = report.round
                if watcher.is_needed:
                    watcher.watch(facts, outcomes)
                spans.record(report)
                answer.record_round(report)
            answer.end("")
        provider.force_flush()
        best = min(best, time.process_time() - begun)
    telemetry.shut_down(provider)
    return best / (ANSWERS * ROUNDS) * 1e6
