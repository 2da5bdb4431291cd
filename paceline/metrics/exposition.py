"""From numbers to prometheus_client's families: names, buckets, exemplars, aliases.

Knows no server and no service.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from opentelemetry.sdk.metrics.export import MetricsData, NumberDataPoint
from prometheus_client import Metric as Family
from prometheus_client import samples

from paceline.metrics.histogram import Exemplar, Histogram, Labels, Series
from paceline.metrics.instruments import Alias, Instrument, Kind


def families(
    data: MetricsData | None,
    histograms: Mapping[Instrument, Histogram],
    instruments: Iterable[Instrument],
    aliases: Sequence[Alias],
) -> Iterator[Family]:
    """A family per instrument with data, and one per alias of it."""
    known = {instrument.name: instrument for instrument in instruments}
    read: list[tuple[Instrument, list[tuple[Labels, float | Series]]]] = [
        (known[name], points) for name, points in _numbers(data)
    ]
    read += [(instrument, [*histogram.read()]) for instrument, histogram in histograms.items()]
    for instrument, points in read:
        if not points:
            continue
        own = tuple((name, name) for name in instrument.labels)
        yield _family(instrument, instrument.prometheus_name, points, own, {})
        for alias in aliases:
            if alias.of is instrument:
                kept = [(labels, point) for labels, point in points if _is_kept(alias, labels)]
                yield _family(instrument, alias.name, kept, alias.labels, {"engine": "0"})


def _numbers(data: MetricsData | None) -> Iterator[tuple[str, list[tuple[Labels, float | Series]]]]:
    """(name, points) of the SDK's instruments; all of them are counters or gauges."""
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield metric.name, [_point(point) for point in metric.data.data_points]


def _point(point: object) -> tuple[Labels, float]:
    assert isinstance(point, NumberDataPoint), "no other kind is made"
    labels = {name: str(value) for name, value in (point.attributes or {}).items()}
    return labels, float(point.value)


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


def _add_histogram(family: Family, labels: dict[str, str], series: Series) -> None:
    for bound, count, exemplar in zip(series.bounds, series.counts, series.exemplars, strict=True):
        family.add_sample(
            f"{family.name}_bucket",
            {**labels, "le": _bound(bound)},
            count,
            exemplar=_shown(exemplar) if exemplar else None,
        )
    family.add_sample(f"{family.name}_count", labels, series.counts[-1])
    family.add_sample(f"{family.name}_sum", labels, series.sum)


def _shown(exemplar: Exemplar) -> samples.Exemplar:
    ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
    return samples.Exemplar(ids, exemplar.value, exemplar.unix_s)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
