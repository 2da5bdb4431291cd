"""Answers a completion request over HTTP, whole or as a stream, until its client is gone.

Knows no bodies: a request comes in as the gateway's own.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.answers import Arrival
from gateway.door import Door
from gateway.http import sse
from gateway.http.dialects import Dialect
from gateway.http.errors import Problem, internal_problem, problem_of
from gateway.http.transcripts import Transcript
from gateway.verifiers import Verifiers
from paceline.events import Event, Request, Started
from paceline.params import FieldError
from paceline.server import Refusal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the answer is to come."""

    dialect: Dialect
    is_stream: bool
    with_usage: bool
    with_running_usage: bool
    # As far as the gateway pads frames at all.
    is_padded: bool


class Completions:
    """What answers completion requests."""

    def __init__(self, door: Door, verifiers: Verifiers, *, pad_frames: int) -> None:
        """`pad_frames`: frames of streams are a multiple of so many bytes; 0 is off."""
        self._door = door
        self._verifiers = verifiers
        self._pad_frames = pad_frames

    def response(self, request: Request, arrival: Arrival, shape: Shape) -> Response:
        """Raises Refusal for a model that is not served. All else happens as it is sent."""
        model, text = self._verifiers.serving(request.model)
        request = replace(request, model=model.name)
        transcript = Transcript(
            shape.dialect, request, model, text.token_bytes, arrival.unix_nanos // 10**9
        )
        pad_frames = self._pad_frames if shape.is_padded else 0
        return _Answering(self._door.answers(request, arrival), transcript, shape, pad_frames)


class _Answering(Response):
    """One response. Its work is one task, cancelled when the client is gone."""

    def __init__(
        self,
        events: AsyncGenerator[tuple[int, Event], None],
        transcript: Transcript,
        shape: Shape,
        pad_frames: int,
    ) -> None:
        self.background = None
        self._events = events
        self._transcript = transcript
        self._shape = shape
        self._pad_frames = pad_frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises the Refusal of a request that is refused before anything was sent."""
        answer = self._stream(send) if self._shape.is_stream else self._whole(send)
        work = asyncio.create_task(answer)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_done = work.done()
            for task in (work, gone):
                task.cancel()
            await asyncio.wait([work, gone])
        if was_done:
            work.result()

    async def _whole(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            async for index, event in events:
                self._transcript.keep(index, event)
        content = sse.to_json(self._transcript.whole())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _stream(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            # A refusal comes before any answer, and so with a status of its own.
            first = await anext(events)
            async with sse.event_stream(send) as stream:
                try:
                    await stream.write(self._frame(*first))
                    async for index, event in events:
                        await stream.write(self._frame(index, event))
                except Exception as error:
                    await stream.write(sse.error(self._problem(error).body))
                    return
                if self._shape.with_usage:
                    usage = self._transcript.usage_chunk()
                    await stream.write(sse.data(usage, self._pad_frames))
                await stream.write(sse.DONE)

    def _frame(self, index: int, event: Event) -> bytes:
        chunk = self._transcript.chunk(index, event)
        if self._shape.with_running_usage and not isinstance(event, Started):
            chunk["usage"] = self._transcript.usage()
        elif self._shape.with_usage:
            chunk["usage"] = None
        return sse.data(chunk, self._pad_frames)

    def _problem(self, error: Exception) -> Problem:
        match error:
            case FieldError():
                return problem_of(
                    Refusal.invalid([error.violation]), self._shape.dialect.prompt_field
                )
            case Refusal():
                return problem_of(error, self._shape.dialect.prompt_field)
            case _:
                error_id = secrets.token_hex(8)
                log.error("error %s in an answer", error_id, exc_info=error)
                return internal_problem(error_id)


async def _disconnected(receive: Receive) -> None:
    """Until the client is gone. The body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
