"""Generate through a real server: text, tokens, totals, errors and cancellation."""

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import pytest
from fakes import (
    DEADLINE_S,
    EOS,
    FakeVerifier,
    digest_of,
    eventually,
    gateway_for,
    gateway_with,
    ids_of,
    served,
)
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from paceline.params import Violation
from paceline.rounds import TokenSource
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import tokens_pb2

CANARY = "canary-7f3a"


def asking(text: str = "hello", **fields: Any) -> pb.GenerateRequest:
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=text)])
    return pb.GenerateRequest(chat=chat, **fields)


async def answer(stub: Any, request: pb.GenerateRequest) -> tuple[Any, list[Any], Any]:
    """(started, deltas, finished), having checked their order."""
    async with asyncio.timeout(DEADLINE_S):
        responses = [response async for response in stub.Generate(request)]
    kinds = [response.WhichOneof("response") for response in responses]
    assert kinds == ["started", *["delta"] * (len(kinds) - 2), "finished"]
    deltas = [response.delta for response in responses[1:-1]]
    return responses[0].started, deltas, responses[-1].finished


async def refused(stub: Any, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    """The status of a call that is refused before anything is answered."""
    call = stub.Generate(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await call.read()
    return caught.value


async def failed(stub: Any, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    """The status of a call that fails amid its answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer(stub, request)
    return caught.value


async def violations_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return {v.field: v.description for v in Refusal.from_rpc_error(error).violations}


def text_of(deltas: list[Any]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_in(deltas: list[Any]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


async def test_an_answer_is_text_tokens_and_totals_that_add_up():
    ids = [*ids_of("hello 😀"), EOS]
    fake = FakeVerifier([ids[:1], ids[1:3], ids[3:]])
    async with gateway_with(fake) as stub:
        started, deltas, finished = await answer(stub, asking(seed=7))
    assert (started.model, started.seed) == ("tiny", 7)
    assert started.num_prompt_tokens == len(fake.opens[0].token_ids)
    assert text_of(deltas) == "hello 😀"
    assert ids_in(deltas) == ids
    assert finished.finish_reason == tokens_pb2.FINISH_REASON_STOP
    assert finished.digest == digest_of(ids)
    assert finished.usage.num_completion_tokens == len(ids)
    assert finished.usage.num_prompt_tokens == started.num_prompt_tokens
    assert finished.usage.num_cached_tokens == 2
    rounds = [delta.round for delta in deltas]
    assert finished.totals.num_rounds == len(rounds) == 3
    for name in ("num_drafted", "num_tested", "num_accepted"):
        assert getattr(finished.totals, name) == sum(getattr(r, name) for r in rounds)
    assert sum(r.num_output for r in rounds) == len(ids)
    assert sum(finished.totals.accepted_by_position) == finished.totals.num_accepted
    assert 0 < finished.time_to_first_token_us <= finished.duration_us
    assert deltas[0].prefill.prefill_us == 450
    assert not deltas[1].HasField("prefill")


async def test_characters_are_never_split_and_every_round_has_a_delta():
    ids = ids_of("日😀")
    async with gateway_with(FakeVerifier([[i] for i in ids])) as stub:
        _, deltas, _ = await answer(stub, asking())
    assert [delta.text for delta in deltas] == ["", "", "日", "", "", "😀"]
    assert [list(delta.token_ids) for delta in deltas] == [[i] for i in ids]


async def test_what_is_held_back_comes_at_a_normal_end():
    ids = ids_of("hello s") + ids_of("日")[:2]
    async with gateway_with(FakeVerifier([ids])) as stub:
        _, deltas, finished = await answer(stub, asking(stop=["sto"]))
    assert [delta.text for delta in deltas] == ["hello ", "s\ufffd"]
    assert list(deltas[1].token_ids) == []
    assert not deltas[1].HasField("round")
    assert finished.stop == ""
    assert finished.totals.num_rounds == 1


async def test_a_stop_string_ends_text_tokens_counts_and_the_verifiers_stream():
    ids = ids_of("hello, world, and more")
    end = len(ids_of("hello, world"))
    fake = FakeVerifier([ids[:2], ids[2:4], ids[4:]])
    assert 5 < end < len(ids)
    async with gateway_with(fake) as stub:
        _, deltas, finished = await answer(stub, asking(stop=[", world", "absent"]))
        assert text_of(deltas) == "hello"
        assert ids_in(deltas) == ids[:end]
        assert finished.stop == ", world"
        assert finished.finish_reason == tokens_pb2.FINISH_REASON_STOP
        assert finished.usage.num_completion_tokens == end
        assert finished.digest == digest_of(ids[:end])
        last = deltas[-1].round
        assert last.num_output == end - 4 == len(deltas[-1].token_ids)
        assert last.num_accepted == last.num_tested == end - 4
        assert finished.totals.num_accepted == sum(d.round.num_accepted for d in deltas)
        await eventually(lambda: len(fake.endings) == 1)


async def test_a_stop_string_sends_end_to_a_verifier_that_would_go_on():
    ids = ids_of("hello, world")
    fake = FakeVerifier([ids[:2], ids[2:]])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        _, deltas, finished = await answer(stub, asking(stop=["lo,"]))
        assert text_of(deltas) == "hel"
        assert finished.stop == "lo,"
        await eventually(lambda: fake.endings == ["end"])


async def test_a_stop_token_is_delivered_and_has_no_text():
    comma = ids_of(",")[0]
    fake = FakeVerifier([[*ids_of("hello"), comma]])
    params = tokens_pb2.SamplingParams(stop_token_ids=[comma])
    async with gateway_with(fake) as stub:
        _, deltas, finished = await answer(stub, asking(params=params))
    assert text_of(deltas) == "hello"
    assert ids_in(deltas)[-1] == comma
    assert finished.usage.num_completion_tokens == len(ids_of("hello")) + 1


@pytest.mark.parametrize(("ignore_eos", "text"), [(False, "hello"), (True, "hello!")])
async def test_an_end_token_has_no_text_unless_it_is_ignored(ignore_eos, text):
    fake = FakeVerifier([ids_of("hello!")])
    fake.eos_token_ids = ids_of("!")
    params = tokens_pb2.SamplingParams(ignore_eos=ignore_eos)
    async with gateway_with(fake) as stub:
        _, deltas, _ = await answer(stub, asking(params=params))
    assert text_of(deltas) == text


async def test_a_seed_is_drawn_and_returned_when_none_is_given():
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake) as stub:
        seeds = {(await answer(stub, asking()))[0].seed for _ in range(3)}
    assert len(seeds) == 3
    assert seeds == {opening.seed for opening in fake.opens}
    assert all(0 <= seed < 2**63 for seed in seeds)


async def test_sequences_are_opened_as_the_request_says():
    fake = FakeVerifier([ids_of("a")])
    request = asking(
        params=tokens_pb2.SamplingParams(temperature=0.5, top_k=7, max_tokens=9, num_logprobs=0),
        draft=tokens_pb2.DraftPolicy(speculation=tokens_pb2.SPECULATION_OFF, max_draft_tokens=3),
        seed=2**64 - 1,
        request_id="r-1",
        workload="coding",
        timeout_ms=60_000,
    )
    async with gateway_with(fake) as stub:
        await answer(stub, request)
        await answer(stub, pb.GenerateRequest(text="hello<|im_end|>"))
        await answer(stub, pb.GenerateRequest(token_ids=pb.TokenIds(token_ids=[5, 6])))
    opening = fake.opens[0]
    assert opening.params.temperature == 0.5
    assert (opening.params.top_k, opening.params.max_tokens) == (7, 9)
    assert opening.params.HasField("num_logprobs")
    assert opening.draft == request.draft
    assert opening.seed == 2**64 - 1
    assert (opening.request_id, opening.workload) == ("r-1", "coding")
    assert 0 < opening.timeout_ms <= 60_000
    assert list(fake.opens[1].token_ids) == [*ids_of("hello"), EOS]
    assert list(fake.opens[2].token_ids) == [5, 6]


async def test_the_deadline_of_the_call_reaches_the_verifier():
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake) as stub:
        async for _ in stub.Generate(asking(timeout_ms=90_000), timeout=30):
            pass
    # gRPC rounds a deadline up on its way.
    assert 0 < fake.opens[0].timeout_ms <= 31_000


async def test_a_verifier_that_hangs_does_not_outlast_the_timeout():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 1
    async with gateway_with(fake) as stub:
        error = await refused(stub, asking(timeout_ms=50))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_logprobs_and_sources_pass_through():
    fake = FakeVerifier([ids_of("ab")])
    async with gateway_with(fake) as stub:
        _, deltas, _ = await answer(stub, asking())
    assert list(deltas[0].sources) == [TokenSource.PROMPT_LOOKUP, TokenSource.PLAIN]
    assert list(deltas[0].logprobs) == [
        tokens_pb2.TokenLogprobs(logprob=-index, top_token_ids=[5], top_logprobs=[-0.5])
        for index in range(2)
    ]


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (pb.GenerateRequest(), "input"),
        (pb.GenerateRequest(chat=pb.ChatMessages()), "chat.messages"),
        (
            pb.GenerateRequest(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="tool")])),
            "chat.messages[0].role",
        ),
        (
            pb.GenerateRequest(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user")] * 1025)),
            "chat.messages",
        ),
        (asking("é" * (2**19 + 1)), "chat.messages"),
        (pb.GenerateRequest(text="a" * (2**20 + 1)), "text"),
        (asking(stop=["a"] * 17), "stop"),
        (asking(stop=["a", ""]), "stop[1]"),
        (asking(stop=["é" * 33]), "stop[0]"),
        (asking(workload="w" * 257), "workload"),
        (asking(request_id="r" * 257), "request_id"),
        (asking(params=tokens_pb2.SamplingParams(mode=9)), "params.mode"),
        (asking(draft=tokens_pb2.DraftPolicy(speculation=9)), "draft.speculation"),
    ],
)
async def test_what_the_gateway_owns_is_checked_before_any_work(request_message, field):
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake) as stub:
        error = await refused(stub, request_message)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert list(await violations_of(error)) == [field]
        assert fake.opens == []
        await answer(stub, asking("still serving"))


async def test_a_request_at_every_limit_is_served():
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake) as stub:
        await answer(
            stub, asking("hello " * (2**20 // 6), stop=["é" * 32] * 16, workload="w" * 256)
        )
    assert len(fake.opens) == 1


async def test_a_verifiers_refusal_passes_through_with_its_fields():
    fake = FakeVerifier()
    fake.refusal = Refusal.invalid([Violation("params.temperature", "must be from 0.01 to 100")])
    async with gateway_with(fake) as stub:
        error = await refused(stub, asking(CANARY))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "params.temperature: must be from 0.01 to 100"
    assert await violations_of(error) == {"params.temperature": "must be from 0.01 to 100"}


async def test_a_full_verifier_tells_the_client_when_to_retry():
    fake = FakeVerifier()
    fake.refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after_s=3)
    async with gateway_with(fake) as stub:
        error = await refused(stub, asking())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert Refusal.from_rpc_error(error).retry_after_s == 3


async def test_a_stream_without_final_is_a_verifier_gone():
    fake = FakeVerifier([ids_of("a")])
    fake.with_final = False
    async with gateway_with(fake) as stub:
        error = await failed(stub, asking())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the verifier went away"


async def test_a_killed_verifier_is_unavailable_and_names_no_address():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with served(fake) as (address, service), gateway_for(address) as (gateway, stub):
        await gateway.wait_ready()
        call = stub.Generate(asking())
        assert (await call.read()).started.model == "tiny"
        assert (await call.read()).delta.text == "a"
        await service.server.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the verifier went away"


async def test_tokens_that_differ_from_the_digest_are_data_loss():
    fake = FakeVerifier([ids_of("a")])
    fake.digest = digest_of([1])
    async with gateway_with(fake) as stub:
        error = await failed(stub, asking())
    assert error.code() is grpc.StatusCode.DATA_LOSS


async def test_tokens_with_a_gap_are_not_delivered():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.first_index = 1
    async with gateway_with(fake) as stub:
        error = await refused(stub, asking())
    assert error.code() is grpc.StatusCode.INTERNAL


async def test_an_unexpected_error_shows_an_id_and_no_text(caplog):
    fake = FakeVerifier([ids_of("a")])
    fake.finish_reason = 99
    async with gateway_with(fake) as stub:
        error = await failed(stub, asking(CANARY))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details().startswith("internal error ")
    assert CANARY not in caplog.text


async def test_a_cancelled_client_ends_the_verifiers_stream():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with gateway_with(fake) as stub:
        call = stub.Generate(asking())
        await call.read()
        await call.read()
        call.cancel()
        await eventually(lambda: len(fake.endings) == 1)
        assert fake.endings[0] in ("end", "gone")
        fake.pause_before = None
        _, deltas, _ = await answer(stub, asking())
        assert text_of(deltas) == "ab"


async def test_more_requests_than_allowed_are_told_to_retry():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with gateway_with(fake, max_requests=1, max_queued=0) as stub:
        first = stub.Generate(asking())
        await first.read()
        error = await refused(stub, asking())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert Refusal.from_rpc_error(error).retry_after_s
        fake.released.set()
        while await first.read() is not grpc.aio.EOF:
            pass
        await answer(stub, asking())


async def test_every_refusal_carries_its_reason():
    async with gateway_with(FakeVerifier()) as stub:
        error = await refused(stub, asking(model="other"))
    status = await rpc_status.aio.from_call(_Ended(error))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("NOT_FOUND", "paceline")


class _Ended:
    """A finished call, as grpc_status wants it."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self._error = error

    async def code(self) -> Any:
        return self._error.code()

    async def details(self) -> Any:
        return self._error.details()

    async def trailing_metadata(self) -> Any:
        return self._error.trailing_metadata()


async def test_draining_finishes_what_runs_and_refuses_the_rest():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with served(fake) as (address, _), gateway_for(address) as (gateway, stub):
        await gateway.wait_ready()
        call = stub.Generate(asking())
        await call.read()
        draining = asyncio.create_task(gateway.drain())
        await asyncio.sleep(0)
        error = await refused(stub, asking())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert Refusal.from_rpc_error(error).retry_after_s
        assert not draining.done()
        fake.released.set()
        kinds = [r.WhichOneof("response") async for r in _rest(call)]
        assert kinds[-1] == "finished"
        async with asyncio.timeout(DEADLINE_S):
            await draining


async def _rest(call: Any) -> Any:
    while (response := await call.read()) is not grpc.aio.EOF:
        yield response


async def test_prompts_and_answers_are_in_no_log_and_no_error(caplog):
    caplog.set_level(logging.DEBUG)
    fake = FakeVerifier([ids_of(f"{CANARY}, yes")])
    async with gateway_with(fake) as stub:
        _, deltas, _ = await answer(stub, asking(CANARY))
        assert CANARY in text_of(deltas)
        errors = [
            await refused(stub, asking(CANARY, stop=[CANARY * 9])),
            await refused(stub, asking(CANARY, model=CANARY)),
        ]
        with contextlib.suppress(grpc.aio.AioRpcError):
            await answer(stub, asking(CANARY, workload=CANARY * 99))
    assert all(CANARY not in str(error) for error in errors)
    assert "answer" in caplog.text
    assert CANARY not in caplog.text
