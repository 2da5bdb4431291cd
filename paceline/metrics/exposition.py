"""From the SDK's numbers to prometheus_client's families: names, buckets, exemplars, aliases.

Knows no server and no service.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
)
from prometheus_client import Metric as Family
from prometheus_client.samples import Exemplar

from paceline.metrics.instruments import Alias, Instrument, Kind

Labels = Mapping[str, str]
# The last exemplar of each bucket, by metric, labels and bucket. The SDK forgets them when it is
# read, and more than one may read.
Remembered = dict[tuple[str, tuple[tuple[str, str], ...], int], Exemplar]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a histogram: cumulative counts by upper bound, and an exemplar per bucket."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float
    exemplars: Sequence[Exemplar | None]

    def plus(self, other: "Series") -> "Series":
        pairs = zip(self.exemplars, other.exemplars, strict=True)
        return Series(
            self.bounds,
            [a + b for a, b in zip(self.counts, other.counts, strict=True)],
            self.sum + other.sum,
            [b or a for a, b in pairs],
        )


def families(
    data: MetricsData | None,
    instruments: Iterable[Instrument],
    aliases: Sequence[Alias],
    remembered: Remembered,
) -> Iterator[Family]:
    """A family per instrument with data, and one per alias of it. Updates `remembered`."""
    known = {instrument.name: instrument for instrument in instruments}
    for metric in _metrics(data):
        instrument = known[metric.name]
        points = [
            (_labels(point), _value(point, metric.name, remembered))
            for point in metric.data.data_points
        ]
        own = tuple((name, name) for name in instrument.labels)
        yield _family(instrument, instrument.prometheus_name, points, own, {})
        for alias in aliases:
            if alias.of is instrument:
                kept = [(labels, point) for labels, point in points if _is_kept(alias, labels)]
                yield _family(instrument, alias.name, kept, alias.labels, {"engine": "0"})


def _metrics(data: MetricsData | None) -> Iterator[Metric]:
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            yield from scope.metrics


def _labels(point: object) -> Labels:
    attributes = getattr(point, "attributes", None) or {}
    return {name: str(value) for name, value in attributes.items()}


def _is_kept(alias: Alias, labels: Labels) -> bool:
    if alias.only is None:
        return True
    name, values = alias.only
    return labels.get(name, "") in values


def _family(
    instrument: Instrument,
    name: str,
    points: Iterable[tuple[Labels, float | Series]],
    renamed: Sequence[tuple[str, str]],
    constant: Labels,
) -> Family:
    """Points whose labels differ only where none is kept are summed up."""
    family = Family(name.removesuffix("_total"), instrument.description, instrument.kind.value)
    numbers: dict[tuple[tuple[str, str], ...], float] = {}
    histograms: dict[tuple[tuple[str, str], ...], Series] = {}
    for labels, point in points:
        kept = {
            theirs.replace(".", "_"): labels[ours] for ours, theirs in renamed if ours in labels
        }
        key = tuple({**kept, **constant}.items())
        if not isinstance(point, Series):
            numbers[key] = numbers.get(key, 0.0) + point
        elif key in histograms:
            histograms[key] = histograms[key].plus(point)
        else:
            histograms[key] = point
    suffix = "_total" if instrument.kind is Kind.COUNTER else ""
    for key, value in numbers.items():
        family.add_sample(family.name + suffix, dict(key), value)
    for key, series in histograms.items():
        _add_histogram(family, dict(key), series)
    return family


def _value(
    point: NumberDataPoint | HistogramDataPoint | object, name: str, remembered: Remembered
) -> float | Series:
    if isinstance(point, NumberDataPoint):
        return float(point.value)
    assert isinstance(point, HistogramDataPoint), "no other kind is made"
    bounds = (*point.explicit_bounds, float("inf"))
    series = (name, tuple(_labels(point).items()))
    for exemplar in sorted(point.exemplars, key=lambda e: e.time_unix_nano):
        if exemplar.trace_id is None or exemplar.span_id is None:
            continue
        bucket = next(i for i, bound in enumerate(bounds) if exemplar.value <= bound)
        remembered[(*series, bucket)] = Exemplar(
            {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"},
            float(exemplar.value),
            exemplar.time_unix_nano / 1e9,
        )
    return Series(
        bounds,
        list(itertools.accumulate(point.bucket_counts)),
        float(point.sum),
        [remembered.get((*series, bucket)) for bucket in range(len(bounds))],
    )


def _add_histogram(family: Family, labels: dict[str, str], series: Series) -> None:
    for bound, count, exemplar in zip(series.bounds, series.counts, series.exemplars, strict=True):
        family.add_sample(
            f"{family.name}_bucket",
            {**labels, "le": _bound(bound)},
            count,
            exemplar=exemplar,
        )
    family.add_sample(f"{family.name}_count", labels, series.counts[-1])
    family.add_sample(f"{family.name}_sum", labels, series.sum)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
