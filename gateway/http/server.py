"""uvicorn in the gateway's own event loop. Knows no routes."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

HEADER_BYTES = 16 * 1024
BACKLOG = 1024
IDLE_S = 30
# Answers have drained before; what is left is cancelled.
STOP_S = 1


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The gateway handles its signals itself."""
        yield


class HttpServer:
    """`start`, then `stop`."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server = _Server(
            uvicorn.Config(
                app,
                # The only one with a limit on headers.
                http="h11",
                h11_max_incomplete_event_size=HEADER_BYTES,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listens. Returns host:port; raises OSError when it cannot."""
        listening = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
            # From here on clients may connect, before the server has its first turn.
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{listening.getsockname()[1]}"

    async def stop(self) -> None:
        """Takes no more connections and ends those there are."""
        if self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
