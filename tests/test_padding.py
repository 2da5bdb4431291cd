"""Padded frames: what somebody who watches the wire learns of accepted draft tokens."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates
from fakes import EOS, FakeVerifier, ids_of
from http_door import open_door
from hypothesis import given
from hypothesis import strategies as st

from gateway.http import sse
from gateway.padding import field_bytes
from paceline.server import open_channel
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import gateway_pb2_grpc

MULTIPLE = 1024
# Rounds with 0 to 7 accepted tokens.
ROUNDS = [ids_of("abcdefgh"[:n]) for n in (1, 8, 3, 5, 1, 7, 2, 4, 6)]
TLS_HEADER_BYTES = 5


class Wire:
    """A relay in front of a port. Keeps what the server sent."""

    def __init__(self) -> None:
        self.sent = b""
        self.address = ""

    def tls_records(self) -> list[int]:
        """Sizes of the encrypted records, handshake included, as anybody on the way sees them."""
        sizes, at = [], 0
        while at < len(self.sent):
            size = int.from_bytes(self.sent[at + 3 : at + 5])
            sizes.append(size)
            at += TLS_HEADER_BYTES + size
        return sizes

    def grpc_messages(self) -> list[int]:
        """Sizes of the messages in the DATA frames of the only call."""
        data, at = b"", 0
        while at < len(self.sent):
            size = int.from_bytes(self.sent[at : at + 3])
            if self.sent[at + 3] == 0:
                data += self.sent[at + 9 : at + 9 + size]
            at += 9 + size
        sizes, at = [], 0
        while at < len(data):
            sizes.append(int.from_bytes(data[at + 1 : at + 5]))
            at += 5 + sizes[-1]
        return sizes


@contextlib.asynccontextmanager
async def wire_to(address: str) -> AsyncIterator[Wire]:
    wire = Wire()
    host, _, port = address.rpartition(":")

    async def carry(
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        note: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(2**16):
                note(data)
                sink.write(data)
                await sink.drain()
        sink.close()

    def note(data: bytes) -> None:
        wire.sent += data

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, to_server), carry(from_server, writer, note))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    wire.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        await server.wait_closed()


def verifier() -> FakeVerifier:
    return FakeVerifier([*ROUNDS, [EOS]])


async def over_https(folder: Path, pad_frames: int, **options: Any) -> tuple[Wire, list[bytes]]:
    """One streamed answer: what went over the wire, and the frames with JSON in them."""
    files = Certificates(folder).role("gateway")
    settings = {"tls_cert": files.cert, "tls_key": files.key, "pad_frames": pad_frames}
    body = {"prompt": "Say it", "stream": True, "seed": 1, "stream_options": options}
    content = json.dumps(body).encode()
    head = f"""\
POST /v1/completions HTTP/1.1\r
host: x\r
connection: close\r
content-type: application/json\r
content-length: {len(content)}\r
\r
"""
    async with (
        open_door(verifier(), **settings) as (gateway, _, _),
        wire_to(gateway.http_address) as wire,
    ):
        context = ssl.create_default_context(cafile=files.ca)
        host, _, port = wire.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(head.encode() + content)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    lines = answer.splitlines()
    return wire, [line + b"\n\n" for line in lines if line.startswith(b"data: {")]


def record_size(frame: bytes) -> int:
    """Of a chunk of HTTP (size in hex, two line ends) in TLS 1.3 (a type and a tag)."""
    return len(f"{len(frame):x}") + len(frame) + 4 + 1 + 16


def holds(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether these sizes follow each other in there."""
    return any(sizes[at : at + len(wanted)] == wanted for at in range(len(sizes)))


