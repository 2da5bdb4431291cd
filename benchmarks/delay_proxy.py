"""A TCP proxy that delivers everything so much later, in order, both ways.

Where it leads, and how late, may change: what is connected then is cut off and may dial again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_PIECE = 1 << 16


class Line:
    """`port` is on loopback. Leads nowhere until `lead_to`."""

    def __init__(self) -> None:
        self.port = 0
        self.is_used = asyncio.Event()
        self._target: tuple[str, int] | None = None
        self._delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def lead_to(self, address: str | None, delay_s: float = 0.0) -> None:
        """Cut off what is connected; what dials from now on gets there. None: nobody is there."""
        host, _, port = (address or "").rpartition(":")
        self._target = (host, int(port)) if address else None
        self._delay_s = delay_s
        self.is_used.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""
        if self._target is None:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        for pair in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(_forward(*pair, self._delay_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.is_used.set()


@contextlib.asynccontextmanager
async def open_line() -> AsyncIterator[Line]:
    """A line, until the end of the block."""
    line = Line()
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.port = int(server.sockets[0].getsockname()[1])
    try:
        yield line
    finally:
        server.close()
        await line.lead_to(None)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due_s, piece = await pieces.get()
            await asyncio.sleep(max(due_s - loop.time(), 0.0))
            if not piece:
                return
            writer.write(piece)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    try:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                pieces.put_nowait((loop.time() + delay_s, piece))
        pieces.put_nowait((loop.time() + delay_s, b""))
        with contextlib.suppress(OSError):
            await delivery
    finally:
        delivery.cancel()
        writer.close()
