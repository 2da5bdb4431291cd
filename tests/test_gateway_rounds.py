"""Every round visible: reports to watchers, spans with derived ids, and nothing of the text."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from fakes import (
    DEADLINE_S,
    EOS,
    FIRST_ROUND_UNIX_NANOS,
    FakeVerifier,
    eventually,
    gateway_with,
    ids_of,
    round_of,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.rounds import WATCH_QUEUE, RoundHub, cut_round
from paceline import telemetry
from paceline.params import Violation
from paceline.round_sampler import RoundSampler
from paceline.rounds import PlainReason, RoundReport, SpeculationTotals
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import tokens_pb2

CANARY = "canary-7f3a"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"
TRACE_ID = int(PARENT[3:35], 16)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    provider = telemetry.set_up("test")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def asking(**fields: Any) -> pb.GenerateRequest:
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=CANARY)])
    return pb.GenerateRequest(chat=chat, **fields)


async def generate(stub: Any, traceparent: str = "", **fields: Any) -> list[Any]:
    metadata = [("traceparent", traceparent)] if traceparent else []
    async with asyncio.timeout(DEADLINE_S):
        return [r async for r in stub.Generate(asking(**fields), metadata=metadata)]


def named(exporter: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_an_answer_is_one_chat_span_with_a_child_for_every_round(provider, exporter):
    ids = [*ids_of(f"{CANARY} 😀"), EOS]
    fake = FakeVerifier([ids[:3], ids[3:4], ids[4:]])
    params = tokens_pb2.SamplingParams(temperature=0.5, top_p=0.9, top_k=7, max_tokens=99)
    async with gateway_with(fake, provider=provider) as stub:
        responses = await generate(stub, PARENT, params=params, seed=7, workload="coding")
    started, finished = responses[0].started, responses[-1].finished
    await eventually(lambda: bool(named(exporter, "chat tiny")))
    (chat,) = named(exporter, "chat tiny")
    assert chat.kind is SpanKind.SERVER
    assert chat.parent.span_id == int(PARENT[36:52], 16)
    assert chat.context.trace_id == TRACE_ID
    assert started.trace_id == f"{TRACE_ID:032x}"
    assert chat.status.status_code is StatusCode.UNSET
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "paceline",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.max_tokens": 99,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": started.id,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": finished.time_to_first_token_us / 1e6,
        "gen_ai.usage.input_tokens": started.num_prompt_tokens,
        "gen_ai.usage.output_tokens": len(ids),
        "gen_ai.usage.cache_read.input_tokens": 2,
        "paceline.workload": "coding",
        "paceline.rounds": 3,
        "paceline.drafted": finished.totals.num_drafted,
        "paceline.tested": finished.totals.num_tested,
        "paceline.accepted": finished.totals.num_accepted,
        "paceline.acceptance.rate": finished.totals.num_accepted / finished.totals.num_tested,
        "paceline.acceptance.mean_length": 1 + finished.totals.num_accepted / 2,
    }
    rounds = named(exporter, "paceline.round")
    assert [span.attributes["paceline.round.index"] for span in rounds] == [1, 2, 3]
    for number, span in enumerate(rounds, 1):
        assert span.parent.span_id == chat.context.span_id
        assert span.context.span_id == telemetry.round_span_id(chat.context.span_id, number)
        assert span.start_time == FIRST_ROUND_UNIX_NANOS + number * 1_000_000
        assert span.end_time == span.start_time + 1_000_000
    assert dict(rounds[0].attributes) == {
        "paceline.round.index": 1,
        "paceline.round.drafted": 4,
        "paceline.round.tested": 3,
        "paceline.round.accepted": 2,
        "paceline.round.output": 3,
        "paceline.round.source": "prompt_lookup",
        "paceline.round.draft_us": 0,
        "paceline.round.wait_us": 100,
        "paceline.round.verify_us": 900,
        "paceline.round.ledger_us": 0,
        "paceline.batch.sequences": 1,
        "paceline.batch.rows": 5,
    }
    (queue,), (prefill,) = named(exporter, "paceline.queue"), named(exporter, "paceline.prefill")
    assert queue.start_time == FIRST_ROUND_UNIX_NANOS
    assert queue.end_time == prefill.start_time == FIRST_ROUND_UNIX_NANOS + 50_000
    assert prefill.end_time == prefill.start_time + 450_000
    # Verifier and drafter derive the same ids from what they were sent.
    sent = telemetry.parse_context(fake.opens[0].trace.traceparent)
    assert (sent.trace_id, sent.span_id) == (TRACE_ID, chat.context.span_id)
    assert telemetry.is_sampled(sent)
    assert all(CANARY not in span.to_json() for span in exporter.get_finished_spans())


async def test_a_failed_answer_is_an_error_without_words(provider, exporter):
    fake = FakeVerifier()
    fake.refusal = Refusal.invalid([Violation("params.top_p", CANARY)])
    async with gateway_with(fake, provider=provider) as stub:
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(stub)
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(stub, model="other")
        await eventually(lambda: len(exporter.get_finished_spans()) == 2)
    invalid, missing = exporter.get_finished_spans()
    assert invalid.status.status_code is missing.status.status_code is StatusCode.ERROR
    assert invalid.attributes["error.type"] == "INVALID_ARGUMENT"
    assert missing.attributes["error.type"] == "NOT_FOUND"
    assert missing.name == "chat unknown"
    assert CANARY not in invalid.to_json()


async def test_a_cancelled_answer_ends_its_span(provider, exporter):
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with gateway_with(fake, provider=provider) as stub:
        call = stub.Generate(asking())
        await call.read()
        await call.read()
        call.cancel()
        await eventually(lambda: bool(named(exporter, "chat tiny")))
    (chat,) = named(exporter, "chat tiny")
    assert chat.attributes["error.type"] == "CANCELLED"


async def test_a_callers_decision_not_to_sample_is_respected_and_passed_on(provider, exporter):
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake, provider=provider) as stub:
        responses = await generate(stub, UNSAMPLED)
    assert exporter.get_finished_spans() == ()
    assert responses[0].started.trace_id == ""
    sent = telemetry.parse_context(fake.opens[0].trace.traceparent)
    assert sent.trace_id == TRACE_ID
    assert not telemetry.is_sampled(sent)


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_without_a_valid_parent_the_trace_begins_here(provider, exporter, traceparent):
    async with gateway_with(FakeVerifier([ids_of("a")]), provider=provider) as stub:
        await generate(stub, traceparent)
        await eventually(lambda: bool(named(exporter, "chat tiny")))
    assert named(exporter, "chat tiny")[0].parent is None


async def test_without_an_exporter_no_span_is_made_and_the_callers_trace_goes_on(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    provider = telemetry.set_up("test")

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a span was made")

    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", fail)
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake, provider=provider) as stub:
        await generate(stub, PARENT)
        responses = await generate(stub)
    assert fake.opens[0].trace.traceparent == PARENT
    assert fake.opens[1].trace.traceparent == ""
    assert responses[0].started.trace_id == ""


async def test_sampled_rounds_are_the_first_every_16th_and_the_odd_ones(provider, exporter):
    fake = FakeVerifier([[i] for i in ids_of("a" * 40)])
    async with gateway_with(fake, provider=provider, trace_rounds="sampled") as stub:
        responses = await generate(stub)
    indices = [s.attributes["paceline.round.index"] for s in named(exporter, "paceline.round")]
    assert indices == [*range(1, 9), 16, 32]
    assert responses[-1].finished.totals.num_rounds == 40
    (chat,) = named(exporter, "chat tiny")
    assert chat.attributes["paceline.rounds"] == 40


def picked(reports: list[RoundReport]) -> list[int]:
    sampler = RoundSampler()
    return [report.round for report in reports if sampler.picks(report)]


def steady(num_rounds: int) -> list[RoundReport]:
    return [round_of(number, 3) for number in range(1, num_rounds + 1)]


USUAL = [*range(1, 9), 16]


def test_odd_rounds_are_picked():
    assert picked(steady(31)) == USUAL
    plain = replace(round_of(12, 1), plain_reason=PlainReason.NO_DRAFTER)
    lost = [*steady(11), plain, replace(plain, round=13)]
    assert picked(lost) == [*range(1, 9), 12]
    rejected = replace(round_of(12, 3), num_accepted=0, num_tested=1, num_output=1)
    assert picked([*steady(11), rejected, replace(rejected, round=13)]) == [*range(1, 9), 12]
    slow = replace(round_of(25, 3), verify_us=5000)
    assert picked([*steady(24), slow, *[round_of(n, 3) for n in range(26, 32)]]) == [*USUAL, 25]
    unpaid = replace(round_of(12, 1), plain_reason=PlainReason.NOT_WORTH)
    assert picked([*steady(11), unpaid]) == [*range(1, 9)]


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 2, 3)), (9, (3, 2, 3))]
)
def test_a_cut_round_counts_what_was_delivered(num_tokens, expected):
    cut = cut_round(round_of(1, 3), num_tokens)
    assert (cut.num_output, cut.num_accepted, cut.num_tested) == expected
    assert cut.num_drafted == round_of(1, 3).num_drafted
    totals = SpeculationTotals()
    totals.add_round(cut)
    assert sum(totals.accepted_by_position) == cut.num_accepted


async def test_watchers_see_the_rounds_of_all_answers_or_of_one():
    fake = FakeVerifier([ids_of("a"), ids_of("bc"), ids_of("d")])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        everything = stub.WatchRounds(pb.WatchRoundsRequest())
        await everything.initial_metadata()
        call = stub.Generate(asking(workload="coding"))
        answer_id = (await call.read()).started.id
        await call.read()
        one = stub.WatchRounds(pb.WatchRoundsRequest(id=answer_id))
        await one.initial_metadata()
        fake.released.set()
        while await call.read() is not grpc.aio.EOF:
            pass
        await generate(stub)
        async with asyncio.timeout(DEADLINE_S):
            # The watch of one answer ends with it.
            seen_of_one = [seen async for seen in one]
            seen_of_all = [await everything.read() for _ in range(6)]
        everything.cancel()
    assert [(seen.id, seen.round.round) for seen in seen_of_one] == [(answer_id, 2), (answer_id, 3)]
    assert [seen.round.round for seen in seen_of_all] == [1, 2, 3, 1, 2, 3]
    assert len({seen.id for seen in seen_of_all}) == 2
    assert [seen.workload for seen in seen_of_all] == ["coding"] * 3 + [""] * 3
    assert seen_of_all[1].round.num_output == 2
    assert {seen.num_missed for seen in seen_of_all} == {0}


async def test_a_watcher_of_one_answer_sees_no_other():
    hub = RoundHub()
    with hub.running("a"), hub.running("b"), hub.watch("a") as watcher:
        for answer_id in ("b", "a", "b"):
            hub.publish(answer_id, "", round_of(1, 1))
        with hub.running("c"):
            pass
        hub.close()
        assert (await watcher.next()).id == "a"
        assert await watcher.next() is None


async def test_an_answer_that_does_not_run_cannot_be_watched():
    async with gateway_with(FakeVerifier([ids_of("a")])) as stub:
        answer_id = (await generate(stub))[0].started.id
        for unknown in ("0" * 32, answer_id):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.WatchRounds(pb.WatchRoundsRequest(id=unknown)).read()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_slow_watcher_misses_rounds_and_is_told_and_delays_nobody():
    hub = RoundHub()
    with hub.running("a"), hub.watch() as slow:
        for number in range(1, WATCH_QUEUE + 11):
            hub.publish("a", "", round_of(number, 1))
        first = await slow.next()
        assert (first.round.round, first.num_missed) == (1, 10)
        hub.publish("a", "", round_of(999, 1))
        rest = [await slow.next() for _ in range(WATCH_QUEUE)]
        assert [seen.round.round for seen in rest] == [*range(2, WATCH_QUEUE + 1), 999]
        assert rest[-1].num_missed == 10


async def test_the_end_of_an_answer_reaches_a_watcher_whose_queue_is_full():
    hub = RoundHub()
    with hub.running("a"):
        with hub.watch("a") as watcher:
            for number in range(1, WATCH_QUEUE + 11):
                hub.publish("a", "", round_of(number, 1))
            hub.close()
            hub.close()
            seen = [await watcher.next() for _ in range(WATCH_QUEUE + 1)]
        assert seen[-1] is None
        assert seen[-2].round.round == WATCH_QUEUE


async def test_a_watcher_gone_is_forgotten():
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake) as stub:
        call = stub.WatchRounds(pb.WatchRoundsRequest())
        await call.initial_metadata()
        call.cancel()
        assert (await generate(stub))[-1].finished.totals.num_rounds == 1
