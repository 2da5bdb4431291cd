"""The page that Prometheus scrapes: /metrics on a port of its own, on threads of its own.

Plain text, or OpenMetrics with exemplars for who asks for it. Knows no instrument.
"""

import logging
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from paceline.metrics.instruments import Alias, Instrument
from paceline.metrics.reader import Metrics
from paceline.server import refuse_exposure
from paceline.settings import ServiceSettings

log = logging.getLogger(__name__)

# What the end of a service waits for the page's, at most.
_POLL_S = 0.1


class Endpoint:
    """A process's metrics, and the server that shows them."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Raises OSError when nothing can listen there."""
        self.metrics = metrics
        self._server = _Server((host, port), metrics.registry)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.metrics.close()


class _Server(ThreadingHTTPServer):
    # A scraper that hangs holds up no exit.
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.registry = registry
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body, content_type = render(self.server.registry, self.headers.get("Accept", ""))
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """A scrape is no news."""


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type; exemplars are in OpenMetrics only."""
    if "application/openmetrics-text" not in accept:
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
    # Our names need no escaping, and any other choice turns the colon of vLLM's into an underscore
    # (prometheus_client 0.26).
    body = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8, "1.0.0")  # type: ignore[no-untyped-call]
    return body, "application/openmetrics-text; version=1.0.0; charset=utf-8"


def open_endpoint(
    settings: ServiceSettings, instruments: Sequence[Instrument], aliases: Sequence[Alias] = ()
) -> Endpoint | None:
    """None when metrics are off, and when their port is in use: that ends no service."""
    host, port = settings.metrics_host, settings.metrics_port
    if not port:
        return None
    refuse_exposure(host, settings.insecure)
    metrics = Metrics(instruments, aliases)
    try:
        endpoint = Endpoint(metrics, host, port)
    except OSError as error:
        metrics.close()
        log.warning("no metrics: cannot listen on %s:%d (%s)", host, port, error.strerror)
        return None
    log.info("metrics on http://%s:%d/metrics", host, port)
    return endpoint
