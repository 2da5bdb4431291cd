"""One process's metrics, read when Prometheus asks. Knows no service.

Counters and gauges are the OpenTelemetry SDK's, over sums that the services keep; histograms keep
their own.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, MetricsData
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from paceline.metrics.exposition import families
from paceline.metrics.histogram import Histogram
from paceline.metrics.instruments import Alias, Instrument, Kind

Readings = Mapping[tuple[str, ...], float]


class Metrics:
    """The instruments of one process. Each is made once."""

    def __init__(self, instruments: Sequence[Instrument], aliases: Sequence[Alias] = ()) -> None:
        self._reader = _Reader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("paceline")
        self.registry = CollectorRegistry(auto_describe=False)
        self._histograms: dict[Instrument, Histogram] = {}
        self.registry.register(_Collector(self._reader, self._histograms, instruments, aliases))

    def histogram(self, instrument: Instrument) -> Histogram:
        made = self._histograms[instrument] = Histogram(instrument.buckets)
        return made

    def observe(self, instrument: Instrument, read: Callable[[], float]) -> None:
        """A counter or gauge without labels. `read` is called on the thread of each scrape."""
        self.observe_each(instrument, lambda: {(): read()})

    def observe_each(self, instrument: Instrument, read: Callable[[], Readings]) -> None:
        """One with labels: `read` gives values by label values, in the order of its labels."""
        create = (
            self._meter.create_observable_counter
            if instrument.kind is Kind.COUNTER
            else self._meter.create_observable_gauge
        )

        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, dict(zip(instrument.labels, labels, strict=True)))
                for labels, value in read().items()
            ]

        create(
            instrument.name,
            callbacks=[callback],
            unit=instrument.unit,
            description=instrument.description,
        )

    def close(self) -> None:
        self._provider.shutdown()


class _Reader(MetricReader):
    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._data: MetricsData | None = None

    def read(self) -> MetricsData | None:
        with self._lock:
            self.collect()
            data, self._data = self._data, None
        return data

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any
    ) -> None:
        self._data = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Holds nothing."""


class _Collector(Collector):
    def __init__(
        self,
        reader: _Reader,
        histograms: Mapping[Instrument, Histogram],
        instruments: Sequence[Instrument],
        aliases: Sequence[Alias],
    ) -> None:
        self._reader = reader
        self._histograms = histograms
        self._instruments = instruments
        self._aliases = aliases

    def collect(self) -> Iterator[Family]:
        data = self._reader.read()
        return families(data, self._histograms, self._instruments, self._aliases)
