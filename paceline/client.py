"""A client of GatewayService: dataclasses in, async iterators of events out; messages stop here.

Given several gateways it moves on when one is lost, and an answer goes on where it broke off. What
a gateway refuses is raised as `Refusal`; when none answers, or the one in use is lost for good, as
`Unreachable`. Knows no terminal and no other service.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.access import Access
from paceline.client_codec import (
    answer_trace_from_pb,
    event_from_pb,
    request_to_pb,
    session_from_pb,
)
from paceline.client_errors import Incomplete, Unreachable, client_errors
from paceline.codec import round_from_pb
from paceline.conversation import Conversation
from paceline.events import (
    AnswerTrace,
    Event,
    Finished,
    Model,
    OpenChat,
    Request,
    Session,
    WatchedRound,
)
from paceline.resume import ResumableAnswer
from paceline.server import Refusal
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

# Refusals that another gateway, or the same one in a moment, need not make.
RETRIABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
# So that a frozen gateway is noticed in less than 3 s.
KEEPALIVE_S = 1.6
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 0.5

T = TypeVar("T")


class GatewayClient:
    """Channels to one gateway or several alike. `async with` closes them."""

    def __init__(
        self, *addresses: str, access: Access | None = None, resume_s: float = 15.0
    ) -> None:
        """An answer that was cut is tried again for `resume_s` seconds, at each in turn.

        `access`: how to get in; unset, what the environment says. Raises TlsError.
        """
        access = access or Access.from_environment()
        self._resume_s = resume_s
        self._metadata = access.metadata()
        self._channels = {
            address: access.open_channel(address, keepalive_s=KEEPALIVE_S) for address in addresses
        }
        # Generated stubs carry no types.
        self._stubs: dict[str, Any] = {
            address: gateway_pb2_grpc.GatewayServiceStub(channel)  # type: ignore[no-untyped-call]
            for address, channel in self._channels.items()
        }
        # In use; the first that answers from here on.
        self.address = addresses[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def generate(self, request: Request) -> AsyncGenerator[Event]:
        """`Started`, one `Delta` per round, `Finished`. Closing the iterator cancels the call.

        When the gateway is lost in mid-answer, the answer goes on at the next one: no token lost,
        none twice, and the digest at the end is checked (DATA_LOSS). Raises ValueError for a
        request of several answers: `generate_many` tells them apart.
        """
        if request.n != 1:
            raise ValueError(f"one answer was expected, the request is for {request.n}")
        answer = ResumableAnswer(request, time.monotonic)
        address = self.address
        failures, pause_s, give_up_at = 0, FIRST_PAUSE_S, 0.0
        while True:
            failed: Exception
            try:
                async with contextlib.aclosing(self._events(answer.request(), address)) as events:
                    async for _, event in events:
                        if (taken := answer.take(event)) is not None:
                            failures, pause_s = 0, FIRST_PAUSE_S
                            yield taken
                return
            except Incomplete:
                raise
            except Unreachable as error:
                failed = error
            except Refusal as refusal:
                if refusal.code not in RETRIABLE:
                    raise
                failed = refusal
            failures += 1
            if failures == 1:
                give_up_at = time.monotonic() + self._resume_s
            tried_all = failures >= len(self._stubs)
            if tried_all if not answer.has_started else time.monotonic() >= give_up_at:
                raise failed
            address = self._move_on(address)
            if tried_all:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def generate_many(self, request: Request) -> AsyncGenerator[tuple[int, Event]]:
        """(index, event) of all `n` answers as they come; each as `generate` gives it.

        Closing the iterator cancels all of them. Only a single answer is resumed.
        """
        if request.n == 1:
            async with contextlib.aclosing(self.generate(request)) as single:
                async for event in single:
                    yield 0, event
            return
        async with contextlib.aclosing(self._events(request, self.address)) as events:
            async for indexed in events:
                yield indexed

    async def chat(self, opening: OpenChat) -> Conversation:
        """Opens a conversation and waits for its session. The caller ends or cancels it."""

        async def opened(stub: Any) -> Conversation:
            conversation = Conversation(stub.Chat(metadata=self._metadata), self.address)
            await conversation.open(opening)
            return conversation

        return await self._anywhere(opened)

    async def get_session(self, session_id: str) -> Session:
        request = gateway_pb2.GetSessionRequest(session_id=session_id)
        response = await self._anywhere(
            lambda stub: stub.GetSession(request, metadata=self._metadata)
        )
        return session_from_pb(response.session)

    async def close_session(self, session_id: str) -> None:
        request = gateway_pb2.CloseSessionRequest(session_id=session_id)
        await self._anywhere(lambda stub: stub.CloseSession(request, metadata=self._metadata))

    async def list_models(self) -> list[Model]:
        request = gateway_pb2.ListModelsRequest()
        response = await self._anywhere(
            lambda stub: stub.ListModels(request, metadata=self._metadata)
        )
        return [
            Model(
                name=model.name,
                model_fingerprint=model.model_fingerprint,
                vocab_size=model.vocab_size,
                max_context=model.max_context,
                max_draft_tokens=model.max_draft_tokens,
                numerics=model.numerics,
            )
            for model in response.models
        ]

    async def get_trace(self, answer_id: str = "") -> AnswerTrace:
        """What the gateway in use remembers of an answer; without an id, of the one that began
        last."""
        request = gateway_pb2.GetTraceRequest(id=answer_id)
        with client_errors(self.address):
            response = await self._stubs[self.address].GetTrace(request, metadata=self._metadata)
        return answer_trace_from_pb(response)

    async def watch_rounds(self, request_id: str = "") -> AsyncGenerator[WatchedRound]:
        """Every round of the gateway in use, from now on; with an id of `Started`, of that request
        only."""
        call = self._stubs[self.address].WatchRounds(
            gateway_pb2.WatchRoundsRequest(id=request_id), metadata=self._metadata
        )
        try:
            with client_errors(self.address):
                async for response in call:
                    yield WatchedRound(
                        response.id,
                        response.workload,
                        round_from_pb(response.round),
                        response.num_missed,
                    )
        finally:
            call.cancel()

    async def _events(self, request: Request, address: str) -> AsyncGenerator[tuple[int, Event]]:
        """What the gateway sends. Raises Incomplete when it ends before all is said."""
        call = self._stubs[address].Generate(request_to_pb(request), metadata=self._metadata)
        num_finished = 0
        try:
            with client_errors(address):
                async for response in call:
                    event = event_from_pb(response)
                    num_finished += isinstance(event, Finished)
                    yield response.index, event
        finally:
            call.cancel()
        if num_finished < request.n:
            raise Incomplete(address)

    async def _anywhere(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """What the gateway in use answers, or else the next one that is there."""
        address = self.address
        for _ in range(len(self._stubs) - 1):
            try:
                with client_errors(address):
                    return await ask(self._stubs[address])
            except Unreachable:
                address = self._move_on(address)
        with client_errors(address):
            return await ask(self._stubs[address])

    def _move_on(self, address: str) -> str:
        """The next one for a call that failed there; in use from here on, unless another call has
        moved on already."""
        addresses = list(self._stubs)
        after = addresses[(addresses.index(address) + 1) % len(addresses)]
        if self.address == address:
            self.address = after
        return after


async def is_serving(address: str, service: str, timeout_s: float) -> bool:
    """What the service at the address says of its own health. Raises Unreachable or Refusal."""
    async with Access.from_environment().open_channel(address) as channel:
        with client_errors(address):
            response = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
