"""Several answers to one request: seeds, indices, and that they live and die together."""

import asyncio
from typing import Any

import grpc
import pytest
from fakes import DEADLINE_S, EOS, FakeVerifier, digest_of, eventually, gateway_with, ids_of
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline import telemetry
from paceline.noise import derived_seed
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb

IDS = [*ids_of("hello"), *ids_of(", world"), EOS]


def asking(**fields: Any) -> pb.GenerateRequest:
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hello")])
    return pb.GenerateRequest(chat=chat, **fields)


async def answers(stub: Any, request: pb.GenerateRequest) -> dict[int, list[Any]]:
    """Every response, by the index of its answer."""
    by_index: dict[int, list[Any]] = {}
    async with asyncio.timeout(DEADLINE_S):
        async for response in stub.Generate(request):
            by_index.setdefault(response.index, []).append(response)
    return by_index


async def test_every_answer_is_complete_and_has_a_derived_seed():
    fake = FakeVerifier([IDS[:2], IDS[2:4], IDS[4:]])
    async with gateway_with(fake) as stub:
        given = await answers(stub, asking(n=3, seed=7))
    assert sorted(given) == [0, 1, 2]
    for index, responses in given.items():
        kinds = [response.WhichOneof("response") for response in responses]
        assert kinds == ["started", "delta", "delta", "delta", "finished"]
        assert responses[0].started.seed == derived_seed(7, index)
        assert responses[-1].finished.digest == digest_of(IDS)
    assert derived_seed(7, 0) == 7
    assert sorted(o.seed for o in fake.opens) == sorted(derived_seed(7, i) for i in range(3))
    assert len({tuple(o.token_ids) for o in fake.opens}) == 1
    assert len({responses[0].started.id for responses in given.values()}) == 3


async def test_answers_arrive_together_and_not_one_after_the_other():
    fake = FakeVerifier([IDS[:2], IDS[2:]])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        call = stub.Generate(asking(n=4))
        begun = [await call.read() for _ in range(8)]
        assert {r.index for r in begun if r.WhichOneof("response") == "delta"} == {0, 1, 2, 3}
        fake.released.set()
        rest = []
        while (response := await call.read()) is not grpc.aio.EOF:
            rest.append(response)
        finished = [r.index for r in rest if r.WhichOneof("response") == "finished"]
        assert sorted(finished) == [0, 1, 2, 3]


async def test_seeds_are_drawn_once_when_none_is_given():
    fake = FakeVerifier([IDS])
    async with gateway_with(fake) as stub:
        given = await answers(stub, asking(n=2))
        again = await answers(stub, asking(n=2))
    first = given[0][0].started.seed
    assert given[1][0].started.seed == derived_seed(first, 1)
    assert again[0][0].started.seed != first


@pytest.mark.parametrize("n", [0, 1])
async def test_no_number_and_one_are_one_answer_with_the_seed_itself(n):
    fake = FakeVerifier([IDS])
    async with gateway_with(fake) as stub:
        given = await answers(stub, asking(n=n, seed=2**64 - 1))
    assert list(given) == [0]
    assert [opening.seed for opening in fake.opens] == [2**64 - 1]


async def test_more_than_eight_are_refused_by_name():
    fake = FakeVerifier([IDS])
    async with gateway_with(fake) as stub:
        assert len(await answers(stub, asking(n=8))) == 8
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers(stub, asking(n=9))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = Refusal.from_rpc_error(caught.value).violations
    assert (violation.field, violation.description) == ("n", "at most 8, is 9")
    assert len(fake.opens) == 8


async def test_each_answer_takes_a_place():
    fake = FakeVerifier([IDS])
    async with gateway_with(fake, max_requests=3) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers(stub, asking(n=4))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await answers(stub, asking(n=3))) == 3


class ThirdRefused(FakeVerifier):
    """Refuses the third sequence; the others are under way by then, or soon."""

    @property
    def refusal(self) -> Refusal | None:
        full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_s=2)
        return full if len(self.opens) == 3 else None

    @refusal.setter
    def refusal(self, _: Refusal | None) -> None:
        pass


async def test_one_that_fails_ends_them_all():
    fake = ThirdRefused([IDS[:2], IDS[2:]])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers(stub, asking(n=3))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert Refusal.from_rpc_error(caught.value).retry_after_s == 2
        await eventually(lambda: len(fake.endings) == len(fake.opens) == 3)
        assert fake.endings.count("refused") == 1
        assert set(fake.endings) <= {"refused", "end", "gone"}
        fake.pause_before = None
        assert len(await answers(stub, asking(n=2))) == 2


async def test_a_cancelled_call_ends_them_all():
    fake = FakeVerifier([IDS[:2], IDS[2:]])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        call = stub.Generate(asking(n=4))
        for _ in range(8):
            await call.read()
        call.cancel()
        await eventually(lambda: len(fake.endings) == 4)
        assert set(fake.endings) <= {"end", "gone"}


async def test_a_refused_prompt_is_refused_before_any_sequence_is_opened():
    fake = FakeVerifier([IDS])
    request = pb.GenerateRequest(n=2, text="x", model="other")
    async with gateway_with(fake) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answers(stub, request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert fake.opens == []


async def test_each_answer_is_a_span_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    exporter = InMemorySpanExporter()
    provider = telemetry.set_up("test")
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def chats() -> list[Any]:
        return [s for s in exporter.get_finished_spans() if s.name == "chat tiny"]

    async with gateway_with(FakeVerifier([IDS]), provider=provider) as stub:
        given = await answers(stub, asking(n=3))
        await eventually(lambda: len(chats()) == 3)
    assert {s.attributes[telemetry.GEN_AI_RESPONSE_ID] for s in chats()} == {
        responses[0].started.id for responses in given.values()
    }
    assert all(telemetry.ERROR_TYPE not in s.attributes for s in chats())
