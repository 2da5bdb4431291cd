"""All parts of one gateway, put together."""

import asyncio
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import TracerProvider

from gateway.admission import Admission
from gateway.answers import Answers
from gateway.config import GatewaySettings
from gateway.metrics import GatewayMetrics
from gateway.recent import RecentAnswers
from gateway.rounds import RoundHub
from gateway.servicer import GatewayServicer
from gateway.sessions import Sessions
from gateway.traces import Traces
from gateway.verifiers import Verifiers
from paceline.metrics.reader import Metrics
from paceline.server import PUBLIC_MESSAGE_BYTES, Service
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

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
        )
        self.verifiers = Verifiers(settings.verifier)
        self._hub = RoundHub()
        self._admission = Admission(settings.max_requests)
        recent = RecentAnswers(settings.recent_answers)
        traces = Traces(
            provider,
            every_round=settings.trace_rounds == "all",
            recent=recent,
            metrics=self._count_into(metrics, settings.workloads) if metrics else None,
        )
        servicer = GatewayServicer(
            Answers(self.verifiers, traces, self._hub),
            Sessions(settings.session_ttl_s, settings.max_sessions, time.monotonic),
            self.verifiers,
            self._hub,
            self._admission,
            recent,
        )
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(  # type: ignore[no-untyped-call]
            servicer, self.service.server
        )
        self._following: asyncio.Task[None] | None = None
        # host:port, once it listens.
        self.address = ""

    def _count_into(self, metrics: Metrics, workloads: Sequence[str]) -> GatewayMetrics:
        return GatewayMetrics(
            metrics,
            workloads=workloads,
            served=lambda: [model.name for model in self.verifiers.models()],
            num_active=lambda: self._admission.num_running,
            num_ready=lambda: sum(verifier.is_ready for verifier in self.verifiers.all),
        )

    async def start(self) -> None:
        """Listens and looks for verifiers."""
        self.address = await self.service.start()
        self.verifiers.start()
        self._following = asyncio.create_task(self._follow_verifiers())

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
        await self.verifiers.close()

    async def _follow_verifiers(self) -> None:
        """Serves, by health's word, while a verifier is ready."""
        while True:
            await self.verifiers.wait_ready()
            await self.service.set_serving()
            await self.verifiers.wait_lost()
            await self.service.set_serving(False)
