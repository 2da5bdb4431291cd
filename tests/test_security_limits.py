"""Every limit: in the table, and refused by name before any work when it is passed."""

from pathlib import Path

import grpc
import pytest
from fakes import FakeVerifier, gateway_with, ids_of

from paceline import limits
from paceline.limits import GATEWAY, LIMITS, VERIFIER
from paceline.params import SamplingParams, violations
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb

ROOT = Path(__file__).parents[1]
LABEL = "x" * (limits.MAX_LABEL_BYTES + 1)
TEXT = "x" * (limits.MAX_CONTENT_BYTES + 1)


def asking(**fields) -> pb.GenerateRequest:
    text = {} if {"chat", "text", "token_ids"} & set(fields) else {"text": "a"}
    return pb.GenerateRequest(**text, **fields)


def chat(*messages: tuple[str, str]) -> pb.ChatMessages:
    return pb.ChatMessages(messages=[pb.ChatMessage(role=r, content=c) for r, c in messages])


def conversation(*, turn: dict[str, object] | None = None, **opening) -> list[pb.ChatRequest]:
    first = pb.ChatRequest(open=pb.OpenChat(**opening))
    return [first, pb.ChatRequest(turn=pb.Turn(**turn))] if turn is not None else [first]


# Row of the table -> requests that pass its limit, and the field that the refusal names.
TOO_MUCH = {
    "chat.messages": [
        (asking(chat=chat()), "chat.messages"),
        (asking(chat=chat(*[("user", "a")] * 1025)), "chat.messages"),
    ],
    "chat.messages[].role": [(asking(chat=chat(("tool", "a"))), "chat.messages[0].role")],
    "chat.messages content": [
        (asking(chat=chat(("user", TEXT[:-1]), ("user", "xx"))), "chat.messages")
    ],
    "text": [(asking(text=TEXT), "text")],
    "turn.content": [
        (conversation(turn={"content": ""}), "turn.content"),
        (conversation(turn={"content": TEXT}), "turn.content"),
    ],
    "open.system": [
        (conversation(system=TEXT), "open.system"),
        (conversation(system="a", session_id="b"), "open.system"),
    ],
    "stop": [(asking(stop=["a"] * 17), "stop"), (conversation(stop=["a"] * 17), "stop")],
    "stop[]": [(asking(stop=["ok", ""]), "stop[1]"), (asking(stop=["é" * 33]), "stop[0]")],
    "n": [(asking(n=9), "n"), (asking(n=2**32 - 1), "n")],
    "model": [(asking(model=LABEL), "model"), (asking(model="é"), "model")],
    "open.session_id": [(conversation(session_id=LABEL), "open.session_id")],
    "request_id": [
        (asking(request_id=LABEL), "request_id"),
        (asking(request_id="a\x00b"), "request_id"),
        (conversation(turn={"content": "a", "request_id": "a\nb"}), "turn.request_id"),
    ],
    "workload": [
        (asking(workload="a\u202eb"), "workload"),
        (conversation(workload=LABEL), "workload"),
    ],
    "timeout_ms": [
        (asking(timeout_ms=limits.MAX_TIMEOUT_MS + 1), "timeout_ms"),
        (conversation(turn={"content": "a", "timeout_ms": 2**32 - 1}), "turn.timeout_ms"),
    ],
    "token_ids": [
        (asking(token_ids=pb.TokenIds(token_ids=[1] * (2**18 + 1))), "token_ids"),
    ],
}
PARAMS = {
    "params.max_tokens": [SamplingParams(max_tokens=0), SamplingParams(max_tokens=100)],
    "params.min_tokens": [SamplingParams(max_tokens=5, min_tokens=6)],
    "params.temperature": [
        SamplingParams(max_tokens=5, temperature=t) for t in (1e-12, -1, 101, float("nan"))
    ],
    "params.top_p": [SamplingParams(max_tokens=5, top_p=p) for p in (0, 1.1, float("nan"))],
    "params.min_p": [SamplingParams(max_tokens=5, min_p=p) for p in (-0.1, 1.1)],
    "params.repetition_penalty": [SamplingParams(max_tokens=5, repetition_penalty=0)],
    "params.presence_penalty": [SamplingParams(max_tokens=5, presence_penalty=2.1)],
    "params.frequency_penalty": [SamplingParams(max_tokens=5, frequency_penalty=-2.1)],
    "params.logit_bias": [
        SamplingParams(max_tokens=5, logit_bias=dict.fromkeys(range(1025), 0.0)),
        SamplingParams(max_tokens=5, logit_bias={50: 1.0}),
        SamplingParams(max_tokens=5, logit_bias={1: float("inf")}),
    ],
    "params.stop_token_ids": [
        SamplingParams(max_tokens=5, stop_token_ids=[1] * 65),
        SamplingParams(max_tokens=5, stop_token_ids=[50]),
    ],
    "params.num_logprobs": [SamplingParams(max_tokens=5, num_logprobs=21)],
}


def test_the_table_in_the_docs_is_the_codes():
    assert limits.table() in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")


def test_every_row_has_its_test():
    at_the_gateway = {row.field for row in LIMITS if GATEWAY in row.checked_by}
    assert at_the_gateway == TOO_MUCH.keys()
    # The rest of the verifier's rows: test_security_processes.
    behind = {row.field for row in LIMITS if row.checked_by == VERIFIER}
    assert behind - {"tenant", "generated_token_ids"} == PARAMS.keys()


async def test_the_gateway_refuses_by_name_before_any_work():
    fake = FakeVerifier([ids_of("a")])
    async with gateway_with(fake) as stub:
        for row, cases in TOO_MUCH.items():
            for request, field in cases:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    if isinstance(request, list):
                        call = stub.Chat(iter(request))
                        while await call.read() is not grpc.aio.EOF:
                            pass
                    else:
                        await stub.Generate(request).read()
                refusal = Refusal.from_rpc_error(refused.value)
                assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT, row
                assert field in [violation.field for violation in refusal.violations], row
                assert "xx" not in refusal.message
    assert fake.opens == []


@pytest.mark.parametrize("field", PARAMS)
def test_parameters_are_refused_by_name(field: str):
    for params in PARAMS[field]:
        found = violations(params, [1, 2], [], vocab_size=50, max_context=64)
        assert field in [violation.field.partition("[")[0] for violation in found]


def test_given_output_is_limited_too():
    found = violations(SamplingParams(max_tokens=2), [1], [1, 2, 3], vocab_size=50, max_context=64)
    assert [violation.field for violation in found] == ["generated_token_ids"]
    found = violations(SamplingParams(max_tokens=2), [1], [50], vocab_size=50, max_context=64)
    assert [violation.field for violation in found] == ["generated_token_ids[0]"]
