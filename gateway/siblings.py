"""The answers of one request: a seed for each, and their streams as one. Knows no messages."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from paceline.events import Event, Finished, Request
from paceline.noise import derived_seed

SEED_BITS = 63


def draw_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbits(SEED_BITS)


def siblings(request: Request) -> list[Request]:
    """A request for each of the answers, with the seed that is its own."""
    seed = draw_seed() if request.seed is None else request.seed
    return [replace(request, n=1, seed=derived_seed(seed, index)) for index in range(request.n)]


class Numbered:
    """(0, event) of the only stream there is. No generator: there is one of these per answer."""

    __slots__ = ("_stream",)

    def __init__(self, stream: AsyncGenerator[Event, None]) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        return 0, await anext(self._stream)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def merged(
    streams: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[tuple[int, Event], None]:
    """(index of the stream, event) as they come, until every stream has finished.

    The first error of a stream is raised here; then, or when closed, all streams are closed. No
    stream runs ahead of the reader by more than an event of each.
    """
    queue: asyncio.Queue[tuple[int, Event] | Exception] = asyncio.Queue(len(streams))
    pumps = [
        asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)
    ]
    try:
        num_running = len(streams)
        while num_running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
            num_running -= isinstance(item[1], Finished)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    stream: AsyncGenerator[Event, None],
    queue: asyncio.Queue[tuple[int, Event] | Exception],
) -> None:
    """All of a stream, its error included, into the queue."""
    try:
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                await queue.put((index, event))
    except Exception as error:
        await queue.put(error)
