"""Counts by bucket, as plain sums, and the last exemplar of each bucket. Knows no exposition.

Made for what is recorded several times in every round: one value costs a lookup and a bisection
(the OpenTelemetry SDK's histogram costs ten times as much, docs/log.md).
"""

import itertools
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """The trace behind one of a bucket's values."""

    trace_id: int
    span_id: int
    value: float
    unix_s: float


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


@dataclass(slots=True)
class _Buckets:
    counts: list[int]
    exemplars: list[Exemplar | None]
    sum: float = 0.0


class Histogram:
    """One instrument. One thread records; any other may read."""

    def __init__(self, buckets: Sequence[float]) -> None:
        """`buckets` are the upper bounds, ascending; one without a bound comes last."""
        self._bounds = (*buckets, float("inf"))
        self._series: dict[tuple[tuple[str, str], ...], _Buckets] = {}

    def record(
        self, value: float, labels: Labels | None = None, context: Context | None = None
    ) -> None:
        """`context`: holds the span behind the value; one that is sampled is its exemplar."""
        key = tuple(labels.items()) if labels else ()
        series = self._series.get(key)
        if series is None:
            size = len(self._bounds)
            series = self._series[key] = _Buckets([0] * size, [None] * size)
        bucket = bisect_left(self._bounds, value)
        series.counts[bucket] += 1
        series.sum += value
        if context is not None:
            span = trace.get_current_span(context).get_span_context()
            if span.is_valid and span.trace_flags.sampled:
                series.exemplars[bucket] = Exemplar(span.trace_id, span.span_id, value, time.time())

    def read(self) -> list[tuple[Labels, Series]]:
        """(labels, series) as they are now."""
        return [
            (
                dict(key),
                Series(
                    self._bounds,
                    list(itertools.accumulate(series.counts)),
                    series.sum,
                    list(series.exemplars),
                ),
            )
            for key, series in self._series.copy().items()
        ]
