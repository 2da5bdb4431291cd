"""Telemetry: set-up, every span and attribute name, and span ids that are derived, not sent.

Configuration is by the standard OTEL_* variables alone; without an endpoint nothing is exported.
Prompts and text are never recorded. Spans are made by hand, with explicit parents and times, and
are never held across a yield. Names follow semantic-conventions-genai v0.1.0, our own start with
`paceline.`.
"""

import contextlib
import contextvars
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes, AttributeValue

from paceline import __version__
from paceline.sparing_exporter import SparingExporter

# Spans. A round's number is an attribute, never part of the name.
SPAN_CHAT = "chat"
SPAN_QUEUE = "paceline.queue"
SPAN_PREFILL = "paceline.prefill"
SPAN_ROUND = "paceline.round"
SPAN_DRAFT = "paceline.draft"
SPAN_VERIFY = "paceline.verify"
# One forward of the target model: a trace of its own that links to every round in it.
SPAN_VERIFY_BATCH = "paceline.verify.batch"

# Attributes of semantic-conventions-genai v0.1.0.
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

# Our own.
ROUND_INDEX = "paceline.round.index"
ROUND_DRAFTED = "paceline.round.drafted"
ROUND_TESTED = "paceline.round.tested"
ROUND_ACCEPTED = "paceline.round.accepted"
ROUND_OUTPUT = "paceline.round.output"
ROUND_SOURCE = "paceline.round.source"
ROUND_PLAIN_REASON = "paceline.round.plain_reason"
ROUND_DRAFT_US = "paceline.round.draft_us"
ROUND_WAIT_US = "paceline.round.wait_us"
ROUND_VERIFY_US = "paceline.round.verify_us"
ROUND_LEDGER_US = "paceline.round.ledger_us"
BATCH_SEQUENCES = "paceline.batch.sequences"
BATCH_ROWS = "paceline.batch.rows"
DRAFT_TOKENS = "paceline.draft.tokens"
DRAFT_SOURCE = "paceline.draft.source"
TOTAL_ROUNDS = "paceline.rounds"
TOTAL_DRAFTED = "paceline.drafted"
TOTAL_TESTED = "paceline.tested"
TOTAL_ACCEPTED = "paceline.accepted"
ACCEPTANCE_RATE = "paceline.acceptance.rate"
MEAN_ACCEPTANCE_LENGTH = "paceline.acceptance.mean_length"
WORKLOAD = "paceline.workload"
EVENT_FAILOVER = "paceline.failover"
FAILOVER_CAUSE = "paceline.failover.cause"
FAILOVER_TOKENS = "paceline.failover.tokens"

PROVIDER = "paceline"

# Our entry in a tracestate: which rounds get spans. None stands for all of them.
_STATE_KEY = "paceline"
_STATE_SAMPLED = "rounds:sampled"
# A service's exit waits so long for its last spans.
EXIT_S = 2.0

_propagator = TraceContextTextMapPropagator()
_next_span_id: contextvars.ContextVar[int | None] = contextvars.ContextVar("span_id", default=None)


class _DerivableIds(RandomIdGenerator):
    """Random ids, unless the next span's id is given."""

    def generate_span_id(self) -> int:
        return _next_span_id.get() or super().generate_span_id()


class _LinkSampler(Sampler):
    """A root span is sampled when one of its links is; for all others another sampler decides."""

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        decides = ALWAYS_ON if links and any(is_sampled(k.context) for k in links) else self._others
        return decides.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        return f"LinkSampler{{{self._others.get_description()}}}"


