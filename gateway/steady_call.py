"""A call to a verifier none of whose operations is cancelled half-way.

grpc.aio frees what an operation holds when it has ended; one that is cancelled keeps it for ever
(docs/log.md). So they run in tasks of their own, and whoever is cancelled leaves them to `close`.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import grpc

# How long a verifier gets to end a call before it is cancelled.
CLOSE_S = 1.0


class SteadyCall:
    """A stream in both directions. Used by one task; `close` once, whatever happened."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Any] | None = None

    async def write(self, message: Any) -> None:
        """Raises as grpc.aio does, InvalidStateError for a call that has ended among it."""
        self._writing = _task(self._call.write(message))
        await asyncio.shield(self._writing)
        self._writing = None

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF. Raises as grpc.aio does."""
        self._reading = _task(self._call.read())
        return await asyncio.shield(self._reading)

    def cancel(self) -> None:
        """Ends the call at once: whoever reads gets CancelledError."""
        self._call.cancel()

    async def close(self, last_words: Any = None) -> None:
        """Lets the verifier end the call, after `last_words` if any; cancels it if that is long."""
        lost = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError)
        try:
            with contextlib.suppress(*lost):
                async with asyncio.timeout(CLOSE_S):
                    await _ended(self._writing)
                    if last_words is not None:
                        await self._call.write(last_words)
                    await self._call.done_writing()
                    await _ended(self._reading)
                    while await self._call.read() is not grpc.aio.EOF:
                        pass
        finally:
            self._call.cancel()


def _task(operation: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(operation)


async def _ended(task: asyncio.Task[Any] | None) -> None:
    if task is not None and not task.done():
        await asyncio.wait([task])
