"""Chat through a real server: a conversation's turns, its session, and what ends it."""

import asyncio
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
    tiny_tokenizer,
)

from gateway import servicer, sessions
from paceline.params import Violation
from paceline.server import Refusal
from paceline.v1 import drafter_pb2, tokens_pb2
from paceline.v1 import gateway_pb2 as pb

END = pb.ChatRequest(end=drafter_pb2.EndOfStream())


def opening(**fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(open=pb.OpenChat(**fields))


def turn(content: str, **fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(turn=pb.Turn(content=content, **fields))


async def read(call: Any) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        return await call.read()


async def open_chat(stub: Any, **fields: Any) -> tuple[Any, Any]:
    """(call, session)"""
    call = stub.Chat()
    await call.write(opening(**fields))
    return call, (await read(call)).session


async def answered(call: Any) -> tuple[str, Any]:
    """(text, finished) of the next answer on the stream."""
    assert (await read(call)).WhichOneof("response") == "started"
    text = ""
    while (response := await read(call)).WhichOneof("response") == "delta":
        text += response.delta.text
    return text, response.finished


async def ask(call: Any, content: str, **fields: Any) -> tuple[str, Any]:
    await call.write(turn(content, **fields))
    return await answered(call)


async def status_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await read(call) is not grpc.aio.EOF:
            pass
    return caught.value


async def session_of(stub: Any, session_id: str) -> Any:
    return (await stub.GetSession(pb.GetSessionRequest(session_id=session_id))).session


def messages_of(session: Any) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in session.messages]


def prompt_of(fake: FakeVerifier, index: int = -1) -> str:
    return tiny_tokenizer().decode(list(fake.opens[index].token_ids), skip_special_tokens=False)


async def test_turns_follow_each_other_and_each_sees_those_before():
    fake = FakeVerifier([ids_of("hello"), ids_of(" w")])
    async with gateway_with(fake) as stub:
        call, session = await open_chat(stub, system="brief")
        assert (session.model, session.num_turns) == ("tiny", 0)
        assert messages_of(session) == [("system", "brief")]
        assert (await ask(call, "one"))[0] == "hello w"
        text, finished = await ask(call, "two")
        await call.write(END)
        assert await read(call) is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        kept = await session_of(stub, session.session_id)
    assert text == "hello w"
    parts = [("system", "brief"), ("user", "one"), ("assistant", "hello w"), ("user", "two")]
    rendered = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in parts)
    assert prompt_of(fake) == rendered + "<|im_start|>assistant\n"
    assert messages_of(kept) == [*parts, ("assistant", "hello w")]
    assert kept.num_turns == 2
    usage = finished.usage
    assert kept.num_tokens == usage.num_prompt_tokens + usage.num_completion_tokens
    assert 0 < kept.expires_in_s <= 1800


@pytest.mark.parametrize("with_end", [True, False], ids=["end", "half-close"])
async def test_a_client_that_says_it_all_at_once_gets_every_answer(with_end):
    async with gateway_with(FakeVerifier([ids_of("hello")])) as stub:
        call = stub.Chat()
        for message in (opening(), turn("one"), turn("two"), *([END] if with_end else [])):
            await call.write(message)
        await call.done_writing()
        session_id = (await read(call)).session.session_id
        for _ in range(2):
            assert (await answered(call))[0] == "hello"
        assert await read(call) is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert (await session_of(stub, session_id)).num_turns == 2