def set_up(service_name: str) -> TracerProvider:
    """A tracer provider for the process. The caller ends it with `shut_down`.

    Exports over OTLP/gRPC when OTEL_EXPORTER_OTLP_ENDPOINT (or its traces variant) is set and
    OTEL_SDK_DISABLED is not true; sampling is OTEL_TRACES_SAMPLER's.
    """
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", "1000")
    os.environ.setdefault("OTEL_BSP_MAX_QUEUE_SIZE", "16384")
    # A collector that hangs must not hold up the exit of a service.
    os.environ.setdefault("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    resource = Resource.create(
        {"service.name": os.environ.get("OTEL_SERVICE_NAME", service_name)}
        | {"service.version": __version__}
    )
    provider = TracerProvider(
        resource=resource, id_generator=_DerivableIds(), shutdown_on_exit=False
    )
    provider.sampler = _LinkSampler(provider.sampler)
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    ):
        provider.add_span_processor(BatchSpanProcessor(SparingExporter(OTLPSpanExporter())))
    return provider


def shut_down(provider: TracerProvider, timeout_s: float = EXIT_S) -> None:
    """Sends what is left, for as long as the timeout: a collector that hangs delays no exit."""
    # A daemon: the process ends whether or not the thread does.
    thread = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    thread.start()
    thread.join(timeout_s)


def exports(provider: TracerProvider) -> bool:
    """Whether anything listens: without it, no span needs to be made."""
    return bool(provider._active_span_processor._span_processors)


def round_span_id(parent_span_id: int, round_number: int) -> int:
    """The id of a round's span: drafter and verifier can parent on it before it exists."""
    digest = hashlib.sha256(b"%016x/%d" % (parent_span_id, round_number)).digest()
    return int.from_bytes(digest[:8], "big") or 1


def parse_context(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """The sender's span, or None when there is none or it is malformed."""
    if not traceparent:
        return None
    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    context = trace.get_current_span(_propagator.extract(carrier)).get_span_context()
    return context if context.is_valid else None


def format_context(context: SpanContext) -> tuple[str, str]:
    """(traceparent, tracestate) of a span, for a TraceContext message."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context=trace.set_span_in_context(trace.NonRecordingSpan(context)))
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


def round_context(parent: SpanContext, round_number: int) -> SpanContext:
    """The context of a round's span, derived from its parent's."""
    return SpanContext(
        trace_id=parent.trace_id,
        span_id=round_span_id(parent.span_id, round_number),
        is_remote=True,
        trace_flags=parent.trace_flags,
        trace_state=parent.trace_state,
    )


def with_detail(context: SpanContext, *, every_round: bool) -> SpanContext:
    """The context that tells the other services which rounds get spans."""
    state = context.trace_state
    if every_round:
        state = state.delete(_STATE_KEY) if _STATE_KEY in state else state
    elif _STATE_KEY in state:
        state = state.update(_STATE_KEY, _STATE_SAMPLED)
    else:
        state = state.add(_STATE_KEY, _STATE_SAMPLED)
    return SpanContext(
        context.trace_id, context.span_id, context.is_remote, context.trace_flags, state
    )


def wants_every_round(context: SpanContext) -> bool:
    """Whether all rounds of the request get spans, or those that a RoundSampler picks."""
    return context.trace_state.get(_STATE_KEY) != _STATE_SAMPLED


def is_sampled(context: SpanContext | None) -> bool:
    return context is not None and bool(context.trace_flags & TraceFlags.SAMPLED)


@contextlib.contextmanager
def _given_span_id(span_id: int | None) -> Iterator[None]:
    token = _next_span_id.set(span_id)
    try:
        yield
    finally:
        _next_span_id.reset(token)


def record_span(
    tracer: trace.Tracer,
    name: str,
    parent: SpanContext | None,
    start_unix_nanos: int,
    end_unix_nanos: int,
    attributes: Mapping[str, AttributeValue],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    span_id: int | None = None,
    links: Sequence[SpanContext] = (),
) -> None:
    """A finished span with explicit parent and times; `span_id` when it is a derived one.

    Without a parent it begins a trace of its own.
    """
    context = trace.set_span_in_context(
        trace.NonRecordingSpan(parent) if parent else trace.INVALID_SPAN
    )
    with _given_span_id(span_id):
        span = tracer.start_span(
            name,
            context=context,
            kind=kind,
            attributes=attributes,
            links=[Link(linked) for linked in links],
            start_time=start_unix_nanos,
        )
    span.end(max(end_unix_nanos, start_unix_nanos))
