"""Clients of the drafters: one stream per address that carries all its sequences.

Dials, shakes hands, turns updates into messages and messages into blocks, reconnects with back-off.
A drafter is only an accelerator: nothing that happens here can fail a request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from paceline import telemetry
from paceline.codec import distribution_from_pb, params_to_pb, sources_from_pb
from paceline.model.engine import LanguageModel
from paceline.rejection import checked
from paceline.roles import DRAFTER, server_name
from paceline.rounds import TokenSource
from paceline.server import open_channel
from paceline.tls import TlsError, TlsFiles
from paceline.v1 import drafter_pb2 as pb
from paceline.v1 import drafter_pb2_grpc, tokens_pb2
from verifier_service.engine import Engine
from verifier_service.links import Attach, Committed, Detach, Update
from verifier_service.mailbox import Block

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
_HANDSHAKE_S = 10.0
_BACKOFF_S = (0.1, 0.5)
_REFUSED_S = 30.0
_MAX_STRIKES = 3
_BREAKER_S = (1.0, 30.0)
# Messages waiting to be written to a drafter that does not read them.
_MAX_BACKLOG = 1024


_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.DraftRequest, pb.DraftResponse]"


class _Refused(Exception):
    """The handshake failed: trying again soon would fail again."""


class _Struck(Exception):
    """Too many malformed blocks."""


@dataclass
class DrafterLink:
    """One drafter's address, its state and its counters."""

    number: int
    address: str
    state: str = "connecting"
    drafter: str = ""
    detail: str = ""
    num_blocks: int = 0
    num_stale: int = 0
    num_malformed: int = 0
    num_connects: int = 0
    strikes: int = 0
    call: "_Call | None" = None
    outbox: asyncio.Queue[list[Update]] = field(default_factory=lambda: asyncio.Queue(_MAX_BACKLOG))


