"""A real Prometheus scrapes the real services under load: every panel and every alert has data.

make test-observability
"""

import asyncio
import subprocess
import time
from collections.abc import Callable

import pytest
from answers import ask
from processes import metrics_env, stack, wait_until
from prometheus import FOLDER, Prometheus
from scrape import OPEN_METRICS, page
from sink import otlp_sink
from test_observability_files import panel_expressions, rules
from tiny import save_tiny_llama

from paceline.client import GatewayClient
from paceline.params import SamplingParams, Speculation
from paceline.server import Refusal

pytestmark = pytest.mark.observability

LOAD_S = 45.0
# A model that repeats itself, so that a lookup finds what it says next; sometimes.
OF_FEW_WORDS = {65: 12.0, 66: 11.0, 67: 11.0}


async def load(opened, stop_at: float, midway: Callable[[], None]) -> None:
    """Mixed requests, some refused and some cancelled, with the drafter gone for a moment."""
    async with GatewayClient(opened.gateway_address) as client:

        async def stream(number: int) -> None:
            count = 0
            while time.monotonic() < stop_at:
                count += 1
                await ask(
                    client,
                    "again and again and again",
                    SamplingParams(
                        temperature=0.8,
                        max_tokens=24 + number,
                        ignore_eos=True,
                        logit_bias=OF_FEW_WORDS,
                    ),
                    seed=count,
                    speculation=(Speculation.FIXED, Speculation.AUTO)[count % 2],
                    workload=("coding", "qa", "")[number % 3],
                )

        async def trouble() -> None:
            while time.monotonic() < stop_at:
                with pytest.raises(Refusal):
                    await ask(client, [65] * 600, SamplingParams())
                cut = asyncio.create_task(ask(client, "x", SamplingParams(max_tokens=400)))
                await asyncio.sleep(0.2)
                cut.cancel()
                await asyncio.gather(cut, return_exceptions=True)

        streams = [asyncio.create_task(stream(number)) for number in range(6)]
        streams.append(asyncio.create_task(trouble()))
        await asyncio.sleep((stop_at - time.monotonic()) / 3)
        await asyncio.to_thread(midway)
        await asyncio.gather(*streams)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    with otlp_sink() as (_, sink_env):
        env = sink_env | metrics_env()
        with stack(folder, env=env, dtype="float32", threads=1, max_sequences=4) as opened:
            opened.start_drafter("lookup")
            scraper = Prometheus(tmp_path_factory.mktemp("prometheus"), opened.measured())
            try:
                wait_until(scraper.is_up, 60.0, "the three services are scraped")

                def midway() -> None:
                    opened.stop_drafter()
                    time.sleep(3.0)
                    opened.start_drafter("lookup")

                asyncio.run(load(opened, time.monotonic() + LOAD_S, midway))
                yield scraper, opened
            finally:
                scraper.close()


def filled_in(expression: str) -> str:
    for name, value in (
        ("$__rate_interval", "1m"),
        ("$__range", "5m"),
        ("$model", ".*"),
        ("$workload", ".*"),
    ):
        expression = expression.replace(name, value)
    return expression


def test_every_panel_has_data(prometheus):
    scraper, _ = prometheus
    empty, not_numbers = [], []
    for expression in panel_expressions():
        found = scraper.query(filled_in(expression))
        if not found:
            empty.append(expression)
        elif all(series["value"][1] == "NaN" for series in found):
            not_numbers.append(expression)
    assert (empty, not_numbers) == ([], [])


def test_every_rule_and_alert_is_evaluated_without_error(prometheus):
    scraper, _ = prometheus
    groups = scraper.get("rules")["data"]["groups"]
    evaluated = [rule for group in groups for rule in group["rules"]]
    assert len(evaluated) == len(rules())
    assert [rule["name"] for rule in evaluated if rule["health"] != "ok"] == []
    for rule in rules():
        scraper.query(rule["expr"])
        if "record" in rule:
            assert scraper.query(rule["record"]), rule["record"]


def test_prometheus_keeps_exemplars_that_name_a_trace(prometheus):
    scraper, _ = prometheus
    found = scraper.get(
        "query_exemplars",
        query="gen_ai_server_request_duration_seconds_bucket",
        start=str(time.time() - 600),
        end=str(time.time()),
    )["data"]
    labels = [exemplar["labels"] for series in found for exemplar in series["exemplars"]]
    assert labels and all(len(each["trace_id"]) == 32 for each in labels)


def test_vllms_names_come_through_a_scrape(prometheus):
    scraper, opened = prometheus
    assert scraper.query("vllm:spec_decode_num_accepted_tokens_total")
    assert scraper.query("vllm:num_requests_waiting")
    text = page(opened.measured()["gateway"], OPEN_METRICS)
    assert "vllm:time_to_first_token_seconds_bucket{" in text
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("command", [["check", "config", "prometheus.yml"], ["test", "rules"]])
def test_promtool_passes(command):
    arguments = [*command, "alerts_test.yml"] if command[0] == "test" else command
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
