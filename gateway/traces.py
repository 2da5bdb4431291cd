"""What is told of one answer: its spans, its numbers in the metrics, its rounds for later.

`chat {model}` and, below it, queue, prefill and every round. Rounds become spans from the
verifier's reports, with ids that verifier and drafter derive for themselves. Without an exporter no
span is made. No text is ever recorded.
"""

from collections.abc import Mapping
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from gateway.metrics import AnswerMeter, GatewayMetrics
from gateway.recent import AnswerRecord, RecentAnswers
from gateway.sequences import Seam
from paceline import telemetry
from paceline.events import Finished, Request
from paceline.round_sampler import RoundSampler
from paceline.rounds import PlainReason, PrefillReport, RoundReport

MAX_INT = 2**63 - 1


class Traces:
    """Begins the traces of this gateway's answers."""

    def __init__(
        self,
        provider: TracerProvider,
        *,
        every_round: bool,
        recent: RecentAnswers,
        metrics: GatewayMetrics | None = None,
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gateway")
        self._every_round = every_round
        self._recent = recent
        self._metrics = metrics

    def begin(
        self,
        request: Request,
        *,
        answer_id: str,
        model: str,
        session_id: str,
        tenant: str,
        parent: SpanContext | None,
        start_unix_nanos: int,
    ) -> "AnswerTrace":
        """`parent` is the caller's span, if it sent one."""
        span = None
        if telemetry.exports(self._provider):
            span = self._tracer.start_span(
                f"{telemetry.SPAN_CHAT} {model}".strip(),
                context=trace.set_span_in_context(
                    trace.NonRecordingSpan(parent) if parent else trace.INVALID_SPAN
                ),
                kind=SpanKind.SERVER,
                attributes=_request_attributes(request, answer_id, model, session_id),
                start_time=start_unix_nanos,
            )
        # A caller's trace goes on behind a gateway that records nothing itself.
        context = span.get_span_context() if span is not None else parent
        if context is not None:
            context = telemetry.with_detail(context, every_round=self._every_round)
        record = AnswerRecord(answer_id, model, request.workload, _trace_id(context))
        record.start_unix_nanos = start_unix_nanos
        record.tenant = tenant
        self._recent.begin(record)
        meter = None
        if self._metrics:
            exemplar = trace.set_span_in_context(span) if span and span.is_recording() else None
            meter = self._metrics.begin(request, model, start_unix_nanos, exemplar)
        sampler = None if self._every_round else RoundSampler()
        return AnswerTrace(self._tracer, span, context, sampler, meter, self._recent, record)


class AnswerTrace:
    """One answer's spans and numbers. Held as a value, never as the current context."""

    def __init__(
        self,
        tracer: trace.Tracer,
        span: Span | None,
        context: SpanContext | None,
        sampler: RoundSampler | None,
        meter: AnswerMeter | None,
        recent: RecentAnswers,
        record: AnswerRecord,
    ) -> None:
        self._tracer = tracer
        self._span = span if span is not None and span.is_recording() else None
        self.context = context
        self._sampler = sampler
        self._meter = meter
        self._recent = recent
        self._answer = record

    @property
    def trace_id(self) -> str:
        """Hex; empty when the request is not traced."""
        return self._answer.trace_id

    def headers(self) -> tuple[str, str]:
        """(traceparent, tracestate) for whoever works on this answer."""
        return telemetry.format_context(self.context) if self.context is not None else ("", "")

    def set_seed(self, seed: int) -> None:
        if self._span and seed <= MAX_INT:
            self._span.set_attribute(telemetry.GEN_AI_REQUEST_SEED, seed)

    def record_prefill(self, report: PrefillReport) -> None:
        # The one of a verifier that went on is work done twice.
        self._answer.prefill = self._answer.prefill or report
        if self._meter:
            self._meter.record_prefill(report)
        queued = report.start_unix_nanos + report.queue_us * 1000
        done = queued + report.prefill_us * 1000
        self._record(telemetry.SPAN_QUEUE, report.start_unix_nanos, queued, {})
        self._record(
            telemetry.SPAN_PREFILL,
            queued,
            done,
            {
                telemetry.GEN_AI_USAGE_INPUT_TOKENS: report.num_prompt_tokens,
                telemetry.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: report.num_cached_tokens,
            },
        )

    def record_round(self, report: RoundReport) -> None:
        self._recent.add_round(self._answer, report)
        if self._meter:
            self._meter.record_round(report)
        if self._span is None or self.context is None:
            return
        if self._sampler is not None and not self._sampler.picks(report):
            return
        self._record(
            telemetry.SPAN_ROUND,
            report.start_unix_nanos,
            report.start_unix_nanos + (report.wait_us + report.verify_us) * 1000,
            _round_attributes(report),
            span_id=telemetry.round_span_id(self.context.span_id, report.round),
            # With the verifier's and drafter's server spans, the edge of a service graph.
            kind=SpanKind.CLIENT,
        )

    def record_seam(self, seam: Seam) -> None:
        """The answer goes on at another verifier: an event of the `chat` span."""
        if self._meter:
            self._meter.go_on(seam.cause)
        if self._span:
            self._span.add_event(
                telemetry.EVENT_FAILOVER,
                {
                    telemetry.FAILOVER_CAUSE: seam.cause.value,
                    telemetry.FAILOVER_TOKENS: seam.num_tokens,
                },
            )

    def finish(self, model: str, finished: Finished) -> None:
        """What the whole answer came to."""
        # A stop string is the client's text.
        self._answer.finished = replace(finished, stop="", digest=b"")
        if self._meter:
            self._meter.finish(finished)
        if self._span:
            self._span.set_attributes(_finish_attributes(model, finished))

    def end(self, error_type: str) -> None:
        """Ends the `chat` span; an empty `error_type` is success."""
        self._answer.error_type = error_type
        if self._meter:
            self._meter.end(error_type)
        if self._span is None:
            return
        if error_type:
            self._span.set_attribute(telemetry.ERROR_TYPE, error_type)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def _record(
        self,
        name: str,
        start_unix_nanos: int,
        end_unix_nanos: int,
        attributes: Mapping[str, AttributeValue],
        span_id: int | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        if self._span and self.context:
            telemetry.record_span(
                self._tracer,
                name,
                self.context,
                start_unix_nanos,
                end_unix_nanos,
                attributes,
                span_id=span_id,
                kind=kind,
            )


def _trace_id(context: SpanContext | None) -> str:
    if context is None or not telemetry.is_sampled(context):
        return ""
    return f"{context.trace_id:032x}"


def _request_attributes(
    request: Request, answer_id: str, model: str, session_id: str
) -> dict[str, AttributeValue]:
    params = request.params
    attributes: dict[str, AttributeValue] = {
        telemetry.GEN_AI_OPERATION_NAME: "chat",
        telemetry.GEN_AI_PROVIDER_NAME: telemetry.PROVIDER,
        telemetry.GEN_AI_REQUEST_MODEL: model,
        telemetry.GEN_AI_RESPONSE_ID: answer_id,
        telemetry.GEN_AI_REQUEST_TEMPERATURE: params.temperature,
        telemetry.GEN_AI_REQUEST_TOP_P: params.top_p,
        telemetry.GEN_AI_REQUEST_TOP_K: params.top_k,
        telemetry.GEN_AI_REQUEST_MAX_TOKENS: params.max_tokens,
        telemetry.GEN_AI_REQUEST_STREAM: True,
    }
    if session_id:
        attributes[telemetry.GEN_AI_CONVERSATION_ID] = session_id
    if request.workload:
        attributes[telemetry.WORKLOAD] = request.workload
    return attributes


def _round_attributes(report: RoundReport) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        telemetry.ROUND_INDEX: report.round,
        telemetry.ROUND_DRAFTED: report.num_drafted,
        telemetry.ROUND_TESTED: report.num_tested,
        telemetry.ROUND_ACCEPTED: report.num_accepted,
        telemetry.ROUND_OUTPUT: report.num_output,
        telemetry.ROUND_DRAFT_US: report.draft_us,
        telemetry.ROUND_WAIT_US: report.wait_us,
        telemetry.ROUND_VERIFY_US: report.verify_us,
        telemetry.ROUND_LEDGER_US: report.ledger_us,
        telemetry.BATCH_SEQUENCES: report.batch_sequences,
        telemetry.BATCH_ROWS: report.batch_rows,
    }
    if report.num_drafted:
        attributes[telemetry.ROUND_SOURCE] = report.source.name.lower()
    if report.plain_reason is not PlainReason.UNSPECIFIED:
        attributes[telemetry.ROUND_PLAIN_REASON] = report.plain_reason.name.lower()
    return attributes


def _finish_attributes(model: str, finished: Finished) -> dict[str, AttributeValue]:
    totals = finished.totals
    return {
        telemetry.GEN_AI_RESPONSE_MODEL: model,
        telemetry.GEN_AI_RESPONSE_FINISH_REASONS: (finished.finish_reason.label,),
        telemetry.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: finished.time_to_first_token_us / 1e6,
        telemetry.GEN_AI_USAGE_INPUT_TOKENS: finished.num_prompt_tokens,
        telemetry.GEN_AI_USAGE_OUTPUT_TOKENS: finished.num_completion_tokens,
        telemetry.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: finished.num_cached_tokens,
        telemetry.TOTAL_ROUNDS: totals.num_rounds,
        telemetry.TOTAL_DRAFTED: totals.num_drafted,
        telemetry.TOTAL_TESTED: totals.num_tested,
        telemetry.TOTAL_ACCEPTED: totals.num_accepted,
        telemetry.ACCEPTANCE_RATE: totals.acceptance_rate,
        telemetry.MEAN_ACCEPTANCE_LENGTH: totals.mean_acceptance_length,
    }
