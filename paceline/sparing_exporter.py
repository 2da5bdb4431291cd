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
    """Passes spans on to another exporter. From the second failure in a row on it drops what comes
    for a while, longer each time, and says so once."""

    def __init__(self, exporter: SpanExporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._clock = clock
        self._num_failures = 0
        self._again_at = float("-inf")
        self._num_dropped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._clock() < self._again_at:
            self._num_dropped += len(spans)
            return SpanExportResult.FAILURE
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._succeeded()
            else:
                self._failed(len(spans))
        return result

    def _succeeded(self) -> None:
        if self._num_failures > 1:
            log.info("spans are exported again; %d were dropped", self._num_dropped)
        self._num_failures = self._num_dropped = 0

    def _failed(self, num_spans: int) -> None:
        self._num_failures += 1
        self._num_dropped += num_spans
        if self._num_failures == 2:
            log.warning("the collector takes no spans; they are dropped until it does")
        if self._num_failures > 1:
            pause_s = FIRST_PAUSE_S * 2 ** min(self._num_failures - 2, 8)
            self._again_at = self._clock() + min(pause_s, LONGEST_PAUSE_S)

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
