"""A collector that takes nothing is left alone: paceline/sparing_exporter.py."""

import itertools

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from paceline.sparing_exporter import FIRST_PAUSE_S, LONGEST_PAUSE_S, SparingExporter


class Collector(SpanExporter):
    """Takes spans, or does not; counts what it was offered."""

    def __init__(self) -> None:
        self.takes = False
        self.num_offered = 0

    def export(self, spans):
        self.num_offered += len(spans)
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE


def test_a_collector_that_fails_is_asked_less_and_less_and_found_again() -> None:
    now_s, collector = 0.0, Collector()
    exporter = SparingExporter(collector, lambda: now_s)
    asked_at = []
    for _ in range(200):
        before = collector.num_offered
        assert exporter.export([None]) is SpanExportResult.FAILURE
        if collector.num_offered > before:
            asked_at.append(now_s)
        now_s += 1.0
    # One failure may be the batch's.
    assert asked_at.pop(0) == asked_at[0] - 1.0
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked_at)]
    assert pauses == [FIRST_PAUSE_S, 4.0, 8.0, 16.0, *[LONGEST_PAUSE_S] * (len(pauses) - 4)]
    collector.takes = True
    now_s += LONGEST_PAUSE_S
    assert exporter.export([None]) is SpanExportResult.SUCCESS
    # From then on it gets everything, and two failures are a short pause again.
    assert exporter.export([None]) is SpanExportResult.SUCCESS
    collector.takes = False
    exporter.export([None])
    exporter.export([None])
    now_s += FIRST_PAUSE_S
    before = collector.num_offered
    exporter.export([None])
    assert collector.num_offered == before + 1