class DrafterPool:
    """All drafters of this verifier. `dispatch` is called on the event loop."""

    def __init__(
        self,
        addresses: Sequence[str],
        model: LanguageModel,
        engine: Engine,
        max_draft_tokens: int,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self.links = [DrafterLink(number, address) for number, address in enumerate(addresses)]
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            model_fingerprint=model.model_fingerprint,
            tokenizer_fingerprint=model.tokenizer_fingerprint,
            vocab_size=model.vocab_size,
            max_context=model.max_context,
            max_draft_tokens=max_draft_tokens,
            modes=[tokens_pb2.SAMPLING_MODE_COUPLED, tokens_pb2.SAMPLING_MODE_REJECTION],
        )
        self._tasks = [asyncio.create_task(self._keep_connected(link)) for link in self.links]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def dispatch(self, updates: dict[int, list[Update]]) -> None:
        """Queue one message per drafter."""
        for number, batch in updates.items():
            link = self.links[number]
            if link.state == "ready":
                with contextlib.suppress(asyncio.QueueFull):
                    link.outbox.put_nowait(batch)
                    continue
                # It does not read: a new stream starts clean.
                link.state = "connecting"
                if link.call is not None:
                    link.call.cancel()

    async def _keep_connected(self, link: DrafterLink) -> None:
        backoff_s, breaker_s = _BACKOFF_S[0], _BREAKER_S[0]
        while True:
            connects, started_s = link.num_connects, self._loop.time()
            try:
                await self._converse(link)
            except _Refused as error:
                link.state, link.detail = "refused", str(error)
                log.warning("drafter %s: refused: %s", link.address, error)
                pause_s = _REFUSED_S
            except _Struck:
                link.state, link.detail = "breaker open", "too many malformed blocks"
                log.warning("drafter %s: %s", link.address, link.detail)
                if self._loop.time() - started_s > _BREAKER_S[1]:
                    breaker_s = _BREAKER_S[0]
                pause_s, breaker_s = breaker_s, min(2 * breaker_s, _BREAKER_S[1])
            except TlsError as error:
                link.state, link.detail = "refused", str(error)
                log.warning("drafter %s: %s", link.address, error)
                pause_s = _REFUSED_S
            except grpc.aio.AioRpcError as error:
                link.state, link.detail = "connecting", error.code().name
                if link.num_connects > connects:
                    log.warning("drafter %s: lost (%s)", link.address, error.code().name)
                    backoff_s = _BACKOFF_S[0]
                pause_s, backoff_s = backoff_s, min(2 * backoff_s, _BACKOFF_S[1])
            await asyncio.sleep(pause_s)

    async def _converse(self, link: DrafterLink) -> None:
        """One stream, from dialling to its end. Always raises."""
        async with open_channel(
            link.address, tls=self._tls, server_name=server_name(DRAFTER)
        ) as channel:
            stub = drafter_pb2_grpc.DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Draft(wait_for_ready=False)
            link.call, link.strikes = call, 0
            link.outbox = asyncio.Queue(_MAX_BACKLOG)
            writer: asyncio.Task[None] | None = None
            try:
                welcome = await self._shake_hands(call)
                link.state, link.detail, link.drafter = "ready", "", welcome.drafter
                link.num_connects += 1
                log.info("drafter %s: ready (%s)", link.address, welcome.drafter)
                limit = welcome.max_draft_tokens or self._hello.max_draft_tokens
                self._engine.link_up(link.number, welcome.max_context, limit)
                writer = asyncio.create_task(self._write(link, call))
                await self._read(link, call)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and not task.cancelling():
                    # The call was cancelled, by the watchdog or for its strikes, not this task.
                    if link.strikes >= _MAX_STRIKES:
                        raise _Struck from None
                    raise _broken(grpc.StatusCode.DEADLINE_EXCEEDED) from None
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._say_goodbye(call), 1.0)
                raise
            finally:
                if writer is not None:
                    writer.cancel()
                call.cancel()
                self._engine.link_down(link.number)

    async def _shake_hands(self, call: _Call) -> pb.Welcome:
        watchdog = self._loop.call_later(_HANDSHAKE_S, call.cancel)
        try:
            await call.write(pb.DraftRequest(hello=self._hello))
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            if error.code() in (
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.INVALID_ARGUMENT,
            ):
                raise _Refused(error.details() or error.code().name) from None
            raise
        finally:
            watchdog.cancel()
        if isinstance(response, pb.DraftResponse) and response.HasField("welcome"):
            return self._checked(response.welcome)
        # A first message of another kind leaves the call open: there is no code to wait for.
        code = await call.code() if call.done() else grpc.StatusCode.UNAVAILABLE
        if code in (
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.INVALID_ARGUMENT,
        ):
            raise _Refused(await call.details() or code.name)
        raise _broken(code)

    def _checked(self, welcome: pb.Welcome) -> pb.Welcome:
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise _Refused(
                f"protocol version {welcome.protocol_version}, ours is {PROTOCOL_VERSION}"
            )
        theirs, ours = welcome.tokenizer_fingerprint, self._hello.tokenizer_fingerprint
        if theirs and theirs != ours:
            raise _Refused(f"tokenizer {theirs} of the drafter is not the target's {ours}")
        return welcome

    async def _say_goodbye(self, call: _Call) -> None:
        await call.write(pb.DraftRequest(end=pb.EndOfStream()))
        await call.done_writing()

    async def _write(
        self,
        link: DrafterLink,
        call: _Call,
    ) -> None:
        try:
            while True:
                batch = await link.outbox.get()
                while not link.outbox.empty():
                    batch += link.outbox.get_nowait()
                await call.write(pb.DraftRequest(updates=updates_to_pb(batch)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader sees the same end and says why.
            call.cancel()

    async def _read(
        self,
        link: DrafterLink,
        call: _Call,
    ) -> None:
        def on_receipts(stale: int, malformed: int) -> None:
            self._loop.call_soon_threadsafe(self._count, link, call, stale, malformed)

        while link.state == "ready":
            response = await call.read()
            if not isinstance(response, pb.DraftResponse):
                break
            if response.HasField("blocks"):
                message = response.blocks
                if message.blocks:
                    link.num_blocks += len(message.blocks)
                    blocks = [
                        block_from_pb(block, self._hello.vocab_size) for block in message.blocks
                    ]
                    self._engine.blocks_arrived(link.number, blocks, on_receipts)
                if message.lost:
                    context = pb.LostSequence.REASON_CONTEXT
                    lost = [(m.sequence, m.epoch, m.reason != context) for m in message.lost]
                    self._engine.sequences_lost(link.number, lost)
            elif response.HasField("drain"):
                break
        raise _broken(await call.code() if call.done() else grpc.StatusCode.UNAVAILABLE)

    def _count(self, link: DrafterLink, call: _Call, stale: int, malformed: int) -> None:
        link.num_stale += stale
        link.num_malformed += malformed
        link.strikes += malformed
        if link.strikes >= _MAX_STRIKES:
            call.cancel()


def _broken(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


def block_from_pb(message: tokens_pb2.DraftBlock, vocab_size: int) -> Block:
    return Block(
        sequence=message.sequence,
        epoch=message.epoch,
        base_position=message.base_position,
        token_ids=list(message.token_ids),
        sources=_sources(message),
        draft_us=message.draft_us,
        distributions=[
            checked(*distribution_from_pb(distribution), vocab_size)
            for distribution in message.distributions
        ],
    )


def _sources(message: tokens_pb2.DraftBlock) -> list[TokenSource]:
    """One per token, or as many as came: the mailbox counts them."""
    sources = sources_from_pb(message.sources, len(message.sources))
    return sources * len(message.token_ids) if len(sources) == 1 else sources


def updates_to_pb(updates: Sequence[Update]) -> pb.Updates:
    message = pb.Updates()
    for update in updates:
        if isinstance(update, Committed):
            message.commits.append(commit_to_pb(update))
        elif isinstance(update, Attach):
            message.attaches.append(_attach_to_pb(update))
        else:
            assert isinstance(update, Detach)
            message.detaches.append(_detach_to_pb(update))
    return message


def _detach_to_pb(update: Detach) -> pb.Detach:
    return pb.Detach(sequence=update.sequence, finished=update.finished, token_ids=update.token_ids)


def commit_to_pb(update: Committed) -> pb.Commit:
    return pb.Commit(
        sequence=update.sequence,
        epoch=update.commit.epoch,
        base_position=update.commit.base_position,
        num_agreed=update.commit.num_agreed,
        token_ids=update.commit.token_ids,
        max_draft_tokens=update.max_draft_tokens,
        round=update.round,
    )


def _attach_to_pb(update: Attach) -> pb.Attach:
    traceparent, tracestate = (
        telemetry.format_context(update.trace) if update.trace is not None else ("", "")
    )
    return pb.Attach(
        sequence=update.sequence,
        epoch=update.epoch,
        token_ids=update.token_ids,
        num_prompt_tokens=update.num_prompt_tokens,
        params=params_to_pb(update.params),
        seed=update.seed,
        max_draft_tokens=update.max_draft_tokens,
        round=update.round,
        trace=tokens_pb2.TraceContext(traceparent=traceparent, tracestate=tracestate),
        tenant=update.tenant,
    )
