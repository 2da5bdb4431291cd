"""A collector that hangs or refuses delays neither a span, nor a token, nor an exit."""

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FakeVerifier, ids_of, served

from paceline import telemetry
from paceline.server import open_channel
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

ROOT = Path(__file__).parents[1]
EXIT_S = 5.0
# How long an exporter waits for an answer.
COLLECTOR_S = 20


@contextlib.contextmanager
def collector(kind: str) -> Iterator[str]:
    """The address of one that takes connections and says nothing, or of one that is not there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "hangs":
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["hangs", "refuses"])
def test_spans_are_taken_at_once_and_dropped_at_the_end(kind, monkeypatch):
    with collector(kind) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(COLLECTOR_S))
        provider = telemetry.set_up("test")
        tracer = provider.get_tracer("test")
        begun_s = time.monotonic()
        # More than one batch of an export, less than the queue.
        for _ in range(2000):
            telemetry.record_span(tracer, "paceline.round", None, 1, 2, {"a": 1})
        assert time.monotonic() - begun_s < COLLECTOR_S / 2
        begun_s = time.monotonic()
        telemetry.shut_down(provider, 0.3)
        assert time.monotonic() - begun_s < EXIT_S


@pytest.mark.parametrize(
    "kind", ["hangs", pytest.param("refuses", marks=pytest.mark.observability)]
)
async def test_a_service_answers_and_exits_in_time(kind, monkeypatch):
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    with collector(kind) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("PACELINE_GATEWAY_METRICS_PORT", "0")
        async with served(fake) as (address, _):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "--port=0", f"--verifier={address}"),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(60):
                    ready = (await process.stdout.readline()).decode().split()
                    async with open_channel(ready[2]) as channel:
                        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
                        for _ in range(20):
                            call = stub.Generate(gateway_pb2.GenerateRequest(text="a"))
                            last = [response async for response in call][-1]
                            assert last.finished.usage.num_completion_tokens == 2
                    begun_s = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                    assert await process.wait() == 0
                    assert time.monotonic() - begun_s < EXIT_S
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
