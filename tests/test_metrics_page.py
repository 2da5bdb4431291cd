"""The page: names, content types, a port of its own, and nothing that stops a service."""

import logging
import urllib.error

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from processes import free_port
from scrape import OPEN_METRICS, exemplars, page

from gateway.config import GatewaySettings
from gateway.metrics import GatewayMetrics
from paceline.events import Finished, Request
from paceline.metrics import aliases, instruments
from paceline.metrics.endpoint import open_endpoint, render
from paceline.metrics.labels import CLOSED, FROM_CONFIGURATION, SOURCES
from paceline.metrics.reader import Metrics
from paceline.rounds import FinishReason, RoundReport, SpeculationTotals, TokenSource

ALL = (*instruments.GATEWAY, *instruments.VERIFIER, *instruments.DRAFTER)
SAMPLED = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@pytest.fixture
def endpoint():
    opened = open_endpoint(
        GatewaySettings(metrics_port=free_port()), instruments.GATEWAY, aliases.GATEWAY
    )
    yield opened
    opened.close()


def counting(metrics: Metrics) -> GatewayMetrics:
    return GatewayMetrics(
        metrics,
        workloads=("coding",),
        served=lambda: ["m"],
        num_active=lambda: 3,
        num_queued=lambda: 2,
        num_ready=lambda: 1,
    )


def test_names_are_prometheus_own_and_none_is_there_twice():
    names = [instrument.prometheus_name for instrument in ALL]
    assert len(set(names)) == len(names)
    assert instruments.REQUEST_DURATION.prometheus_name == "gen_ai_server_request_duration_seconds"
    assert instruments.DECODE_TIME.prometheus_name == "paceline_decode_time_seconds_total"
    assert instruments.KV_USAGE.prometheus_name == "paceline_kv_usage_ratio"
    closed = {*CLOSED, *FROM_CONFIGURATION}
    assert {label for instrument in ALL for label in instrument.labels} <= closed


def test_a_known_answer_becomes_the_numbers_that_it_is():
    metrics = Metrics(instruments.GATEWAY, aliases.GATEWAY)
    gateway = counting(metrics)
    context = trace.set_span_in_context(NonRecordingSpan(SAMPLED))
    meter = gateway.begin(Request("", workload="coding"), "m", 0, context)
    block = {"num_drafted": 4, "num_tested": 3, "num_accepted": 2, "num_output": 3}
    meter.record_round(RoundReport(1, num_output=1, verify_us=9_000_000))
    meter.record_round(
        RoundReport(2, **block, source=TokenSource.RECYCLED, wait_us=1000, verify_us=3000)
    )
    # A gain of 2 ms: plain decoding would have taken 4 + 2.
    meter.record_round(
        RoundReport(3, **block, source=TokenSource.RECYCLED, verify_us=4000, ledger_us=-2000)
    )
    meter.finish(
        Finished(FinishReason.STOP, 5, 0, 7, SpeculationTotals(), 1_000_000, 4_000_000, b"", "")
    )
    meter.end("")
    text = render(metrics.registry, "")[0].decode()
    key = 'model="m",source="recycled",workload="coding"'
    for line in (
        f"paceline_rounds_total{{{key}}} 2.0",
        f"paceline_accepted_tokens_total{{{key}}} 4.0",
        f"paceline_decode_time_seconds_total{{{key}}} 0.008",
        f"paceline_plain_time_seconds_total{{{key}}} 0.01",
        'paceline_speedup_estimate{model="m"} 1.25',
        'paceline_requests_total{model="m",outcome="stop",workload="coding"} 1.0',
        'paceline_answer_loss_seconds_bucket{le="0.0",workload="coding"} 1.0',
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 2.0',
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 8.0',
        "paceline_requests_active 3.0",
    ):
        name, value = line.rsplit(" ", 1)
        found = [shown for shown in text.splitlines() if sorted_labels(shown) == name]
        assert [float(shown.rsplit(" ", 1)[1]) for shown in found] == [float(value)], line
    assert "gen_ai_server_time_per_output_token_seconds_sum" in text
    (per_token,) = [
        shown
        for shown in text.splitlines()
        if shown.startswith("gen_ai_server_time_per_output_token_seconds_sum")
    ]
    assert float(per_token.rsplit(" ", 1)[1]) == 0.5
    metrics.close()


def sorted_labels(line: str) -> str:
    name, _, rest = line.rsplit(" ", 1)[0].partition("{")
    return f"{name}{{{','.join(sorted(rest.rstrip('}').split(',')))}}}" if rest else name


def test_what_a_client_makes_up_is_counted_as_other():
    metrics = Metrics(instruments.GATEWAY)
    gateway = counting(metrics)
    for number in range(100):
        meter = gateway.begin(Request("", workload=f"w{number}"), f"m{number}", 0, None)
        meter.record_round(RoundReport(1, num_drafted=1, source=TokenSource.PLAIN))
        meter.end("CANCELLED")
    assert set(gateway.sums.rounds) == {("other", "other", "other")}
    assert gateway.sums.requests == {("other", "other", "cancelled"): 100}
    assert "plain" not in SOURCES
    metrics.close()


def test_an_exemplar_stays_until_a_newer_one_comes(endpoint):
    port = endpoint._server.server_port
    meter = counting(endpoint.metrics).begin(
        Request(""), "m", 0, trace.set_span_in_context(NonRecordingSpan(SAMPLED))
    )
    meter.record_round(RoundReport(1, num_output=1, verify_us=1000))
    meter.end("")
    for _ in range(2):
        named = {s.name: s.exemplar.labels for s in exemplars(port)}
        ids = {"trace_id": f"{SAMPLED.trace_id:032x}", "span_id": f"{SAMPLED.span_id:016x}"}
        assert named["paceline_round_duration_seconds_bucket"] == ids
        assert named["vllm:time_to_first_token_seconds_bucket"] == ids
    assert "# {" not in page(port)
    assert page(port, OPEN_METRICS).endswith("# EOF\n")


def test_only_the_page_is_served(endpoint):
    port = endpoint._server.server_port
    assert "paceline_" in page(port) or page(port) == ""
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page(port, path="/etc/passwd")


def test_a_port_in_use_is_a_warning_and_0_is_off(endpoint, caplog):
    taken = endpoint._server.server_port
    with caplog.at_level(logging.WARNING):
        assert open_endpoint(GatewaySettings(metrics_port=taken), instruments.GATEWAY) is None
    assert str(taken) in caplog.text
    assert open_endpoint(GatewaySettings(metrics_port=0), instruments.GATEWAY) is None


def test_metrics_stay_on_loopback_unless_told():
    with pytest.raises(SystemExit, match="loopback"):
        open_endpoint(
            GatewaySettings(metrics_host="0.0.0.0", metrics_port=free_port()), instruments.GATEWAY
        )
