"""The client library: a gateway that is lost in mid-answer costs no token."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from fakes import DEADLINE_S, FakeVerifier, digest_of, eventually, gateway_for, ids_of, served

from gateway.gateway import Gateway
from paceline.client import GatewayClient
from paceline.client_errors import Unreachable
from paceline.events import Delta, Event, Finished, Request, Started
from paceline.resume import ResumableAnswer
from paceline.server import Refusal
from paceline.sync_client import SyncGatewayClient

ROUNDS = [ids_of(word) for word in ("hello", " wor", "ld, ", "日", "本", " end")]
IDS = [token_id for round_ids in ROUNDS for token_id in round_ids]
NOBODY = "127.0.0.1:1"


@contextlib.asynccontextmanager
async def two_gateways() -> AsyncIterator[tuple[FakeVerifier, list[Gateway]]]:
    fake = FakeVerifier(ROUNDS)
    async with (
        served(fake) as (address, _),
        gateway_for(address) as (first, _),
        gateway_for(address) as (second, _),
    ):
        await first.wait_ready()
        await second.wait_ready()
        yield fake, [first, second]


def tokens_of(events: list[Event]) -> list[int]:
    return [i for event in events if isinstance(event, Delta) for i in event.token_ids]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


@pytest.mark.parametrize("pause_before", range(2, len(ROUNDS) + 1))
async def test_an_answer_goes_on_at_another_gateway(pause_before: int):
    async with two_gateways() as (fake, gateways):
        fake.pause_before = pause_before
        events: list[Any] = []
        async with GatewayClient(*(g.address for g in gateways)) as client:
            async with asyncio.timeout(DEADLINE_S):
                async for event in client.generate(Request("a")):
                    events.append(event)
                    if len(events) == pause_before:
                        fake.pause_before = None
                        await gateways[0].service.server.stop(0)
            assert client.address == gateways[1].address
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Started) for event in events) == 1
    assert tokens_of(events) == IDS
    assert text_of(events) == "hello world, 日本 end"
    finished = events[-1]
    assert finished.digest == digest_of(IDS)
    assert finished.num_failovers == 1
    rounds = [event.round for event in events if isinstance(event, Delta) and event.round]
    assert [r.round for r in rounds] == list(range(1, len(rounds) + 1))
    assert finished.totals.num_rounds == len(rounds)
    assert finished.totals.num_accepted == sum(r.num_accepted for r in rounds)
    assert fake.opens[1].seed == fake.opens[0].seed == events[0].seed


async def test_calls_at_the_same_time_move_on_once():
    async with (
        two_gateways() as (_, gateways),
        GatewayClient(*(g.address for g in gateways)) as client,
    ):
        await gateways[0].drain()

        async def ask() -> list[Event]:
            return [event async for event in client.generate(Request("a"))]

        async with asyncio.timeout(DEADLINE_S):
            answers = await asyncio.gather(*(ask() for _ in range(4)))
        assert client.address == gateways[1].address
    assert [tokens_of(events) for events in answers] == [IDS] * 4


async def test_the_first_gateway_that_is_there_answers():
    async with (
        two_gateways() as (_, gateways),
        GatewayClient(NOBODY, gateways[0].address) as client,
    ):
        assert [m.name for m in await client.list_models()] == ["tiny"]
        events = [event async for event in client.generate(Request("a"))]
        assert tokens_of(events) == IDS
    async with GatewayClient(NOBODY, NOBODY) as client:
        with pytest.raises(Unreachable):
            await client.list_models()
        with pytest.raises(Unreachable):
            await anext(client.generate(Request("a")))


async def test_an_answer_that_cannot_go_on_fails_in_the_time_it_may_take():
    async with two_gateways() as (fake, gateways):
        fake.pause_before = 2
        async with GatewayClient(gateways[0].address, NOBODY, resume_s=0.2) as client:
            events = client.generate(Request("a"))
            await anext(events)
            await anext(events)
            await gateways[0].service.server.stop(0)
            with pytest.raises(Unreachable):
                async with asyncio.timeout(DEADLINE_S):
                    await anext(events)


async def test_closing_the_iterator_ends_the_sequence():
    async with two_gateways() as (fake, gateways):
        fake.pause_before = 2
        async with GatewayClient(gateways[0].address) as client:
            events = client.generate(Request("a"))
            await anext(events)
            await events.aclose()
            await eventually(lambda: fake.endings in (["end"], ["gone"]))


async def test_without_an_event_loop():
    async with two_gateways() as (fake, gateways):

        def ask() -> list[Event]:
            with SyncGatewayClient(NOBODY, *(g.address for g in gateways)) as client:
                assert [m.name for m in client.list_models()] == ["tiny"]
                partly = client.generate(Request("a"))
                next(partly)
                partly.close()
                return list(client.generate(Request("a")))

        assert tokens_of(await asyncio.to_thread(ask)) == IDS
        assert len(fake.opens) == 2


def test_tokens_that_differ_from_the_digest_are_never_taken_for_the_answer():
    answer = ResumableAnswer(Request("a"), lambda: 0.0)
    answer.request()
    answer.take(Started("id", "m", 1, 1, ""))
    answer.take(Delta("x", [1, 2], (), None, None))
    finished = Finished(1, 1, 0, 2, None, 0, 0, digest_of([1, 3]), "")
    with pytest.raises(Refusal) as refused:
        answer.take(finished)
    assert refused.value.code is grpc.StatusCode.DATA_LOSS


def test_what_was_held_back_is_given_once():
    answer = ResumableAnswer(Request("a", timeout_ms=500), lambda: 0.0)
    answer.request()
    answer.take(Started("id", "m", 1, 1, "", "print"))
    answer.take(Delta("x", [1], (), None, None))
    rest = Delta("y", [], (), None, None)
    assert answer.take(rest) == rest
    again = answer.request()
    assert (again.seed, again.generated_token_ids, again.model_fingerprint) == (1, (1,), "print")
    assert answer.take(Started("id2", "m", 1, 1, "", "print")) is None
    assert answer.take(rest) is None
