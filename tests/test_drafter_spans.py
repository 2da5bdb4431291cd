"""Draft spans: parented on the round they were drafted for, and made only when somebody listens."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from drafter_fakes import attach, commit, serving
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline import telemetry
from paceline.v1 import tokens_pb2

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = tokens_pb2.TraceContext(traceparent=f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01")
UNSAMPLED = tokens_pb2.TraceContext(traceparent=f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-00")


@pytest.fixture
def exporter() -> Iterator[Any]:
    exporter = InMemorySpanExporter()
    exporter.provider = TracerProvider(shutdown_on_exit=False)
    exporter.provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.provider.shutdown()


async def test_each_block_has_a_span_under_the_round_it_was_drafted_for(exporter: Any) -> None:
    before = time.time_ns()
    tracer = exporter.provider.get_tracer("test")
    async with serving(tracer=tracer) as served, served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, [1, 2, 3, 1, 2], round=4, trace=SAMPLED)])
        await verifier.blocks()
        await verifier.update(commits=[commit(1, 5, num_agreed=3, round=5)])
        await verifier.blocks()
    first, second = exporter.get_finished_spans()
    for span, round_number, num_tokens in ((first, 4, 4), (second, 5, 3)):
        assert span.name == telemetry.SPAN_DRAFT
        assert span.context.trace_id == TRACE_ID
        assert span.parent.span_id == telemetry.round_span_id(SPAN_ID, round_number)
        assert dict(span.attributes) == {
            telemetry.DRAFT_TOKENS: num_tokens,
            telemetry.DRAFT_SOURCE: "prompt_lookup",
        }
    assert before <= first.start_time <= first.end_time <= second.start_time
    assert second.end_time <= time.time_ns()


@pytest.mark.parametrize(
    "trace", [UNSAMPLED, tokens_pb2.TraceContext(traceparent="nonsense"), None]
)
async def test_a_request_that_is_not_sampled_has_no_spans(exporter: Any, trace: Any) -> None:
    tracer = exporter.provider.get_tracer("test")
    async with serving(tracer=tracer) as served, served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, [1, 2, 3, 1, 2], trace=trace)])
        await verifier.blocks()
    assert exporter.get_finished_spans() == ()
