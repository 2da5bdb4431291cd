"""A client of GatewayService: dataclasses in, async iterators of events out; messages stop here.

What the gateway refuses is raised as `Refusal`; a gateway that does not answer, or is lost on the
way, as `Unreachable`. Knows no terminal and no other service.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.client_codec import (
    answer_trace_from_pb,
    event_from_pb,
    opening_to_pb,
    request_to_pb,
    session_from_pb,
)
from paceline.codec import params_to_pb, round_from_pb
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
from paceline.params import SamplingParams
from paceline.server import PUBLIC_MESSAGE_BYTES, Refusal, open_channel
from paceline.v1 import drafter_pb2, gateway_pb2, gateway_pb2_grpc


class Unreachable(Exception):
    """Nobody answers at the address, or whoever did is gone."""

    def __init__(self, address: str) -> None:
        super().__init__(f"no gateway answers at {address}")
        self.address = address


class GatewayClient:
    """One channel to a gateway. `async with` closes it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address, PUBLIC_MESSAGE_BYTES)
        # Generated stubs carry no types.
        self._stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def generate(self, request: Request) -> AsyncGenerator[Event]:
        """`Started`, one `Delta` per round, `Finished`. Closing the iterator cancels the call.

        Raises ValueError for a request of several answers: `generate_many` tells them apart.
        """
        if request.n != 1:
            raise ValueError(f"one answer was expected, the request is for {request.n}")
        async with contextlib.aclosing(self.generate_many(request)) as events:
            async for _, event in events:
                yield event

    async def generate_many(self, request: Request) -> AsyncGenerator[tuple[int, Event]]:
        """(index, event) of all `n` answers as they come; each as `generate` gives it.

        Closing the iterator cancels all of them.
        """
        call = self._stub.Generate(request_to_pb(request))
        num_finished = 0
        try:
            with _client_errors(self.address):
                async for response in call:
                    event = event_from_pb(response)
                    num_finished += isinstance(event, Finished)
                    yield response.index, event
        finally:
            call.cancel()
        if num_finished < request.n:
            raise Unreachable(self.address)

    async def chat(self, opening: OpenChat) -> "Conversation":
        """Opens a conversation and waits for its session. The caller ends or cancels it."""
        conversation = Conversation(self._stub.Chat(), self.address)
        await conversation._open(opening)
        return conversation

    async def get_session(self, session_id: str) -> Session:
        with _client_errors(self.address):
            response = await self._stub.GetSession(
                gateway_pb2.GetSessionRequest(session_id=session_id)
            )
        return session_from_pb(response.session)

    async def close_session(self, session_id: str) -> None:
        with _client_errors(self.address):
            await self._stub.CloseSession(gateway_pb2.CloseSessionRequest(session_id=session_id))

    async def list_models(self) -> list[Model]:
        with _client_errors(self.address):
            response = await self._stub.ListModels(gateway_pb2.ListModelsRequest())
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
        """What the gateway remembers of an answer; without an id, of the one that began last."""
        with _client_errors(self.address):
            response = await self._stub.GetTrace(gateway_pb2.GetTraceRequest(id=answer_id))
        return answer_trace_from_pb(response)

    async def watch_rounds(self, request_id: str = "") -> AsyncGenerator[WatchedRound]:
        """Every round from now on; with an id of `Started`, of that request only."""
        call = self._stub.WatchRounds(gateway_pb2.WatchRoundsRequest(id=request_id))
        try:
            with _client_errors(self.address):
                async for response in call:
                    yield WatchedRound(
                        response.id,
                        response.workload,
                        round_from_pb(response.round),
                        response.num_missed,
                    )
        finally:
            call.cancel()


class Conversation:
    """One Chat stream. After an error or a cancelled turn it is over; its session is not."""

    session: Session

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    async def turn(
        self,
        content: str,
        *,
        seed: int | None = None,
        params: SamplingParams | None = None,
        request_id: str = "",
        timeout_ms: int = 0,
    ) -> AsyncGenerator[Event]:
        """Asks, and gives the answer's events; leaving it early cancels the stream."""
        turn = gateway_pb2.Turn(
            content=content,
            seed=seed,
            params=None if params is None else params_to_pb(params),
            request_id=request_id,
            timeout_ms=timeout_ms,
        )
        finished = False
        try:
            await self._write(gateway_pb2.ChatRequest(turn=turn))
            while not finished:
                event = event_from_pb(await self._read())
                finished = isinstance(event, Finished)
                yield event
        finally:
            if not finished:
                self.cancel()

    async def end(self) -> None:
        """Says goodbye: the gateway keeps the session and ends the stream."""
        await self._write(gateway_pb2.ChatRequest(end=drafter_pb2.EndOfStream()))
        with _client_errors(self._address):
            await self._call.done_writing()
            await self._call.read()

    def cancel(self) -> None:
        self._call.cancel()

    async def _open(self, opening: OpenChat) -> None:
        try:
            await self._write(gateway_pb2.ChatRequest(open=opening_to_pb(opening)))
            response = await self._read()
        except BaseException:
            self.cancel()
            raise
        self.session = session_from_pb(response.session)

    async def _write(self, message: gateway_pb2.ChatRequest) -> None:
        with _client_errors(self._address):
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                # The call has ended; reading from it raises its status.
                await self._call.read()
                raise Unreachable(self._address) from None

    async def _read(self) -> Any:
        with _client_errors(self._address):
            response: Any = await self._call.read()
            if response is grpc.aio.EOF:
                raise Unreachable(self._address)
        return response


async def is_serving(address: str, service: str, timeout_s: float) -> bool:
    """What the service at the address says of its own health. Raises Unreachable or Refusal."""
    async with open_channel(address) as channel:
        with _client_errors(address):
            response = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


@contextlib.contextmanager
def _client_errors(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        # A service's own refusals carry details; the transport's errors carry none.
        explained = "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
        if error.code() is grpc.StatusCode.UNAVAILABLE and not explained:
            raise Unreachable(address) from error
        raise Refusal.from_rpc_error(error) from error
    except asyncio.CancelledError:
        # grpc.aio raises this for a call that the *server* cancelled, too.
        task = asyncio.current_task()
        if task is not None and task.cancelling() == 0:
            raise Unreachable(address) from None
        raise
