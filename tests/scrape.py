"""A service's /metrics page, fetched and added up."""

import urllib.request
from collections.abc import Iterator

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.samples import Sample

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def page(port: int, accept: str = "text/plain", path: str = "/metrics") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode()


class Page:
    """The samples of one scrape."""

    def __init__(self, port: int) -> None:
        self.samples: list[Sample] = [
            sample for family in parse_plain(page(port)) for sample in family.samples
        ]

    def named(self, name: str, **labels: str) -> Iterator[Sample]:
        for sample in self.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample

    def sum(self, name: str, **labels: str) -> float:
        """Over all series with these labels. Fails when there is none."""
        found = [sample.value for sample in self.named(name, **labels)]
        assert found, f"no series {name} {labels}"
        return sum(found)


def exemplars(port: int) -> list[Sample]:
    """The samples that name a trace, from the OpenMetrics page."""
    return [
        sample
        for family in parse_open(page(port, OPEN_METRICS))
        for sample in family.samples
        if sample.exemplar is not None
    ]
