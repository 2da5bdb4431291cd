"""Stacks that differ in their telemetry alone, and one answer of any of them, timed by its rounds.

A stack is a verifier and a gateway as processes of their own. It is asked by its client; its
processes' CPU time is the kernel's.
"""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from services import Launched, launched

from paceline.client import GatewayClient
from paceline.events import ChatMessage, Delta, DraftPolicy, Request
from paceline.params import SamplingParams, Speculation

_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_SCRAPE_S = 5.0


class Counting(grpc.GenericRpcHandler):
    """A collector that counts the bytes it is sent and reads none of them."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def service(self, call: Any) -> Any:
        if call.method != _EXPORT:
            return None
        return grpc.unary_unary_rpc_method_handler(self._export)

    def _export(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        self.num_bytes += len(request)
        return b""


@contextlib.contextmanager
def counting_collector() -> Iterator[tuple[str, Counting]]:
    """Its URL, and what it counted."""
    server, handler = grpc.server(futures.ThreadPoolExecutor(2)), Counting()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", handler
    finally:
        server.stop(None)


@contextlib.contextmanager
def bad_collector(*, hangs: bool) -> Iterator[str]:
    """The URL of one that takes connections and says nothing, or of one that is not there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if hangs:
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@dataclass
class Timed:
    """One answer. Times in ms; `per_token_ms` holds a value for every token after the first
    delivery: the gap before its delivery over the tokens in it."""

    token_ids: list[int] = field(default_factory=list)
    decode_ms: float = 0.0
    per_token_ms: list[float] = field(default_factory=list)
    num_rounds: int = 0
    cpu_ms: float = 0.0


class Stack:
    """A verifier and its gateway, up."""

    def __init__(self, verifier: Launched, gateway: Launched) -> None:
        self._services = (verifier, gateway)
        self.client = GatewayClient(gateway.address)

    async def ask(self, prompt: str, max_tokens: int) -> Timed:
        """Greedy, with prompt lookup that is never paced: the rounds are the same everywhere."""
        request = Request(
            [ChatMessage("user", prompt)],
            SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            seed=1,
            draft=DraftPolicy(Speculation.FIXED),
        )
        timed, last = Timed(), None
        cpu_ms = self._cpu_ms()
        async with contextlib.aclosing(self.client.generate(request)) as events:
            async for event in events:
                if not (isinstance(event, Delta) and event.token_ids):
                    continue
                now = time.perf_counter() * 1e3
                if last is not None:
                    each = (now - last) / len(event.token_ids)
                    timed.per_token_ms += [each] * len(event.token_ids)
                    timed.decode_ms += now - last
                    timed.num_rounds += 1
                timed.token_ids += event.token_ids
                last = now
        timed.cpu_ms = self._cpu_ms() - cpu_ms
        return timed

    def exit_s(self) -> float:
        """Both get SIGTERM; seconds until the last of them has ended."""
        begun = time.monotonic()
        for service in self._services:
            service.process.terminate()
        codes = [service.process.wait(30.0) for service in self._services]
        assert codes == [0, 0], codes
        return time.monotonic() - begun

    def _cpu_ms(self) -> float:
        return 1e3 * sum(service.cpu_s() for service in self._services)


@contextlib.contextmanager
def stack(model: str, *, endpoint: str = "", with_metrics: bool = False) -> Iterator[Stack]:
    """With `with_metrics` both pages are fetched every few seconds, as Prometheus would."""
    ports = [_free_port() if with_metrics else 0 for _ in range(2)]
    env = {
        "PACELINE_VERIFIER_METRICS_PORT": str(ports[0]),
        "PACELINE_GATEWAY_METRICS_PORT": str(ports[1]),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }
    verifying = ("-m", "verifier_service", "--port=0", f"--model={model}")
    with contextlib.ExitStack() as opened:
        verifying += ("--local-sources=prompt_lookup",)
        verifier = opened.enter_context(launched(*verifying, env=env, silent=True))
        calling = ("-m", "gateway", "--port=0", f"--verifier={verifier.address}")
        gateway = opened.enter_context(launched(*calling, env=env, silent=True))
        if with_metrics:
            stop = threading.Event()
            opened.callback(stop.set)
            threading.Thread(target=_scrape, args=(ports, stop), daemon=True).start()
        yield Stack(verifier, gateway)


def _scrape(ports: list[int], stop: threading.Event) -> None:
    while not stop.wait(_SCRAPE_S):
        for port in ports:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
