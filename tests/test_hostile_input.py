"""What a hostile caller sends below the level of fields: bytes, sizes, headers, time (A22 to A30).

After each of them the gateway still answers.
"""

import asyncio
import subprocess
import sys
from typing import Any

import grpc
import pytest
from fakes import DEADLINE_S, ids_of
from http_door import TEXT, http_of, open_door
from mock_target import MockTarget, answer

from gateway.http import server
from paceline.server import PUBLIC_MESSAGE_BYTES, open_channel
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import tokens_pb2

GENERATE = "/paceline.v1.GatewayService/Generate"
CANARY = b"canary 7f3a"
WHOLE = pb.GenerateRequest(text="a").SerializeToString()
# Field 1000, a string.
UNKNOWN = b"\xc2\x3e\x03abc"
# Groups in groups, as no message of ours has them.
NESTED = b"\xc3\x3e" * 100_000


async def answer_to(address: str, message: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    """(status, details) of a call with these bytes for a message."""
    async with open_channel(address) as channel:
        call = channel.unary_stream(GENERATE)(message, timeout=DEADLINE_S, **options)
        async for _ in call:
            pass
        return await call.code(), await call.details()


@pytest.mark.parametrize(
    "message, code",
    [
        (WHOLE + UNKNOWN, grpc.StatusCode.OK),
        (CANARY, grpc.StatusCode.UNKNOWN),
        (WHOLE + NESTED, grpc.StatusCode.UNKNOWN),
        (b"\x12\xff\xff\xff\xff\x07" + CANARY, grpc.StatusCode.UNKNOWN),
        (b"\x12\x02\xc3\x28", grpc.StatusCode.UNKNOWN),
        (b"x" * (PUBLIC_MESSAGE_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["unknown field", "no message", "nested", "2 GB announced", "no UTF-8", "too long"],
)
async def test_bytes_that_are_no_request_end_their_call_alone(
    message: bytes, code: grpc.StatusCode
):
    async with open_door() as (gateway, _, _):
        found = await _code_of(gateway.address, message)
        assert found[0] is code, found
        assert CANARY.decode() not in found[1]
        assert (await _code_of(gateway.address, WHOLE))[0] is grpc.StatusCode.OK


async def test_a_small_message_that_unpacks_to_a_large_one_is_too_long():
    async with open_door() as (gateway, _, _):
        bomb = pb.GenerateRequest(text="a" * (8 * PUBLIC_MESSAGE_BYTES)).SerializeToString()
        code, _ = await _code_of(gateway.address, bomb, compression=grpc.Compression.Gzip)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with http_of(gateway) as client:
            packed = {"content-encoding": "gzip", "content-type": "application/json"}
            refused = await client.post(
                "/v1/completions", content=b"\x1f\x8b" + CANARY, headers=packed
            )
        assert refused.status_code == 400
        assert CANARY.decode() not in refused.text


async def test_headers_have_a_size():
    async with open_door() as (gateway, _, _):
        code, _ = await _code_of(gateway.address, WHOLE, metadata=(("x-large", "x" * 2**16),))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with http_of(gateway) as client:
            for size, code in ((2**13, 200), (2**14, 431)):
                got = await client.get("/v1/models", headers={"x-large": "x" * size})
                # In pieces, it is refused before it is whole.
                assert got.status_code == code or (code == 431 and got.status_code == 400)
            assert (await client.get("/v1/models")).status_code == 200


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
BEGUN = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize("before, begun", [(b"", b""), (b"", BEGUN), (HEALTH, BEGUN)])
async def test_headers_have_a_time(before: bytes, begun: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    async with open_door() as (gateway, _, _):
        host, _, port = gateway.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(DEADLINE_S):
            if before:
                writer.write(before)
                await reader.readuntil(b"}")
            writer.write(begun)
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_slow_answer_outlives_the_time_for_headers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "HEAD_S", 0.05)
    async with open_door() as (gateway, fake, _), http_of(gateway) as client:
        fake.pause_before = 2
        asked = {"prompt": "a", "max_tokens": 33}
        answer = asyncio.create_task(client.post("/v1/completions", json=asked))
        await asyncio.sleep(4 * server.HEAD_S)
        fake.released.set()
        assert (await answer).json()["choices"][0]["text"] == TEXT


async def test_a_request_id_used_twice_mixes_nothing():
    num_tokens = 40

    async with open_door(MockTarget(step_s=0.001)) as (_, _, stub):

        async def ask(seed: int) -> list[int]:
            params = tokens_pb2.SamplingParams(max_tokens=num_tokens)
            request = pb.GenerateRequest(text="a", params=params, seed=seed, request_id="mine")
            return [i async for r in stub.Generate(request) for i in r.delta.token_ids]

        answers = await asyncio.gather(*map(ask, range(8)))
    assert answers == [answer(ids_of("a"), seed, num_tokens) for seed in range(8)]


def test_limits_hold_without_asserts():
    code = """
from gateway.validation import request_violations
from paceline.events import Request
from paceline.params import SamplingParams, violations
assert False, "asserts are on"
refused = [
    request_violations(Request("a", n=10**6)),
    request_violations(Request("x" * 2**23)),
    violations(SamplingParams(max_tokens=0), [1], [], vocab_size=50, max_context=64),
    violations(SamplingParams(max_tokens=5), [50], [], vocab_size=50, max_context=64),
]
raise SystemExit(0 if all(refused) else 1)
"""
    subprocess.run([sys.executable, "-O", "-c", code], check=True, timeout=60)


async def _code_of(address: str, message: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    try:
        return await answer_to(address, message, **options)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
