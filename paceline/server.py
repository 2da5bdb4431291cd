"""The gRPC server of a service: limits, keepalive, health, errors and draining.

Status codes and details are made here and nowhere else. Whatever a handler raises that is not a
`Refusal` becomes INTERNAL with an error id; its text stays in this process's log. Knows no service.
"""

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from paceline.params import FieldError, Violation
from paceline.roles import RoleGuard
from paceline.tls import TlsFiles, channel_credentials, server_credentials

log = logging.getLogger(__name__)

PUBLIC_MESSAGE_BYTES = 4 * 2**20
INTERNAL_MESSAGE_BYTES = 16 * 2**20

# Seconds between keepalive pings; half of it for the answer.
KEEPALIVE_S = 10.0


def _keepalive(every_s: float) -> list[tuple[str, int]]:
    every_ms = int(every_s * 1000)
    return [
        ("grpc.keepalive_time_ms", every_ms),
        ("grpc.keepalive_timeout_ms", every_ms // 2),
        # Without it a frozen peer is noticed after a minute, whatever keepalive_timeout says.
        ("grpc.http2.ping_timeout_ms", every_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class Refusal(Exception):
    """A request that is answered with a status: the one error a caller sees the text of."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        violations: Sequence[Violation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = list(violations)
        self.retry_after_s = retry_after_s

    @classmethod
    def invalid(cls, violations: Sequence[Violation]) -> "Refusal":
        """INVALID_ARGUMENT that names every field."""
        text = "; ".join(f"{v.field}: {v.description}" for v in violations)
        return cls(grpc.StatusCode.INVALID_ARGUMENT, text, violations=violations)

    @classmethod
    def from_rpc_error(cls, error: grpc.aio.AioRpcError) -> "Refusal":
        """The refusal another of our services made, to be passed on as it is."""
        violations: list[Violation] = []
        retry_after_s = None
        status = rpc_status.from_call(_Call(error))
        for detail in status.details if status else ():
            bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
            if detail.Unpack(bad):
                violations += [Violation(f.field, f.description) for f in bad.field_violations]
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        return cls(
            error.code(), error.details() or "", violations=violations, retry_after_s=retry_after_s
        )

    def status(self) -> status_pb2.Status:
        details: list[Any] = [error_details_pb2.ErrorInfo(reason=self.code.name, domain="paceline")]
        if self.violations:
            details.append(
                error_details_pb2.BadRequest(
                    field_violations=[
                        error_details_pb2.BadRequest.FieldViolation(
                            field=v.field, description=v.description
                        )
                        for v in self.violations
                    ]
                )
            )
        if self.retry_after_s is not None:
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(int(self.retry_after_s * 1000))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        packed = [any_pb2.Any() for _ in details]
        for box, detail in zip(packed, details, strict=True):
            box.Pack(detail)
        return status_pb2.Status(
            code=code_pb2.Code.Value(self.code.name), message=self.message, details=packed
        )


class _Call:
    """What grpc_status wants of a call, from an error."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.details = error.code, error.details
        self.trailing_metadata = error.trailing_metadata


class Refusals:
    """Turns what is raised inside into the call's status. Every handler's body runs in one."""

    __slots__ = ("_context",)

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        match error:
            case FieldError():
                await self._refuse(Refusal.invalid([error.violation]))
            case Refusal():
                await self._refuse(error)
            case grpc.aio.AbortError():
                pass
            case Exception():
                error_id = secrets.token_hex(8)
                log.error("error %s in a handler", error_id, exc_info=error)
                await self._context.abort(grpc.StatusCode.INTERNAL, f"internal error {error_id}")

    async def _refuse(self, refusal: Refusal) -> None:
        await self._context.abort_with_status(rpc_status.to_status(refusal.status()))


def server_options(message_bytes: int) -> list[tuple[str, int]]:
    return [
        *_keepalive(KEEPALIVE_S),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_concurrent_streams", 4096),
        ("grpc.max_metadata_size", 8192),
        ("grpc.so_reuseport", 0),
    ]


def channel_options(message_bytes: int, keepalive_s: float = KEEPALIVE_S) -> list[tuple[str, int]]:
    return [
        *_keepalive(keepalive_s),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        # An http_proxy variable is for the web: with it, even loopback would go to the proxy.
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
    ]


def open_channel(
    address: str,
    message_bytes: int = INTERNAL_MESSAGE_BYTES,
    *,
    keepalive_s: float = KEEPALIVE_S,
    tls: TlsFiles | None = None,
    server_name: str = "",
) -> grpc.aio.Channel:
    """A channel with the project's keepalive, back-off and limits: plaintext without `tls`.

    A frozen peer is noticed within 1.5 times `keepalive_s`, which servers allow to be 1 s or more.
    The other side's certificate must have `server_name`, or without one the address's name.
    Raises TlsError.
    """
    options: list[tuple[str, int | str]] = [*channel_options(message_bytes, keepalive_s)]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)


def refuse_exposure(
    host: str, insecure: bool, *, encrypted: bool = False, authenticated: bool = False
) -> None:
    """Exits unless the address is loopback, the port is secure, or `insecure` was asked for.

    Secure is TLS, and callers that have to say who they are.
    """
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback or insecure or (encrypted and authenticated):
        return
    lack = "takes any caller" if encrypted else "is plaintext"
    raise SystemExit(
        f"host {host} is not loopback and the port {lack}: set --tls-cert and --tls-key, and "
        "--tls-client-ca (or --api-keys at a gateway), or pass --insecure if the network is "
        "yours alone"
    )


class Service:
    """One process's server: `start`, then `serve_until_signal`."""

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        drain_s: float,
        message_bytes: int,
        with_reflection: bool,
        tls: TlsFiles | None = None,
    ) -> None:
        """With `tls`, its port speaks TLS; with `tls.ca`, callers need a role. Raises TlsError."""
        self.name = name
        self._host, self._port = host, port
        self._drain_s = drain_s
        self._with_reflection = with_reflection
        self._credentials = server_credentials(tls) if tls else None
        guards = [RoleGuard()] if tls and tls.ca else []
        self.server = grpc.aio.server(options=server_options(message_bytes), interceptors=guards)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self.draining = asyncio.Event()

    async def start(self) -> str:
        """Listens, not yet serving by health's word. Returns host:port."""
        if self._with_reflection:
            names = (self.name, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.server)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        host = f"[{self._host}]" if ":" in self._host else self._host
        wanted = f"{host}:{self._port}"
        if self._credentials:
            port = self.server.add_secure_port(wanted, self._credentials)
        else:
            port = self.server.add_insecure_port(wanted)
        await self.server.start()
        return f"{host}:{port}"

    async def set_serving(self, serving: bool = True) -> None:
        states = health_pb2.HealthCheckResponse
        await self._set_health(states.SERVING if serving else states.NOT_SERVING)

    async def _set_health(self, state: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        for name in ("", self.name):
            await self._health.set(name, state)

    async def serve_until_signal(self, on_drain: Callable[[], Awaitable[None]]) -> None:
        """Serves until SIGTERM or SIGINT; then drains: refuses new work, finishes the old."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.draining.set)
        await self.draining.wait()
        log.info("draining for at most %.0f s", self._drain_s)
        await self.set_serving(False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(on_drain(), self._drain_s)
        await self.server.stop(0.5)


def run(main: Awaitable[None]) -> None:
    """Runs a service's main coroutine, on uvloop where it is installed."""

    async def body() -> None:
        await main

    try:
        import uvloop
    except ImportError:
        asyncio.run(body())
    else:
        uvloop.run(body())


def set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname).1s %(name)s: %(message)s"
    )
