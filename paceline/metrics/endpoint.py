"""The page that Prometheus scrapes: /metrics on a port of its own, on threads of its own.

Plain text, or OpenMetrics with exemplars for who asks for it. Knows no instrument.
"""

import logging
from collections.abc import Sequence

import prometheus_client

from paceline.metrics.instruments import Alias, Instrument
from paceline.metrics.reader import Metrics
from paceline.server import refuse_exposure
from paceline.settings import ServiceSettings

log = logging.getLogger(__name__)


class Endpoint:
    """A process's metrics and, once started, the server that shows them."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Raises OSError when nothing can listen there."""
        self.metrics = metrics
        self._server, self._thread = prometheus_client.start_http_server(
            port, host, metrics.registry
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.metrics.close()


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
