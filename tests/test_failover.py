"""Failover: a verifier dies, freezes or drains in mid-answer, and the client sees one stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from fakes import (
    DEADLINE_S,
    FakeVerifier,
    digest_of,
    eventually,
    gateway_for,
    ids_of,
    served,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb

ROUNDS = [ids_of(word) for word in ("hello", " wor", "ld, ", "日", "本", " and", " on")]
IDS = [token_id for round_ids in ROUNDS for token_id in round_ids]
TEXT = "hello world, 日本 and on"


@contextlib.asynccontextmanager
async def two(**settings: Any) -> AsyncIterator[tuple[Any, Any, list[FakeVerifier]]]:
    """(gateway, stub, fakes) with both fakes ready; the first one gets the first answer."""
    fakes = [FakeVerifier(ROUNDS), FakeVerifier(ROUNDS)]
    async with (
        served(fakes[0]) as (first, _),
        served(fakes[1]) as (second, _),
        gateway_for(first, second, **settings) as (gateway, stub),
    ):
        await eventually(lambda: all(v.is_ready for v in gateway.verifiers.all))
        yield gateway, stub, fakes


async def whole(stub: Any, **fields: Any) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        return [r async for r in stub.Generate(pb.GenerateRequest(text="a", **fields))]


async def refusal_of(stub: Any, **fields: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await whole(stub, **fields)
    return Refusal.from_rpc_error(caught.value)


def assert_unbroken(responses: list[Any], num_failovers: int) -> None:
    kinds = [response.WhichOneof("response") for response in responses]
    assert kinds == ["started", *["delta"] * (len(kinds) - 2), "finished"]
    deltas = [response.delta for response in responses[1:-1]]
    finished = responses[-1].finished
    assert [i for delta in deltas for i in delta.token_ids] == IDS
    assert "".join(delta.text for delta in deltas) == TEXT
    assert finished.digest == digest_of(IDS)
    assert finished.usage.num_completion_tokens == len(IDS)
    assert finished.num_failovers == num_failovers
    rounds = [delta.round for delta in deltas if delta.HasField("round")]
    assert [r.round for r in rounds] == list(range(1, len(rounds) + 1))
    assert finished.totals.num_rounds == len(rounds)
    assert finished.totals.num_accepted == sum(r.num_accepted for r in rounds)


@pytest.mark.parametrize("dies_before", range(1, len(ROUNDS) + 1))
async def test_a_death_before_any_round_leaves_one_unbroken_answer(dies_before: int):
    async with two() as (_, stub, fakes):
        fakes[0].dies_before = dies_before
        responses = await whole(stub, seed=7)
        assert_unbroken(responses, num_failovers=1)
        had = sum(len(ids) for ids in ROUNDS[: dies_before - 1])
        again = fakes[1].opens[0]
        assert list(again.generated_token_ids) == IDS[:had]
        assert (again.seed, again.num_rounds) == (7, dies_before - 1)
        assert list(again.token_ids) == list(fakes[0].opens[0].token_ids)


async def test_a_death_after_the_last_token_asks_for_the_end_alone():
    async with two() as (_, stub, fakes):
        fakes[0].with_final = False
        assert_unbroken(await whole(stub), num_failovers=1)
        assert list(fakes[1].opens[0].generated_token_ids) == IDS


async def test_a_request_that_brought_down_two_verifiers_is_not_tried_again():
    async with two(failover_wait_s=5.0) as (_, stub, fakes):
        for fake in fakes:
            fake.dies_before = 3
        refusal = await refusal_of(stub)
        assert refusal.code is grpc.StatusCode.ABORTED
        assert "two" in refusal.message or "2 verifiers" in refusal.message
        assert [len(fake.opens) for fake in fakes] == [1, 1]


async def test_two_verifiers_that_drain_are_nobodys_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.failover.AVOID_S", 0.05)
    async with two(failover_wait_s=5.0) as (_, stub, fakes):
        fakes[0].refusal = Refusal(grpc.StatusCode.UNAVAILABLE, "draining")
        fakes[1].refusal = Refusal(grpc.StatusCode.UNAVAILABLE, "draining")
        answer = asyncio.create_task(whole(stub))
        await eventually(lambda: sum(len(fake.opens) for fake in fakes) >= 3)
        fakes[0].refusal = None
        fakes[1].refusal = None
        responses = await answer
        assert responses[-1].finished.num_failovers >= 3
        assert [i for r in responses for i in r.delta.token_ids] == IDS


async def test_an_answer_goes_on_at_the_same_verifier_once_it_is_back():
    fake = FakeVerifier(ROUNDS)
    fake.pause_before = 4
    async with served(fake) as (address, service):
        port = int(address.rpartition(":")[2])
        async with gateway_for(address, failover_wait_s=DEADLINE_S) as (gateway, stub):
            await gateway.wait_ready()
            answer = asyncio.create_task(whole(stub))
            await eventually(lambda: len(fake.opens) == 1 and gateway.verifiers.all[0].num_live)
            await service.server.stop(0)
            await gateway.verifiers.wait_lost()
            fake.pause_before = None
            async with served(fake, port):
                assert_unbroken(await answer, num_failovers=1)


async def test_without_another_verifier_the_answer_fails_in_the_time_it_may_wait():
    fake = FakeVerifier(ROUNDS)
    fake.dies_before = 2
    async with (
        served(fake) as (address, _),
        gateway_for(address, failover_wait_s=0.05) as (gateway, stub),
    ):
        await gateway.wait_ready()
        refusal = await refusal_of(stub)
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert refusal.retry_after_s


async def test_a_frozen_verifier_is_noticed_and_what_it_says_later_is_not_read():
    async with two() as (gateway, stub, fakes):
        fakes[0].pause_before = 4
        answer = asyncio.create_task(whole(stub))
        await eventually(lambda: len(fakes[0].opens) == 1)
        fakes[0].freezes = True
        loop = asyncio.get_running_loop()
        started = loop.time()
        responses = await answer
        assert loop.time() - started < 3.0
        assert_unbroken(responses, num_failovers=1)
        assert not gateway.verifiers.all[0].is_ready
        # It comes to life: what it still sends goes nowhere, and it serves again.
        fakes[0].released.set()
        fakes[0].freezes = False
        await eventually(lambda: gateway.verifiers.all[0].is_ready)
        await eventually(lambda: all(v.num_live == 0 for v in gateway.verifiers.all))


async def test_a_verifier_that_answers_but_takes_no_step_is_left():
    async with two(stall_s=0.3) as (gateway, stub, fakes):
        fakes[0].pause_before = 4
        fakes[0].is_stuck = True
        assert_unbroken(await whole(stub), num_failovers=1)
        assert not gateway.verifiers.all[0].is_ready


async def test_a_full_queue_sends_the_request_to_another_verifier():
    async with two() as (_, stub, fakes):
        fakes[0].refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "64 requests are waiting")
        assert_unbroken(await whole(stub), num_failovers=0)
        fakes[1].refusal = fakes[0].refusal
        assert (await refusal_of(stub)).code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_answer_under_way_waits_for_a_place_where_all_queues_are_full(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("gateway.failover.AVOID_S", 0.05)
    async with two(failover_wait_s=DEADLINE_S) as (_, stub, fakes):
        fakes[0].dies_before = 3
        fakes[1].refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "64 requests are waiting")
        answer = asyncio.create_task(whole(stub))
        await eventually(lambda: len(fakes[1].opens) >= 1)
        fakes[1].refusal = None
        fakes[0].dies_before = None
        assert_unbroken(await answer, num_failovers=1)


async def test_an_answer_never_goes_on_with_another_model():
    async with two() as (gateway, stub, fakes):
        fakes[0].dies_before = 3
        other = gateway.verifiers.all[1]
        other.model = type(other.model)(
            *[
                "another" if name == "model_fingerprint" else getattr(other.model, name)
                for name in other.model.__slots__
            ]
        )
        assert (await refusal_of(stub)).code is grpc.StatusCode.UNAVAILABLE
        assert fakes[1].opens == []


async def test_the_seam_is_an_event_of_the_chat_span():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with two(provider=provider) as (_, stub, fakes):
        fakes[0].dies_before = 3
        await whole(stub)
    chat = next(s for s in exporter.get_finished_spans() if s.name.startswith("chat"))
    (event,) = [event for event in chat.events if event.name == "paceline.failover"]
    assert event.attributes == {
        "paceline.failover.cause": "died",
        "paceline.failover.tokens": len(ROUNDS[0] + ROUNDS[1]),
    }


async def test_a_caller_goes_on_at_another_gateway_with_the_tokens_it_has():
    async with two() as (_, stub, fakes):
        first = await whole(stub, seed=9)
        fingerprint = first[0].started.model_fingerprint
        for num_had in range(1, len(first) - 1):
            had = [i for r in first[1 : 1 + num_had] for i in r.delta.token_ids]
            rest = await whole(stub, seed=9, generated_token_ids=had, model_fingerprint=fingerprint)
            text = "".join(r.delta.text for r in first[1 : 1 + num_had])
            assert text + "".join(r.delta.text for r in rest) == TEXT
            assert had + [i for r in rest for i in r.delta.token_ids] == IDS
            assert rest[-1].finished.digest == first[-1].finished.digest
            assert rest[-1].finished.usage.num_completion_tokens == len(IDS)
        assert fakes[0].opens[0].seed == 9


async def test_what_a_resuming_caller_may_not_ask_for():
    async with two() as (_, stub, _):
        had = {"generated_token_ids": IDS[:2]}
        assert "seed" in (await refusal_of(stub, **had)).message
        assert "n:" in (await refusal_of(stub, seed=1, n=2, **had)).message
        refusal = await refusal_of(stub, seed=1, model_fingerprint="x", **had)
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        for fields in (
            {"stop": ["he"], **had},
            {"generated_token_ids": [2**32 - 1]},
            {"params": {"max_tokens": 1}, **had},
        ):
            refusal = await refusal_of(stub, seed=1, **fields)
            assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
            assert "generated_token_ids" in refusal.message


async def test_an_answer_that_had_ended_with_a_stop_string_gets_its_end():
    async with two() as (_, stub, fakes):
        first = await whole(stub, seed=1, stop=[" wor"])
        had = [i for r in first for i in r.delta.token_ids]
        opens = len(fakes[0].opens) + len(fakes[1].opens)
        started, finished = await whole(stub, seed=1, stop=[" wor"], generated_token_ids=had)
        assert started.WhichOneof("response") == "started"
        assert finished.finished.stop == " wor"
        assert finished.finished.digest == first[-1].finished.digest
        assert len(fakes[0].opens) + len(fakes[1].opens) == opens
