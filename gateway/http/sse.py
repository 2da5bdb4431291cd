"""Server-sent events: frames, and a stream of them that is kept alive. Knows no dialect."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Send

from gateway.padding import filler, missing

PING_S = 15.0
OBFUSCATION = "obfuscation"
_FIELD = b',"%b":"%%b"' % OBFUSCATION.encode()
_NUM_BYTES_OF_FIELD = len(_FIELD % b"")
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies that buffer would hold the answer back.
    (b"x-accel-buffering", b"no"),
]


def data(content: dict[str, Any], multiple: int = 0) -> bytes:
    """A frame; with `multiple` of so many bytes, by a field as OpenAI's streams have it."""
    frame = b"data: " + to_json(content) + b"\n\n"
    if not multiple:
        return frame
    padding = filler(missing(len(frame) + _NUM_BYTES_OF_FIELD, multiple)).encode()
    return frame[:-3] + _FIELD % padding + b"}\n\n"


def error(content: Any) -> bytes:
    return b"event: error\ndata: " + to_json(content) + b"\n\n"


def to_json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


class EventStream:
    """An open response. Waits while the client is slow to read."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_quiet = True

    async def write(self, frame: bytes) -> None:
        self._is_quiet = False
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def ping(self, interval_s: float) -> None:
        """Writes a comment whenever an interval has passed with nothing written. Never returns."""
        while True:
            self._is_quiet = True
            await asyncio.sleep(interval_s)
            if self._is_quiet:
                await self.write(PING)


@contextlib.asynccontextmanager
async def event_stream(send: Send, ping_s: float = PING_S) -> AsyncIterator[EventStream]:
    """Begins the response; ends it when the block is left in good order."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    stream = EventStream(send)
    pinging = asyncio.create_task(stream.ping(ping_s))
    try:
        yield stream
    finally:
        pinging.cancel()
        await asyncio.wait([pinging])
    await send({"type": "http.response.body", "body": b"", "more_body": False})
