"""One answer by each way in: straight at the verifier, through the gateway's gRPC, or HTTP.

Callers do as little as a caller can, so that what is measured is the services' own time.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Protocol, Self

import grpc

from paceline.server import open_channel
from paceline.v1 import (
    gateway_pb2,
    gateway_pb2_grpc,
    tokens_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

PROMPT = "Where is my parcel? It was to come on Monday. " * 5


@dataclass(frozen=True, slots=True)
class Heard:
    """What a caller heard of an answer: seconds from its first byte on, and counts."""

    first_s: float
    num_rounds: int
    num_tokens: int


class Way(Protocol):
    """One way to an answer of `num_tokens`; may be asked many times at once."""

    async def answer(self, seed: int, num_tokens: int) -> Heard: ...


class _Count:
    """Counts an answer's rounds as they come."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._first_s = 0.0
        self._num_rounds = self._num_tokens = 0

    def add(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        if not self._num_rounds:
            self._first_s = time.perf_counter() - self._begun
        self._num_rounds += 1
        self._num_tokens += num_tokens

    def heard(self, num_tokens: int) -> Heard:
        assert self._num_tokens == num_tokens, "an answer is incomplete"
        return Heard(self._first_s, self._num_rounds, self._num_tokens)


class _OverGrpc:
    """`async with` opens and closes the channel."""

    def __init__(self, address: str, stub: Any) -> None:
        self._channel = open_channel(address)
        self._stub: Any = stub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


class AtVerifier(_OverGrpc):
    """Straight at the verifier, with the ids that the gateway would send."""

    def __init__(self, address: str, token_ids: list[int]) -> None:
        super().__init__(address, verifier_pb2_grpc.VerifierServiceStub)
        self._token_ids = token_ids

    async def answer(self, seed: int, num_tokens: int) -> Heard:
        count = _Count()
        params = tokens_pb2.SamplingParams(max_tokens=num_tokens)
        opening = verifier_pb2.Open(token_ids=self._token_ids, params=params, seed=seed)
        call = self._stub.Generate()
        await call.write(verifier_pb2.VerifierGenerateRequest(open=opening))
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.WhichOneof("response") == "tokens":
                count.add(len(response.tokens.token_ids))
        return count.heard(num_tokens)


class ThroughGrpc(_OverGrpc):
    """Through the gateway's own protocol."""

    def __init__(self, address: str) -> None:
        super().__init__(address, gateway_pb2_grpc.GatewayServiceStub)

    async def answer(self, seed: int, num_tokens: int) -> Heard:
        count = _Count()
        params = tokens_pb2.SamplingParams(max_tokens=num_tokens)
        request = gateway_pb2.GenerateRequest(text=PROMPT, params=params, seed=seed)
        async for response in self._stub.Generate(request):
            if response.WhichOneof("response") == "delta":
                count.add(len(response.delta.token_ids))
        return count.heard(num_tokens)


class ThroughHttp:
    """Through the OpenAI-compatible door, as a stream; connections are kept and used again."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in self._idle:
            writer.close()
            await writer.wait_closed()

    async def answer(self, seed: int, num_tokens: int) -> Heard:
        count = _Count()
        body = {"prompt": PROMPT, "max_tokens": num_tokens, "seed": seed, "stream": True}
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(head.encode() + content)
        status = await reader.readline()
        assert b" 200 " in status, status
        # Each chunk is a size, a frame and a line end; the last one is empty.
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            frame = (await reader.readexactly(size + 2)).strip().removeprefix(b"data: ")
            if b'"token_ids"' in frame:
                (choice,) = json.loads(frame)["choices"]
                count.add(len(choice["paceline"]["token_ids"]))
        await reader.readline()
        self._idle.append((reader, writer))
        return count.heard(num_tokens)
