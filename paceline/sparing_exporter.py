"""An exporter that leaves a collector alone while it does not take spans.

Encoding a batch is most of what a span costs, and the SDK's exporter does it again for each of its
tries. Knows no protocol.
"""

import logging
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0


class SparingExporter(SpanExporter):
    """Passes spans on to another exporter. After a failure it drops what comes for a while, longer
    each time, and says so once."""

    def __init__(self, exporter: SpanExporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._clock = clock
        self._pause_s = 0.0
        self._again_at = float("-inf")
        self._num_dropped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._clock() < self._again_at:
            self._num_dropped += len(spans)
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._pause_s:
                log.info("spans are exported again; %d were dropped", self._num_dropped)
            self._pause_s, self._num_dropped = 0.0, 0
            return result
        if not self._pause_s:
            log.warning("the collector takes no spans; they are dropped until it does")
        self._num_dropped += len(spans)
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._again_at = self._clock() + self._pause_s
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
