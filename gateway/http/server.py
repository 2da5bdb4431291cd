"""uvicorn in the gateway's own event loop. Knows no routes."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.http.envelope import MAX_HEADER_BYTES
from paceline.tls import TlsFiles, server_context

BACKLOG = 1024
IDLE_S = 30
# From a request's first byte, or the connection, to the end of its headers.
HEAD_S = 10.0
# Answers have drained before; what is left is cancelled.
STOP_S = 1


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The gateway handles its signals itself."""
        yield


class _Connection(H11Protocol):
    """Tells the application which DNS names stand in the caller's certificate.

    Closes a connection whose request does not get to the end of its headers.
    """

    _giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert") or {}
        names = tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS")
        self.app_state = {**self.app_state, "peer_names": names}
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._expects_head:
            self._expect_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _expects_head(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _expect_head(self) -> None:
        if self._giving_up is None:
            self._giving_up = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _give_up(self) -> None:
        if self._expects_head:
            self.transport.close()


class HttpServer:
    """`start`, then `stop`."""

    def __init__(self, app: ASGIApp, host: str, port: int, *, tls: TlsFiles | None = None) -> None:
        """Plaintext without `tls`; with `tls.ca`, callers need a certificate. Raises TlsError."""
        self._host, self._port = host, port
        context = server_context(tls) if tls else None
        self._server = _Server(
            uvicorn.Config(
                app,
                # h11 is the only one with a limit on headers that are not yet whole.
                http=_Connection,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                ssl_context_factory=(lambda *_: context) if context else None,
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