async def test_a_session_goes_on_in_another_stream():
    fake = FakeVerifier([ids_of("hello, w")])
    defaults = {
        "params": tokens_pb2.SamplingParams(temperature=0.5),
        "stop": [","],
        "draft": tokens_pb2.DraftPolicy(speculation=tokens_pb2.SPECULATION_OFF),
        "workload": "support",
    }
    async with gateway_with(fake) as stub:
        call, session = await open_chat(stub, **defaults)
        await ask(call, "one")
        await call.write(END)
        call, resumed = await open_chat(stub, session_id=session.session_id)
        assert resumed.num_turns == 1
        assert messages_of(resumed) == [("user", "one"), ("assistant", "hello")]
        text, finished = await ask(call, "two")
        assert (text, finished.stop) == ("hello", ",")
        await ask(call, "three", params=tokens_pb2.SamplingParams(temperature=2), seed=5)
        call.cancel()
    assert [o.params.temperature for o in fake.opens] == [0.5, 0.5, 2]
    assert [o.workload for o in fake.opens] == ["support"] * 3
    assert fake.opens[1].draft.speculation == tokens_pb2.SPECULATION_OFF
    assert fake.opens[2].seed == 5


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([turn("hi")], "open"),
        ([END], "open"),
        ([pb.ChatRequest()], "open"),
        ([opening(), opening()], "open"),
        ([opening(), pb.ChatRequest()], "request"),
        ([opening(), turn("")], "turn.content"),
        ([opening(), turn("a" * (2**20 + 1))], "turn.content"),
        ([opening(), turn("a", request_id="r" * 257)], "turn.request_id"),
        ([opening(), turn("a", params=tokens_pb2.SamplingParams(mode=9))], "params.mode"),
        ([opening(session_id="0" * 32, system="s")], "open.system"),
        ([opening(system="a" * (2**20 + 1))], "open.system"),
        ([opening(stop=[""])], "stop[0]"),
    ],
)
async def test_a_message_that_means_nothing_here_ends_the_stream_by_name(messages, field):
    fake = FakeVerifier([ids_of("hello")])
    async with gateway_with(fake) as stub:
        call = stub.Chat()
        for message in messages:
            await call.write(message)
        error = await status_of(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [v.field for v in Refusal.from_rpc_error(error).violations] == [field]
    assert fake.opens == []


async def test_an_invalid_turn_ends_its_stream_and_not_the_session():
    fake = FakeVerifier([ids_of("hello")])
    async with gateway_with(fake) as stub:
        call, session = await open_chat(stub)
        await ask(call, "one")
        fake.refusal = Refusal.invalid([Violation("params.temperature", "must be lower")])
        await call.write(turn("two"))
        error = await status_of(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert Refusal.from_rpc_error(error).violations == fake.refusal.violations
        fake.refusal = None
        kept = await session_of(stub, session.session_id)
        assert messages_of(kept) == [("user", "one"), ("assistant", "hello")]
        call, _ = await open_chat(stub, session_id=session.session_id)
        assert (await ask(call, "three"))[0] == "hello"
        kept = await session_of(stub, session.session_id)
    assert [content for role, content in messages_of(kept) if role == "user"] == ["one", "three"]


async def test_a_turn_while_another_is_answered_is_refused():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        call, session = await open_chat(stub)
        await call.write(turn("one"))
        await read(call)
        other, _ = await open_chat(stub, session_id=session.session_id)
        await other.write(turn("two"))
        error = await status_of(other)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        fake.released.set()
        while (await read(call)).WhichOneof("response") != "finished":
            pass
        assert (await session_of(stub, session.session_id)).num_turns == 1


async def test_a_client_gone_ends_the_verifiers_stream_and_frees_the_session():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        call, session = await open_chat(stub)
        await call.write(turn("one"))
        assert (await read(call)).WhichOneof("response") == "started"
        assert (await read(call)).delta.text == "a"
        call.cancel()
        await eventually(lambda: len(fake.endings) == 1)
        fake.pause_before = None
        call, resumed = await open_chat(stub, session_id=session.session_id)
        assert resumed.num_turns == 0
        assert (await ask(call, "two"))[0] == "ab"
        kept = await session_of(stub, session.session_id)
    assert messages_of(kept) == [("user", "two"), ("assistant", "ab")]


async def test_a_closed_session_is_forgotten():
    async with gateway_with(FakeVerifier([ids_of("a")])) as stub:
        call, session = await open_chat(stub)
        await stub.CloseSession(pb.CloseSessionRequest(session_id=session.session_id))
        await call.write(turn("one"))
        assert (await status_of(call)).code() is grpc.StatusCode.NOT_FOUND
        for unary, request in (
            (stub.GetSession, pb.GetSessionRequest(session_id=session.session_id)),
            (stub.CloseSession, pb.CloseSessionRequest(session_id=session.session_id)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(request)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_unknown_session_is_not_found():
    async with gateway_with(FakeVerifier()) as stub:
        call = stub.Chat()
        await call.write(opening(session_id="0" * 32))
        assert (await status_of(call)).code() is grpc.StatusCode.NOT_FOUND


async def test_the_oldest_turns_leave_a_prompt_that_no_longer_fits():
    fake = FakeVerifier([ids_of("a")])
    fake.max_context = 150
    async with gateway_with(fake) as stub:
        call, session = await open_chat(
            stub, system="brief", params=tokens_pb2.SamplingParams(max_tokens=10)
        )
        for number in range(5):
            await ask(call, f"{number}" * 20)
        kept = await session_of(stub, session.session_id)
        # The verifier says what does not fit; here only what it was asked matters.
        await ask(call, "x" * 500)
    assert kept.num_turns == 5
    assert len(messages_of(kept)) == 11
    assert all(len(opening.token_ids) <= 140 for opening in fake.opens[:-1])
    assert "brief" in prompt_of(fake, 4)
    assert "0" * 20 not in prompt_of(fake, 4)
    assert "3" * 20 in prompt_of(fake, 4)
    assert "4" * 20 in prompt_of(fake, 4)
    assert len(fake.opens[-1].token_ids) > 500


async def test_a_history_that_drops_nothing_refuses_what_has_no_room(monkeypatch):
    fake = FakeVerifier([ids_of("a")])
    fake.max_context = 150
    async with gateway_with(fake, history="refuse") as stub:
        call, session = await open_chat(
            stub, system="brief", params=tokens_pb2.SamplingParams(max_tokens=10)
        )
        for number in range(5):
            await ask(call, f"{number}" * 20)
        # All of it goes to the verifier, which refuses by name what is longer than its context.
        assert "0" * 20 in prompt_of(fake, 4)
        assert len(fake.opens[-1].token_ids) > 140
        monkeypatch.setattr(sessions, "MAX_MESSAGES", 11)
        await call.write(pb.ChatRequest(turn=pb.Turn(content="one more")))
        error = await status_of(call)
        kept = await session_of(stub, session.session_id)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "open a new one" in error.details()
    assert kept.num_turns == 5


async def test_a_stream_without_a_first_message_is_closed(monkeypatch):
    monkeypatch.setattr(servicer, "FIRST_MESSAGE_S", 0.05)
    async with gateway_with(FakeVerifier()) as stub:
        call = stub.Chat()
        assert (await status_of(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_draining_ends_a_waiting_conversation():
    async with served(FakeVerifier()) as (address, _), gateway_for(address) as (gateway, stub):
        await gateway.wait_ready()
        call, _ = await open_chat(stub)
        async with asyncio.timeout(DEADLINE_S):
            await gateway.drain()
        error = await status_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the gateway is draining"
