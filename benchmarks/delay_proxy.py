"""A TCP proxy that delivers everything so much later, in order, both ways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_PIECE = 1 << 16


@contextlib.asynccontextmanager
async def delayed(target_port: int, delay_s: float) -> AsyncIterator[int]:
    """The proxy's port on loopback; it forwards to the target's."""
    tasks: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port)
            for pair in ((reader, far_writer), (far_reader, writer)):
                task = asyncio.create_task(_forward(*pair, delay_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            return
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
                writer.close()
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
