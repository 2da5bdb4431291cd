"""DrafterService on the wire: the handshake, updates in, blocks out. All messages stop here.

Knows no drafter and no thread: the engine has both. Checks what a verifier sends, and ends its
stream with INVALID_ARGUMENT when that makes no sense; what merely cannot be followed is `lost`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc

from drafter_service.engine import DraftEngine
from drafter_service.outbox import Outbox, Outgoing
from drafter_service.sequences import Stream
from drafter_service.updates import Attach, Block, Commit, Detach, Lost, Updates
from paceline import codec, telemetry
from paceline.params import FieldError, violations
from paceline.server import Refusal, Refusals
from paceline.v1 import drafter_pb2 as pb
from paceline.v1 import drafter_pb2_grpc, tokens_pb2

log = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
PROTOCOL_VERSION = 1
HELLO_DEADLINE_S = 10.0
# A request's context is the verifier's business: it has checked it.
_ANY_CONTEXT = 2**32

_Context = grpc.aio.ServicerContext[Any, Any]


class DrafterServicer(drafter_pb2_grpc.DrafterServiceServicer):
    """One Draft call per verifier."""

    def __init__(self, engine: DraftEngine, *, hello_deadline_s: float = HELLO_DEADLINE_S) -> None:
        self._engine = engine
        self._hello_deadline_s = hello_deadline_s
        self._outboxes: set[Outbox] = set()
        self._is_draining = False

    async def drain(self) -> None:
        """Tells every verifier to attach elsewhere; returns when no sequence is left."""
        self._is_draining = True
        for outbox in self._outboxes:
            outbox.drain()
        while self._engine.num_sequences:
            await asyncio.sleep(0.05)

    async def Draft(self, _: Any, context: _Context) -> None:
        tasks: list[asyncio.Task[Any]] = []
        try:
            async with Refusals(context):
                if self._is_draining:
                    raise Refusal(grpc.StatusCode.UNAVAILABLE, "draining")
                hello = await self._hello(context, tasks)
                if hello:
                    await context.write(pb.DraftResponse(welcome=self._welcome()))
                    await self._converse(context, hello, tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _hello(self, context: _Context, tasks: list[asyncio.Task[Any]]) -> pb.Hello | None:
        """The verifier's first message, checked; None when it left without any."""
        first = asyncio.create_task(_read(context))
        tasks.append(first)
        await asyncio.wait([first], timeout=self._hello_deadline_s)
        if not first.done():
            raise Refusal(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {self._hello_deadline_s:g} s"
            )
        request = first.result()
        if request is None:
            return None
        if request.WhichOneof("request") != "hello":
            raise FieldError("request", "hello must come first")
        self._check(request.hello)
        return request.hello

    def _check(self, hello: pb.Hello) -> None:
        drafter = self._engine.drafter
        if hello.protocol_version != PROTOCOL_VERSION:
            raise Refusal(
                grpc.StatusCode.UNIMPLEMENTED,
                f"the verifier speaks protocol version {hello.protocol_version}, "
                f"this drafter version {PROTOCOL_VERSION}",
            )
        if not hello.vocab_size:
            raise FieldError("hello.vocab_size", "must be at least 1")
        if not hello.max_draft_tokens:
            raise FieldError("hello.max_draft_tokens", "must be at least 1")
        if drafter.tokenizer_fingerprint not in ("", hello.tokenizer_fingerprint):
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the tokenizers differ: the verifier's is {hello.tokenizer_fingerprint!r}, "
                f"this drafter's {drafter.tokenizer_fingerprint!r}",
            )
        if drafter.vocab_size and hello.vocab_size > drafter.vocab_size:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the verifier's vocabulary of {hello.vocab_size} is larger than this drafter's "
                f"of {drafter.vocab_size}",
            )

    def _welcome(self) -> pb.Welcome:
        drafter = self._engine.drafter
        return pb.Welcome(
            protocol_version=PROTOCOL_VERSION,
            drafter=drafter.name,
            tokenizer_fingerprint=drafter.tokenizer_fingerprint,
            max_context=drafter.max_context,
            max_draft_tokens=self._engine.max_draft_tokens,
            modes=[tokens_pb2.SAMPLING_MODE_COUPLED, tokens_pb2.SAMPLING_MODE_REJECTION],
        )

    async def _converse(
        self, context: _Context, hello: pb.Hello, tasks: list[asyncio.Task[Any]]
    ) -> None:
        """Updates in, blocks out, until the verifier ends the stream or is gone."""
        # Credit bounds what a verifier that reads can have waiting.
        outbox = Outbox(self._engine.max_sequences * self._engine.max_draft_tokens)
        stream = self._engine.connect(
            hello.vocab_size, hello.max_context, hello.max_draft_tokens, outbox.deliver
        )
        self._outboxes.add(outbox)
        log.info("a verifier connected, its vocabulary has %d tokens", hello.vocab_size)
        has_said_end = False
        try:
            reader = asyncio.create_task(self._read_updates(context, hello.vocab_size, stream))
            writer = asyncio.create_task(_write(context, outbox))
            overflow = asyncio.create_task(outbox.overflowed.wait())
            tasks += [reader, writer, overflow]
            await asyncio.wait(tasks[-3:], return_when=asyncio.FIRST_COMPLETED)
            # First the reader: when the peer is gone, writing fails as well.
            if reader.done():
                has_said_end = reader.result()
            elif overflow.done():
                raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "the verifier does not read")
            else:
                writer.result()
        finally:
            self._outboxes.discard(outbox)
            self._engine.disconnect(stream)
            log.info("a verifier %s", "ended its stream" if has_said_end else "is gone")

    async def _read_updates(self, context: _Context, vocab_size: int, stream: Stream) -> bool:
        """Hands updates on until the stream is over: whether `end` said so."""
        while request := await _read(context):
            kind = request.WhichOneof("request")
            if kind == "end":
                return True
            if kind != "updates":
                raise FieldError("request", "only updates and end may follow hello")
            self._engine.submit(stream, _updates_from_pb(request.updates, vocab_size))
        return False


