"""All parts of one gateway, put together."""

import asyncio
import logging
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import TracerProvider

from gateway.admission import Admission
from gateway.answers import Answers
from gateway.config import GatewaySettings
from gateway.door import Door
from gateway.failover import Failover
from gateway.http.answering import Completions
from gateway.http.app import http_app
from gateway.http.routes import api_routes, health_routes, metrics_routes
from gateway.http.server import HttpServer
from gateway.keys import Keys
from gateway.memory_sessions import MemorySessions
from gateway.metrics import GatewayMetrics
from gateway.recent import RecentAnswers
from gateway.redis_sessions import RedisSessions
from gateway.rounds import RoundHub
from gateway.servicer import GatewayServicer
from gateway.sessions import Sessions
from gateway.traces import Traces
from gateway.verifiers import Verifiers
from paceline.metrics.reader import Metrics
from paceline.server import PUBLIC_MESSAGE_BYTES, Service
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

log = logging.getLogger(__name__)

SERVICE_NAME: str = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name


class Gateway:
    """One gateway. `start`, then `wait_ready`; `drain` and `close` at the end."""

    def __init__(
        self, settings: GatewaySettings, provider: TracerProvider, metrics: Metrics | None = None
    ) -> None:
        self.service = Service(
            SERVICE_NAME,
            host=settings.host,
            port=settings.port,
            drain_s=settings.drain_s,
            message_bytes=PUBLIC_MESSAGE_BYTES,
            with_reflection=settings.reflection,
            tls=settings.port_tls,
        )
        self.verifiers = Verifiers(
            settings.verifier, stall_s=settings.stall_s, tls=settings.peer_tls
        )
        self._hub = RoundHub()
        self._admission = Admission(
            settings.max_requests,
            clock=time.monotonic,
            max_queued=settings.max_queued,
            max_queue_s=settings.max_queue_s,
        )
        self._sessions = _sessions(settings)
        keys = Keys(settings.api_keys)
        recent = RecentAnswers(settings.recent_answers)
        traces = Traces(
            provider,
            every_round=settings.trace_rounds == "all",
            recent=recent,
            metrics=self._count_into(metrics, settings.workloads) if metrics else None,
        )
        failover = Failover(self.verifiers, settings.failover_wait_s)
        door = Door(Answers(self.verifiers, failover, traces, self._hub), self._admission)
        servicer = GatewayServicer(
            door,
            self._sessions,
            self.verifiers,
            self._hub,
            self._admission,
            keys,
            recent,
            drop_old_turns=settings.history == "drop-oldest",
            pad_frames=settings.pad_frames,
        )
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(  # type: ignore[no-untyped-call]
            servicer, self.service.server
        )
        self._settings = settings
        self._http = self._http_server(door, keys, metrics) if settings.http_host else None
        self._following: asyncio.Task[None] | None = None
        # host:port, once it listens.
        self.address = ""
        self.http_address = ""

    def _count_into(self, metrics: Metrics, workloads: Sequence[str]) -> GatewayMetrics:
        return GatewayMetrics(
            metrics,
            workloads=workloads,
            served=lambda: [model.name for model in self.verifiers.models()],
            num_active=lambda: self._admission.num_running,
            num_queued=lambda: self._admission.num_queued,
            num_ready=lambda: sum(verifier.is_ready for verifier in self.verifiers.all),
        )

    async def start(self) -> None:
        """Listens and looks for verifiers."""
        self.address = await self.service.start()
        if self._http:
            self.http_address = await self._start_http(self._http)
        self.verifiers.start()
        self._following = asyncio.create_task(self._follow_verifiers())

    def is_ready(self) -> bool:
        """Whether a request would find a verifier, and be taken."""
        return bool(self.verifiers.models()) and not self._admission.draining.is_set()

    async def wait_ready(self) -> None:
        """Until at least one verifier is ready."""
        await self.verifiers.wait_ready()

    async def drain(self) -> None:
        """Takes no new work, and waits until the running answers are done."""
        if self._following:
            self._following.cancel()
        await self._admission.drain()
        self._hub.close()

    async def close(self) -> None:
        if self._following:
            self._following.cancel()
        if self._http:
            await self._http.stop()
        await self.verifiers.close()
        await self._sessions.disconnect()

    def _http_server(self, door: Door, keys: Keys, metrics: Metrics | None) -> HttpServer:
        settings = self._settings
        completions = Completions(door, self.verifiers, pad_frames=settings.pad_frames)
        routers = [
            api_routes(completions, self.verifiers, keys),
            health_routes(self.is_ready),
            *([metrics_routes(metrics, keys)] if metrics else []),
        ]
        return HttpServer(
            http_app(routers),
            settings.http_host,
            settings.wanted_http_port,
            tls=settings.port_tls,
        )

    async def _start_http(self, http: HttpServer) -> str:
        """Empty when the port that nobody asked for is taken: another gateway runs here."""
        try:
            return await http.start()
        except OSError as error:
            where = f"{self._settings.http_host}:{self._settings.wanted_http_port}"
            told = f"cannot listen on {where} ({error.strerror}); choose another --http-port"
            if self._settings.http_port is not None:
                raise SystemExit(told) from None
            log.warning("no HTTP door: %s", told)
            return ""

    async def _follow_verifiers(self) -> None:
        """Serves, by health's word, while a verifier is ready."""
        while True:
            await self.verifiers.wait_ready()
            await self.service.set_serving()
            await self.verifiers.wait_lost()
            await self.service.set_serving(False)


def _sessions(settings: GatewaySettings) -> Sessions:
    if settings.session_store == "memory":
        return MemorySessions(settings.session_ttl_s, settings.max_sessions, time.monotonic)
    return RedisSessions(settings.session_store, settings.session_ttl_s, time.monotonic)