@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
async def test_https_shows_one_size_for_every_number_of_accepted_tokens(
    tmp_path: Path, options: dict[str, Any]
):
    wire, frames = await over_https(tmp_path, MULTIPLE, **options)
    sizes = [record_size(frame) for frame in frames]
    assert holds(wire.tls_records(), sizes), "each frame is a record of its own"
    deltas = [json.loads(frame[6:])["choices"] for frame in frames[1:]]
    accepted = [
        c[0]["paceline"]["round"]["num_accepted"]
        for c in deltas
        if c and "round" in c[0]["paceline"]
    ]
    assert accepted[: len(ROUNDS)] == [len(ids) - 1 for ids in ROUNDS]
    assert set(sizes[1 : 1 + len(ROUNDS)]) == {record_size(b"x" * MULTIPLE)}
    assert {len(frame) % MULTIPLE for frame in frames} == {0}


async def test_without_padding_sizes_tell(tmp_path: Path):
    """What the flag is for; and a client that wants no padding gets none."""
    for pad_frames, options in ((0, {}), (MULTIPLE, {"include_obfuscation": False})):
        wire, frames = await over_https(tmp_path, pad_frames, **options)
        sizes = [record_size(frame) for frame in frames]
        assert holds(wire.tls_records(), sizes)
        # The first round brings the prefill's report, too.
        rounds = sizes[2 : 1 + len(ROUNDS)]
        by_length = sorted(zip([len(ids) for ids in ROUNDS[1:]], rounds, strict=True))
        ordered = [size for _, size in by_length]
        assert ordered == sorted(ordered) and ordered[0] < ordered[-1]
        assert sse.OBFUSCATION.encode() not in b"".join(frames)


async def over_grpc(pad_frames: int) -> tuple[list[int], list[pb.GenerateResponse]]:
    """(sizes on the wire, messages) of one answer."""
    async with (
        open_door(verifier(), pad_frames=pad_frames) as (gateway, _, _),
        wire_to(gateway.address) as wire,
        open_channel(wire.address) as channel,
    ):
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        responses = [r async for r in stub.Generate(pb.GenerateRequest(text="Say it", seed=1))]
        return wire.grpc_messages(), responses


async def test_grpc_shows_one_size_for_every_number_of_accepted_tokens():
    multiple = 256
    sizes, responses = await over_grpc(multiple)
    assert [r.ByteSize() for r in responses] == sizes
    deltas = [r.delta for r in responses if r.WhichOneof("response") == "delta"]
    assert [len(d.token_ids) for d in deltas[: len(ROUNDS)]] == [len(ids) for ids in ROUNDS]
    assert set(sizes[1 : 1 + len(ROUNDS)]) == {multiple}
    assert {size % multiple for size in sizes} == {0}
    bare, unpadded = await over_grpc(0)
    assert len(set(bare[1 : 1 + len(ROUNDS)])) > 4
    assert not any(r.padding for r in unpadded)


async def test_a_conversations_turns_are_padded_too():
    async with open_door(verifier(), pad_frames=256) as (_, _, stub):
        call = stub.Chat()
        await call.write(pb.ChatRequest(open=pb.OpenChat()))
        await call.read()
        await call.write(pb.ChatRequest(turn=pb.Turn(content="Say it", seed=1)))
        sizes = []
        while True:
            response = await call.read()
            sizes.append(response.ByteSize())
            if response.WhichOneof("response") == "finished":
                break
        call.cancel()
    assert {size % 256 for size in sizes} == {0}


@given(st.binary(max_size=600), st.integers(1, 8192))
def test_a_padded_message_is_a_multiple_and_says_the_same(text: bytes, multiple: int):
    message = pb.GenerateResponse(delta=pb.Delta(text=text.decode("latin-1")))
    before = message.ByteSize()
    message.padding = field_bytes(before, multiple)
    assert message.ByteSize() % multiple == 0
    assert message.ByteSize() < before + 3 * multiple
    message.ClearField("padding")
    assert message.ByteSize() == before


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300), st.integers(1, 8192))
def test_a_padded_frame_is_a_multiple_and_says_the_same(text: str, multiple: int):
    content = {"text": text}
    frame = sse.data(content, multiple)
    assert len(frame) % multiple == 0
    read = json.loads(frame[6:])
    del read[sse.OBFUSCATION]
    assert read == content
