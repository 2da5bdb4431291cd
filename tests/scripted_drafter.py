"""A drafter that knows the answers, and a script that spoils what it says."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from paceline.rounds import TokenSource
from paceline.server import INTERNAL_MESSAGE_BYTES, server_options
from paceline.v1 import drafter_pb2 as pb
from paceline.v1 import drafter_pb2_grpc, tokens_pb2


def welcome(**fields: Any) -> pb.DraftResponse:
    given = {"protocol_version": 1, "drafter": "scripted"}
    return pb.DraftResponse(welcome=pb.Welcome(**(given | fields)))


@dataclass(frozen=True)
class HangUp:
    """The stream ends here; with a code, as an error."""

    code: grpc.StatusCode | None = None


# Of the verifiers that tests start for this drafter: their longest block.
BLOCK = 8


@dataclass
class Followed:
    """One sequence as the drafter knows it after the news of a step."""

    sequence: int
    epoch: int
    position: int
    max_draft_tokens: int
    seed: int
    truth: Sequence[int]
    # Up to where it has drafted in this epoch.
    sent: int
    # Only attached so far: a first round waits for no draft, and makes one stale.
    is_new: bool = True

    def block(self, token_ids: Sequence[int], **fields: Any) -> tokens_pb2.DraftBlock:
        """A valid block with these tokens, but for the fields given."""
        given = {
            "sequence": self.sequence,
            "epoch": self.epoch,
            "base_position": self.sent,
            "token_ids": token_ids,
            "sources": [int(TokenSource.DRAFT_MODEL)],
        }
        return tokens_pb2.DraftBlock(**(given | fields))

    def honest(self) -> list[tokens_pb2.DraftBlock]:
        """The true continuation, one block and no further: a verifier that has more may go on
        before it has heard all, and what it hears then is stale."""
        end = min(self.position + min(self.max_draft_tokens, BLOCK), len(self.truth))
        block = self.block(self.truth[self.sent : end])
        self.sent = max(self.sent, end)
        return [block] if block.token_ids else []


# Blocks, whole responses, raw bytes in place of a response, or the end.
Said = tokens_pb2.DraftBlock | pb.DraftResponse | bytes | HangUp
# What to say to the news of one sequence.
Script = Callable[[Followed], Sequence[Said]]


def honestly(news: Followed) -> Sequence[Said]:
    return news.honest()


class ScriptedDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Follows every sequence as the protocol says; a script answers its news."""

    def __init__(
        self,
        make_script: Callable[[], Script] = lambda: honestly,
        truths: Mapping[int, Sequence[int]] | None = None,
        *,
        first: Sequence[Said] = (welcome(),),
        delay_s: float = 0.0,
    ) -> None:
        """`make_script` is called for each stream, `truths` are whole sequences by their seed."""
        self._make_script, self._truths = make_script, truths or {}
        self._first, self._delay_s = first, delay_s
        self.num_dials = 0
        self.port = 0

    async def Draft(self, _: Any, context: Any) -> None:
        self.num_dials += 1
        script, followed = self._make_script(), {}
        late: set[asyncio.Task[bool]] = set()
        await context.read()
        try:
            goes_on = await _say(context, self._first)
            while goes_on and isinstance(request := await context.read(), pb.DraftRequest):
                said = [
                    each for news in self._news(request.updates, followed) for each in script(news)
                ]
                if self._delay_s:
                    late.add(asyncio.create_task(self._say_late(context, said)))
                else:
                    goes_on = await _say(context, said)
        finally:
            for task in late:
                task.cancel()

    def _news(self, updates: pb.Updates, followed: dict[int, Followed]) -> list[Followed]:
        fresh: dict[int, Followed] = {}
        for detach in updates.detaches:
            followed.pop(detach.sequence, None)
        for attach in updates.attaches:
            length = len(attach.token_ids)
            fresh[attach.sequence] = followed[attach.sequence] = Followed(
                sequence=attach.sequence,
                epoch=attach.epoch,
                position=length,
                max_draft_tokens=attach.max_draft_tokens,
                seed=attach.seed,
                truth=self._truths.get(attach.seed, ()),
                sent=length,
            )
        for commit in updates.commits:
            if (known := followed.get(commit.sequence)) is None:
                continue
            known.position = commit.base_position + commit.num_agreed + len(commit.token_ids)
            known.max_draft_tokens = commit.max_draft_tokens
            known.is_new = False
            if commit.epoch != known.epoch:
                known.epoch, known.sent = commit.epoch, known.position
            fresh[commit.sequence] = known
        return list(fresh.values())

    async def _say_late(self, context: Any, said: Sequence[Said]) -> bool:
        await asyncio.sleep(self._delay_s)
        return await _say(context, said)


async def _say(context: Any, said: Sequence[Said]) -> bool:
    """In order, neighbouring blocks in one message. False once the script has hung up."""
    blocks: list[tokens_pb2.DraftBlock] = []

    async def flush() -> None:
        if blocks:
            await context.write(pb.DraftResponse(blocks=pb.Blocks(blocks=blocks)))
            blocks.clear()

    for each in said:
        if isinstance(each, tokens_pb2.DraftBlock):
            blocks.append(each)
            continue
        await flush()
        if isinstance(each, HangUp):
            if each.code is not None:
                await context.abort(each.code, "as scripted")
            return False
        await context.write(each)
    await flush()
    return True


def lasting_port() -> int:
    """A free port that stays free between servers.

    Below the range of outgoing connections: one of those, even a dial to this very port while
    nobody listens, may otherwise take it.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


@contextlib.asynccontextmanager
async def scripted(drafter: ScriptedDrafter, port: int = 0) -> AsyncIterator[ScriptedDrafter]:
    """Serves it on this port, 0 for any. Responses that are bytes go out as they are."""
    handler = grpc.stream_stream_rpc_method_handler(
        drafter.Draft,
        request_deserializer=pb.DraftRequest.FromString,
        response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
    )
    service = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
    server = grpc.aio.server(options=server_options(2 * INTERNAL_MESSAGE_BYTES))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Draft": handler}),)
    )
    drafter.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield drafter
    finally:
        await server.stop(0)
