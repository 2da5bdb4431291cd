"""Sampled detail: gateway, verifier and drafter pick the same rounds without asking each other."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState

from gateway.metrics import GatewayMetrics
from gateway.recent import AnswerRecord, RecentAnswers
from gateway.traces import Traces
from paceline import telemetry
from paceline.events import Request
from paceline.metrics import instruments
from paceline.metrics.reader import Metrics
from paceline.rounds import PlainReason, RoundReport, TokenSource
from verifier_service.spans import VerifySpans

ODD = 21


def reports(count: int) -> list[RoundReport]:
    """Blocks are accepted, but for one round in which the drafter fell out."""
    block = {"num_drafted": 2, "num_tested": 2, "num_accepted": 2, "num_output": 3}
    return [
        RoundReport(n, num_output=1, plain_reason=PlainReason.NO_DRAFTER, verify_us=5)
        if n == ODD
        else RoundReport(n, **block, source=TokenSource.DRAFT_MODEL, verify_us=5)
        for n in range(1, count + 1)
    ]


def exporting() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = telemetry.set_up("test"), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def play(*, every_round: bool, metrics: GatewayMetrics | None = None):
    """Round numbers with a span at the gateway, and at a verifier told of the same rounds."""
    provider, exporter = exporting()
    traces = Traces(provider, every_round=every_round, recent=RecentAnswers(4), metrics=metrics)
    answer = traces.begin(
        Request(""),
        answer_id="a",
        model="m",
        session_id="",
        tenant="",
        parent=None,
        start_unix_nanos=1,
    )
    spans = VerifySpans(provider).of(telemetry.parse_context(*answer.headers()))
    for report in reports(40):
        answer.record_round(report)
        spans.record(report)
    answer.end("")
    made = exporter.get_finished_spans()
    return tuple(
        [s.attributes[telemetry.ROUND_INDEX] for s in made if s.name == name]
        for name in (telemetry.SPAN_ROUND, telemetry.SPAN_VERIFY)
    )


def test_all_rounds_or_the_same_choice_of_them():
    assert play(every_round=True) == ([*range(1, 41)],) * 2
    assert play(every_round=False) == ([*range(1, 9), 16, ODD, 32],) * 2


def test_what_gets_no_span_is_still_counted():
    metrics = Metrics(instruments.GATEWAY)
    gateway = GatewayMetrics(
        metrics,
        workloads=(),
        served=lambda: ["m"],
        num_active=lambda: 0,
        num_queued=lambda: 0,
        num_ready=lambda: 0,
    )
    play(every_round=False, metrics=gateway)
    assert sum(sums.totals.num_rounds for sums in gateway.sums.rounds.values()) == 40
    assert gateway.sums.fallbacks["m", "no_drafter"] == 1
    metrics.close()


def test_the_choice_travels_beside_what_the_caller_sent():
    flags = TraceFlags(TraceFlags.SAMPLED)
    caller = SpanContext(1, 2, True, flags, TraceState([("vendor", "x")]))
    sampled = telemetry.with_detail(caller, every_round=False)
    sent = telemetry.parse_context(*telemetry.format_context(sampled))
    assert not telemetry.wants_every_round(sent)
    assert sent.trace_state["vendor"] == "x"
    # A caller does not choose for us.
    assert telemetry.wants_every_round(telemetry.with_detail(sent, every_round=True))
    assert telemetry.wants_every_round(caller)


def test_a_forward_is_sampled_with_a_request_in_it(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    provider, exporter = exporting()
    tracer = provider.get_tracer("test")
    sampled = SpanContext(1, 2, True, TraceFlags(TraceFlags.SAMPLED))
    unsampled = SpanContext(3, 4, True, TraceFlags(0))
    for name, links in (("none", []), ("other", [unsampled]), ("one", [unsampled, sampled])):
        telemetry.record_span(tracer, name, None, 1, 2, {}, links=links)
    (span,) = exporter.get_finished_spans()
    assert span.name == "one"
    assert [link.context.span_id for link in span.links] == [4, 2]
    assert isinstance(span.links[0], Link)


def test_no_more_answers_and_rounds_are_remembered_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("gateway.recent.MAX_ROUNDS", 10)
    recent = RecentAnswers(3)
    records = [AnswerRecord(str(number)) for number in range(5)]
    for record in records:
        recent.begin(record)
        for report in reports(3):
            recent.add_round(record, report)
    assert [recent.get(record.id) is record for record in records] == [False] * 2 + [True] * 3
    assert recent.get("") is records[4]
    for report in reports(9):
        recent.add_round(records[4], report)
    assert [recent.get(record.id) is record for record in records] == [False] * 4 + [True]
    # One that was forgotten while it ran takes no room.
    recent.add_round(records[0], reports(1)[0])
    assert len(records[0].rounds) == 3


def test_a_remembered_round_is_the_round_that_was():
    recent, record = RecentAnswers(1), AnswerRecord("a")
    recent.begin(record)
    told = [
        *reports(30),
        RoundReport(31, ledger_us=-7, start_unix_nanos=2**64 - 1, wait_us=2**32 - 1),
    ]
    for report in told:
        recent.add_round(record, report)
    assert [*record.rounds] == told
    assert all(isinstance(kept.source, TokenSource) for kept in record.rounds)
