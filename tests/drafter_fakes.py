"""What the drafter's tests share: a served engine and a verifier that says what it is told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from drafter_service.drafter import Drafter
from drafter_service.engine import DraftEngine
from drafter_service.lookup import PromptLookupDrafter
from drafter_service.servicer import DrafterServicer
from paceline.v1 import drafter_pb2 as pb
from paceline.v1 import drafter_pb2_grpc

DEADLINE_S = 5.0
VOCAB_SIZE = 100


def hello(**fields: Any) -> pb.Hello:
    given = {"protocol_version": 1, "vocab_size": VOCAB_SIZE, "max_draft_tokens": 16} | fields
    return pb.Hello(**given)


def attach(sequence: int, token_ids: list[int], **fields: Any) -> pb.Attach:
    given = {"num_prompt_tokens": len(token_ids), "epoch": 1, "max_draft_tokens": 4, "round": 1}
    return pb.Attach(sequence=sequence, token_ids=token_ids, **(given | fields))


def commit(sequence: int, base_position: int, **fields: Any) -> pb.Commit:
    given = {"epoch": 1, "max_draft_tokens": 4, "round": 2}
    return pb.Commit(sequence=sequence, base_position=base_position, **(given | fields))


async def until(condition: Callable[[], bool]) -> None:
    """Polls a condition that another thread makes true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.002)


class Served:
    """A drafter behind a real port."""

    def __init__(self, engine: DraftEngine, servicer: DrafterServicer, address: str) -> None:
        self.engine, self.servicer, self.address = engine, servicer, address

    @contextlib.asynccontextmanager
    async def verifier(self, **fields: Any) -> AsyncIterator["Verifier"]:
        """A stream with its handshake done."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            verifier = Verifier(channel)
            await verifier.send(hello=hello(**fields))
            verifier.welcome = (await verifier.receive()).welcome
            yield verifier

    async def refusal(self, **request: Any) -> grpc.aio.AioRpcError:
        """How the drafter ends a stream that begins with this.

        A write to a call that has ended makes grpc.aio forget its status and say INTERNAL: again.
        """
        for _ in range(20):
            async with grpc.aio.insecure_channel(self.address) as channel:
                verifier = Verifier(channel)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await verifier.send(**request)
                error = await verifier.error()
            if error.code() is not grpc.StatusCode.INTERNAL:
                break
        return error

    async def refusal_of_silence(self) -> grpc.aio.AioRpcError:
        async with grpc.aio.insecure_channel(self.address) as channel:
            return await Verifier(channel).error()


class Verifier:
    """One Draft call, driven by hand."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        self.call = stub.Draft()
        self.welcome = pb.Welcome()

    async def send(self, **request: Any) -> None:
        await self.call.write(pb.DraftRequest(**request))

    async def update(self, **updates: Any) -> None:
        await self.send(updates=pb.Updates(**updates))

    async def receive(self) -> pb.DraftResponse:
        async with asyncio.timeout(DEADLINE_S):
            response = await self.call.read()
        assert isinstance(response, pb.DraftResponse), "the stream has ended"
        return response

    async def blocks(self) -> list[Any]:
        """The next message's blocks, which must be all it holds."""
        message = (await self.receive()).blocks
        assert not message.lost
        return list(message.blocks)

    async def lost(self) -> list[tuple[int, int, int]]:
        """(sequence, epoch, reason) of the next message that names lost sequences."""
        while True:
            message = (await self.receive()).blocks
            if message.lost:
                return [(entry.sequence, entry.epoch, entry.reason) for entry in message.lost]

    async def error(self) -> grpc.aio.AioRpcError:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the stream ended with OK")


@contextlib.asynccontextmanager
async def serving(
    drafter: Drafter | None = None,
    *,
    max_sequences: int = 8,
    max_draft_tokens: int = 8,
    hello_deadline_s: float = DEADLINE_S,
    tracer: Any = None,
) -> AsyncIterator[Served]:
    engine = DraftEngine(
        drafter or PromptLookupDrafter(),
        max_sequences=max_sequences,
        max_draft_tokens=max_draft_tokens,
        tracer=tracer,
    )
    engine.start()
    server = grpc.aio.server()
    servicer = DrafterServicer(engine, hello_deadline_s=hello_deadline_s)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Served(engine, servicer, f"127.0.0.1:{port}")
    finally:
        await server.stop(None)
        await asyncio.to_thread(engine.stop)
        assert engine.num_sequences == 0
