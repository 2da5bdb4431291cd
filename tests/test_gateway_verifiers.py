"""Verifiers: found, lost and found again; and where a sequence goes."""

import asyncio
import socket
from typing import Any

import grpc
import pytest
from fakes import (
    DEADLINE_S,
    FakeVerifier,
    eventually,
    gateway_for,
    gateway_with,
    ids_of,
    served,
    tokenizer_files,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.gateway import SERVICE_NAME
from paceline.server import Refusal, open_channel
from paceline.v1 import gateway_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def refusal_of(stub: Any, **fields: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Generate(pb.GenerateRequest(text="a", **fields)):
            pass
    return Refusal.from_rpc_error(caught.value)


async def text_of(stub: Any, **fields: Any) -> str:
    async with asyncio.timeout(DEADLINE_S):
        responses = [r async for r in stub.Generate(pb.GenerateRequest(text="a", **fields))]
    return "".join(response.delta.text for response in responses)


async def models_of(stub: Any) -> list[str]:
    return [m.name for m in (await stub.ListModels(pb.ListModelsRequest())).models]


async def test_a_request_waits_a_moment_for_a_verifier_that_is_about_to_come():
    port = free_port()
    async with gateway_for(f"127.0.0.1:{port}") as (_, stub):
        asked = asyncio.create_task(text_of(stub))
        await asyncio.sleep(0.05)
        async with served(FakeVerifier([ids_of("a")]), port):
            assert await asked == "a"


async def test_a_verifier_that_starts_later_is_found_and_a_lost_one_found_again():
    port = free_port()
    async with gateway_for(f"127.0.0.1:{port}") as (gateway, stub):
        refusal = await refusal_of(stub)
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        assert refusal.message == "no verifier is ready"
        assert refusal.retry_after_s
        async with asyncio.timeout(DEADLINE_S):
            async with served(FakeVerifier([ids_of("a")]), port):
                await gateway.wait_ready()
                assert await text_of(stub) == "a"
            await gateway.verifiers.wait_lost()
            assert (await refusal_of(stub, model="tiny")).code is grpc.StatusCode.UNAVAILABLE
            # What comes back may be another model with another tokenizer.
            other = FakeVerifier([ids_of("b")], name="other")
            other.files = tokenizer_files("{{ messages[0].content }}!")
            async with served(other, port):
                await gateway.wait_ready()
                assert await models_of(stub) == ["other"]
                chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hello")])
                async for _ in stub.Generate(pb.GenerateRequest(chat=chat)):
                    pass
                assert list(other.opens[0].token_ids) == ids_of("hello!")


async def test_the_gateway_serves_by_healths_word_while_a_verifier_does():
    async with (
        served(FakeVerifier()) as (address, service),
        gateway_for(address) as (gateway, _),
        open_channel(gateway.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        )
        async with asyncio.timeout(DEADLINE_S):
            while (await watch.read()).status != SERVING:
                pass
            # A draining verifier gets nothing new.
            await service.set_serving(False)
            assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


async def test_a_verifier_with_unusable_files_is_not_ready(caplog):
    fake = FakeVerifier()
    fake.files = {"tokenizer.json": b"{}"}
    async with served(fake) as (address, _), gateway_for(address) as (_, stub):
        await eventually(lambda: "unusable tokenizer files" in caplog.text)
        assert (await refusal_of(stub)).code is grpc.StatusCode.UNAVAILABLE
        assert await models_of(stub) == []


async def test_a_model_nobody_serves_is_not_found_and_not_repeated():
    async with gateway_with(FakeVerifier()) as stub:
        refusal = await refusal_of(stub, model="secret-model")
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert "secret-model" not in refusal.message


async def test_models_are_listed_once_and_requests_go_where_they_are_served():
    fakes = [FakeVerifier([ids_of(t)], name=n) for t, n in (("a", "x"), ("b", "y"), ("c", "x"))]
    async with (
        served(fakes[0]) as (first, _),
        served(fakes[1]) as (second, _),
        served(fakes[2]) as (third, _),
        gateway_for(first, second, third) as (gateway, stub),
    ):
        await eventually(lambda: all(v.is_ready for v in gateway.verifiers.all))
        response = await stub.ListModels(pb.ListModelsRequest())
        assert [m.name for m in response.models] == ["x", "y"]
        assert (response.models[0].max_context, response.models[0].numerics) == (4096, "exact")
        assert await text_of(stub, model="y") == "b"
        assert await text_of(stub) == "a"


async def test_a_sequence_goes_to_the_verifier_with_the_fewest():
    fakes = [FakeVerifier([ids_of("a"), ids_of("b")]) for _ in range(2)]
    for fake in fakes:
        fake.pause_before = 2
    async with (
        served(fakes[0]) as (first, _),
        served(fakes[1]) as (second, _),
        gateway_for(first, second) as (gateway, stub),
    ):
        await eventually(lambda: all(v.is_ready for v in gateway.verifiers.all))
        calls = []
        for _ in range(4):
            calls.append(stub.Generate(pb.GenerateRequest(text="a")))
            await calls[-1].read()
            await calls[-1].read()
        assert [len(fake.opens) for fake in fakes] == [2, 2]
        assert [v.num_live for v in gateway.verifiers.all] == [2, 2]
        for call in calls:
            call.cancel()
        await eventually(lambda: all(v.num_live == 0 for v in gateway.verifiers.all))


async def test_a_verifier_lost_amid_many_answers_fails_each_once():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with served(fake) as (address, service), gateway_for(address) as (gateway, stub):
        await gateway.wait_ready()
        calls = [stub.Generate(pb.GenerateRequest(text="a")) for _ in range(8)]
        for call in calls:
            await call.read()
        await service.server.stop(0)
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: gateway.verifiers.all[0].num_live == 0)
