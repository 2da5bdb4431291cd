"""One conversation with a gateway: the client's end of a Chat stream."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc

from paceline.client_codec import event_from_pb, opening_to_pb, session_from_pb
from paceline.client_errors import Unreachable, client_errors
from paceline.codec import params_to_pb
from paceline.events import Event, Finished, OpenChat, Session
from paceline.params import SamplingParams
from paceline.v1 import drafter_pb2, gateway_pb2


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
        with client_errors(self._address):
            await self._call.done_writing()
            await self._call.read()

    def cancel(self) -> None:
        self._call.cancel()

    async def open(self, opening: OpenChat) -> None:
        """The first message; afterwards there is a `session`."""
        try:
            await self._write(gateway_pb2.ChatRequest(open=opening_to_pb(opening)))
            response = await self._read()
        except BaseException:
            self.cancel()
            raise
        self.session = session_from_pb(response.session)

    async def _write(self, message: gateway_pb2.ChatRequest) -> None:
        with client_errors(self._address):
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                # The call has ended; reading from it raises its status.
                await self._call.read()
                raise Unreachable(self._address) from None

    async def _read(self) -> Any:
        with client_errors(self._address):
            response: Any = await self._call.read()
            if response is grpc.aio.EOF:
                raise Unreachable(self._address)
        return response