async def _read(context: _Context) -> pb.DraftRequest | None:
    """The next request; None when there are no more."""
    request = await context.read()
    return request if isinstance(request, pb.DraftRequest) else None


async def _write(context: _Context, outbox: Outbox) -> None:
    while True:
        outgoing = await outbox.take()
        if outgoing.blocks or outgoing.lost:
            await context.write(pb.DraftResponse(blocks=blocks_to_pb(outgoing)))
        if outgoing.is_drain:
            await context.write(pb.DraftResponse(drain=pb.Drain()))


def blocks_to_pb(outgoing: Outgoing) -> pb.Blocks:
    return pb.Blocks(
        blocks=[_block_to_pb(block) for block in outgoing.blocks],
        lost=[_lost_to_pb(lost) for lost in outgoing.lost],
    )


def _block_to_pb(block: Block) -> tokens_pb2.DraftBlock:
    sources: list[Any] = [int(block.source)]
    return tokens_pb2.DraftBlock(
        sequence=block.sequence,
        epoch=block.epoch,
        base_position=block.base_position,
        token_ids=block.token_ids,
        sources=sources,
        draft_us=block.draft_us,
        distributions=[codec.distribution_to_pb(*each) for each in block.distributions],
    )


def _lost_to_pb(lost: Lost) -> pb.LostSequence:
    reason: Any = int(lost.reason)
    return pb.LostSequence(sequence=lost.sequence, epoch=lost.epoch, reason=reason)


def _updates_from_pb(message: pb.Updates, vocab_size: int) -> Updates:
    """Raises FieldError for what makes no sense, whoever the sequence."""
    return Updates(
        detaches=[_detach_from_pb(detach, vocab_size) for detach in message.detaches],
        attaches=[_attach_from_pb(attach, vocab_size) for attach in message.attaches],
        commits=[_commit_from_pb(commit, vocab_size) for commit in message.commits],
    )


def _attach_from_pb(message: pb.Attach, vocab_size: int) -> Attach:
    token_ids, num_prompt_tokens = list(message.token_ids), message.num_prompt_tokens
    if num_prompt_tokens > len(token_ids):
        raise FieldError("attaches.num_prompt_tokens", f"exceeds the {len(token_ids)} token_ids")
    params = codec.params_from_pb(message.params)
    found = violations(
        params,
        token_ids[:num_prompt_tokens],
        token_ids[num_prompt_tokens:],
        vocab_size=vocab_size,
        max_context=_ANY_CONTEXT,
    )
    if found:
        raise Refusal.invalid(found)
    span = telemetry.parse_context(message.trace.traceparent, message.trace.tracestate)
    return Attach(
        sequence=message.sequence,
        epoch=message.epoch,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        params=params,
        seed=message.seed,
        max_draft_tokens=message.max_draft_tokens,
        round=message.round,
        span=span if telemetry.is_sampled(span) else None,
        tenant=message.tenant,
    )


def _detach_from_pb(message: pb.Detach, vocab_size: int) -> Detach:
    token_ids = list(message.token_ids)
    _check_ids("detaches.token_ids", token_ids, vocab_size)
    return Detach(message.sequence, message.finished, token_ids)


def _commit_from_pb(message: pb.Commit, vocab_size: int) -> Commit:
    token_ids = list(message.token_ids)
    _check_ids("commits.token_ids", token_ids, vocab_size)
    return Commit(
        sequence=message.sequence,
        epoch=message.epoch,
        base_position=message.base_position,
        num_agreed=message.num_agreed,
        token_ids=token_ids,
        max_draft_tokens=message.max_draft_tokens,
        round=message.round,
    )


def _check_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises FieldError."""
    if max(token_ids, default=0) >= vocab_size:
        raise FieldError(field, f"an id is outside the vocabulary of {vocab_size}")
