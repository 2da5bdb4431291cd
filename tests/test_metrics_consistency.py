"""Spans, metrics, watched rounds and the answers' own totals tell the same story.

Three real processes, 20 mixed requests, half of them without a drafter; looked at once, after that.
"""

import asyncio
import contextlib
from dataclasses import dataclass

import httpx
import pytest
from answers import Answer, ask
from processes import metrics_env, stack, wait_until
from scrape import OPEN_METRICS, Page, exemplars, page
from sink import Sink, otlp_sink
from tiny import save_tiny_llama

from paceline.client import GatewayClient
from paceline.events import AnswerTrace, ChatMessage, WatchedRound
from paceline.metrics import aliases, instruments
from paceline.metrics.instruments import Kind
from paceline.metrics.labels import CLOSED, FROM_CONFIGURATION
from paceline.params import SamplingParams, Speculation
from paceline.rounds import SpeculationTotals, TokenSource
from paceline.telemetry import round_span_id

CANARY = "canary-3e1f"
MADE_UP_WORKLOAD = "made-up-by-a-client"
# A model that repeats itself, so that a lookup finds what it says next; sometimes, or always.
OF_FEW_WORDS = [{65: 100.0}, {65: 12.0, 66: 11.0, 67: 11.0}]
HOW = [Speculation.FIXED, Speculation.AUTO, Speculation.OFF, Speculation.FIXED]


@dataclass
class Played:
    answers: list[Answer]
    watched: list[WatchedRound]
    traces: list[AnswerTrace]
    sink: Sink
    gateway: Page
    verifier: Page
    drafter: Page
    exemplars: list
    # All that the services wrote anywhere, requests over HTTP and refused ones included.
    told: list[str]
    said: list[str]

    @property
    def totals(self) -> SpeculationTotals:
        totals = SpeculationTotals()
        for answer in self.answers:
            totals.add(answer.finished.totals)
        return totals

    def spans(self, name: str, trace_id: str | None = None):
        return [s for s in self.sink.named(name) if trace_id in (None, s.trace_id)]


def request(number: int) -> dict:
    return {
        "prompt": [ChatMessage("user", f"{CANARY} {number}: say it again and again.")],
        "params": SamplingParams(
            temperature=(0.0, 0.8)[number % 2],
            max_tokens=12 + 3 * number % 24,
            ignore_eos=True,
            logit_bias=OF_FEW_WORDS[number % 2],
        ),
        "speculation": HOW[number % len(HOW)],
        "seed": number,
        "stop": [f"{CANARY} never said"],
        "workload": ("coding", "qa", "", MADE_UP_WORKLOAD)[number % 4],
    }


async def play(opened):
    """(answers, watched rounds, traces, the drafter's page and log)."""
    async with GatewayClient(opened.gateway_address) as client:
        watched: list[WatchedRound] = []

        async def watch():
            async for item in client.watch_rounds():
                watched.append(item)

        watching = asyncio.create_task(watch())
        answers = []
        # Rounds before the watch is registered are not its own.
        while not watched:
            answers.append(await ask(client, **request(0)))
        gate = asyncio.Semaphore(6)

        async def one(number: int) -> Answer:
            async with gate:
                return await ask(client, **request(number))

        answers += await asyncio.gather(*map(one, range(10)))
        before = Page(opened.measured()["drafter"]), opened.drafter.log
        await asyncio.to_thread(opened.stop_drafter)
        answers += await asyncio.gather(*map(one, range(10, 20)))
        traces = [await client.get_trace(answer.started.id) for answer in answers]
        async with asyncio.timeout(10):
            ids = {answer.started.id for answer in answers[-20:]}
            while sum(w.id in ids for w in watched) < sum(len(a.rounds) for a in answers[-20:]):
                await asyncio.sleep(0.01)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        return answers, watched, traces, before


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    with otlp_sink() as (sink, sink_env):
        env = sink_env | metrics_env()
        with stack(folder, env=env, dtype="float32", threads=1, max_sequences=4) as opened:
            opened.start_drafter("lookup")
            wait_until(lambda: opened.status().drafters[0].state == "ready", what="drafter ready")
            answers, watched, traces, (drafter, drafter_log) = asyncio.run(play(opened))
            num_rounds = sum(len(answer.rounds) for answer in answers)
            wait_until(
                lambda: (
                    len(sink.named("paceline.verify")) >= num_rounds
                    and sum(s.name.startswith("chat") for s in sink.spans) >= len(answers)
                    and sum(len(s.links) for s in sink.named("paceline.verify.batch")) >= num_rounds
                ),
                10.0,
                "all spans exported",
            )
            ports = opened.measured()
            counted = Sink()
            counted.spans = list(sink.spans)
            played = Played(
                answers=answers,
                watched=watched,
                traces=traces,
                sink=counted,
                gateway=Page(ports["gateway"]),
                verifier=Page(ports["verifier"]),
                drafter=drafter,
                exemplars=exemplars(ports["gateway"]),
                told=[],
                said=[CANARY, *(answer.text[:12] for answer in answers)],
            )
            # After everything was counted.
            by_http = ask_by_http(opened.http_url)
            played.said.append(by_http[:12])
            num_chats = sum(s.name.startswith("chat") for s in counted.spans)
            wait_until(
                lambda: sum(s.name.startswith("chat") for s in list(sink.spans)) > num_chats,
                10.0,
                "the answer over HTTP is exported",
            )
            played.told = [
                *map(repr, sink.spans),
                *(page(ports[name], OPEN_METRICS) for name in ("gateway", "verifier")),
                *map(repr, drafter.samples),
                *map(repr, traces),
                *(*opened.gateway.log, *opened.verifier.log, *drafter_log),
            ]
            yield played


def ask_by_http(url: str) -> str:
    """The text of an answer. Others are refused, with the canary in body, field and path."""
    body = {
        "messages": [{"role": "user", "content": f"{CANARY}: say it again and again."}],
        "max_tokens": 16,
        "logit_bias": OF_FEW_WORDS[1],
        "user": CANARY,
    }
    with httpx.Client(base_url=url, timeout=30.0) as client:
        models = client.get("/v1/models").json()["data"]
        chat = "/v1/chat/completions"
        answered = client.post(chat, json=body | {"model": models[0]["id"]})
        assert answered.status_code == 200, answered.text
        for wrong in (body | {"model": CANARY}, body | {CANARY: 1}, {"messages": CANARY}):
            assert client.post(chat, json=wrong).status_code in (400, 404)
        assert client.post(chat, content=f"{{{CANARY}").status_code == 400
        assert client.get(f"/{CANARY}").status_code == 404
    return str(answered.json()["choices"][0]["message"]["content"])


def test_every_round_is_one_span_under_its_request_with_its_parts(played: Played):
    assert len(played.answers) >= 21
    for answer in played.answers:
        trace_id = answer.started.trace_id
        chats = [s for s in played.sink.spans if s.name.startswith("chat ")]
        (chat,) = [s for s in chats if s.trace_id == trace_id]
        totals = SpeculationTotals()
        for report in answer.rounds:
            totals.add_round(report)
        assert totals == answer.finished.totals
        assert chat.attributes["paceline.rounds"] == totals.num_rounds == len(answer.rounds)
        for name in ("drafted", "tested", "accepted"):
            assert chat.attributes[f"paceline.{name}"] == getattr(totals, f"num_{name}")
        rounds = {
            s.attributes["paceline.round.index"]: s
            for s in played.spans("paceline.round", trace_id)
        }
        assert len(played.spans("paceline.round", trace_id)) == len(rounds)
        assert sorted(rounds) == [report.round for report in answer.rounds]
        for report in answer.rounds:
            span = rounds[report.round]
            assert span.parent_id == chat.span_id
            assert span.span_id == f"{round_span_id(int(chat.span_id, 16), report.round):016x}"
        of_rounds = {span.span_id: span for span in rounds.values()}
        verifies = played.spans("paceline.verify", trace_id)
        assert sorted(s.parent_id for s in verifies) == sorted(of_rounds)
        for verify in verifies:
            parent = of_rounds[verify.parent_id]
            assert parent.start <= verify.start and verify.end <= parent.end
            for name in ("index", "drafted", "accepted"):
                key = f"paceline.round.{name}"
                assert verify.attributes[key] == parent.attributes[key]
        drafts = [s.parent_id for s in played.spans("paceline.draft", trace_id)]
        assert set(drafts) <= set(of_rounds)
        assert drafts or not totals.num_drafted
        for name in ("paceline.queue", "paceline.prefill"):
            (span,) = played.spans(name, trace_id)
            assert span.parent_id == chat.span_id
    for name, service in (("round", "gateway"), ("verify", "verifier"), ("draft", "drafter")):
        assert {s.service for s in played.spans(f"paceline.{name}")} == {f"paceline-{service}"}
    ids = [(s.trace_id, s.span_id) for s in played.sink.spans]
    assert len(set(ids)) == len(ids)


def test_every_round_is_linked_from_the_forward_it_was_part_of(played: Played):
    linked = [link for s in played.spans("paceline.verify.batch") for link in s.links]
    rounds = [(s.trace_id, s.span_id) for s in played.spans("paceline.round")]
    assert sorted(linked) == sorted(rounds)
    batches = played.spans("paceline.verify.batch")
    assert all(not s.parent_id for s in batches)
    assert all(len(s.links) <= s.attributes["paceline.batch.sequences"] for s in batches)
    assert max(len(s.links) for s in batches) > 1, "no two sequences shared a forward"


def test_spans_metrics_watchers_and_answers_agree_in_their_sums(played: Played):
    totals, gateway = played.totals, played.gateway
    assert totals.num_accepted > 0
    assert any(answer.finished.totals.num_drafted == 0 for answer in played.answers[-10:])
    for attribute, name, expected in (
        ("drafted", "paceline_draft_tokens_total", totals.num_drafted),
        ("tested", "paceline_tested_tokens_total", totals.num_tested),
        ("accepted", "paceline_accepted_tokens_total", totals.num_accepted),
        ("output", "paceline_output_tokens_total", sum(len(a.token_ids) for a in played.answers)),
    ):
        spans = played.spans("paceline.round")
        assert sum(s.attributes[f"paceline.round.{attribute}"] for s in spans) == expected
        assert gateway.sum(name) == expected
    assert gateway.sum("paceline_rounds_total") == totals.num_rounds
    drafted = totals.num_rounds - gateway.sum("paceline_rounds_total", source="none")
    assert drafted == totals.num_drafted_rounds
    for position, count in enumerate(totals.accepted_by_position):
        name = "paceline_accepted_tokens_per_position_total"
        assert gateway.sum(name, position=str(position)) == count
    verifier = played.verifier
    assert verifier.sum("paceline_verified_rounds_total") == totals.num_rounds
    assert verifier.sum("paceline_verified_draft_tokens_total") == totals.num_drafted
    assert verifier.sum("paceline_verified_accepted_tokens_total") == totals.num_accepted
    for answer in played.answers[-20:]:
        seen = [w.round for w in played.watched if w.id == answer.started.id]
        assert seen == answer.rounds


def test_every_other_number_counts_what_happened(played: Played):
    gateway, verifier, answers = played.gateway, played.verifier, played.answers
    num_answers, num_rounds = len(answers), played.totals.num_rounds
    for name in (
        *("gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds"),
        *("gen_ai_server_time_per_output_token_seconds", "paceline_answer_loss_seconds"),
    ):
        assert gateway.sum(f"{name}_count") == num_answers
    assert gateway.sum("paceline_inter_token_latency_seconds_count") == num_rounds - num_answers
    durations = sum(answer.finished.duration_us for answer in answers) / 1e6
    total = gateway.sum("gen_ai_server_request_duration_seconds_sum")
    assert total == pytest.approx(durations, rel=1e-6)
    name = "paceline_round_duration_seconds_count"
    assert gateway.sum(name, phase="verify") == num_rounds
    assert gateway.sum(name, phase="draft") == played.totals.num_drafted_rounds
    assert gateway.sum("paceline_requests_total", outcome="length") == num_answers
    prompts = sum(answer.finished.num_prompt_tokens for answer in answers)
    assert gateway.sum("paceline_prompt_tokens_total") == prompts
    assert verifier.sum("paceline_prefix_queries_total") == prompts
    assert verifier.sum("paceline_queue_duration_seconds_count") == num_answers
    steps = verifier.sum("paceline_steps_total")
    assert verifier.sum("paceline_step_duration_seconds_count") == steps
    assert gateway.sum("paceline_fallbacks_total", reason="no_drafter") > 0
    assert verifier.sum("paceline_drafter_ready") == 0
    assert verifier.sum("paceline_drafter_connects_total") == 1
    drafter = played.drafter
    made = drafter.sum("paceline_drafter_tokens_total")
    wasted = drafter.sum("paceline_drafter_wasted_tokens_total")
    assert made >= played.totals.num_accepted
    assert 0 <= wasted <= made
    busy = drafter.sum("paceline_drafter_busy_seconds_total")
    assert 0 <= drafter.sum("paceline_drafter_wasted_seconds_total") <= busy
    steps = drafter.sum("paceline_drafter_steps_total")
    assert drafter.sum("paceline_drafter_step_duration_seconds_count") == steps > 0


def test_the_ledger_can_be_read_from_the_times(played: Played):
    """time of decoding - time of plain decoding = what all answers lost, the ledgers' sum."""
    spent = played.gateway.sum("paceline_decode_time_seconds_total")
    plain = played.gateway.sum("paceline_plain_time_seconds_total")
    rounds = [report for answer in played.answers for report in answer.rounds[1:]]
    assert spent == pytest.approx(sum(r.wait_us + r.verify_us for r in rounds) / 1e6)
    ledgers = sum(answer.rounds[-1].ledger_us for answer in played.answers) / 1e6
    assert spent - plain == pytest.approx(ledgers, abs=0.002 * len(rounds))


def test_vllms_names_by_vllms_definitions_give_our_rates(played: Played):
    totals, gateway = played.totals, played.gateway
    drafts = gateway.sum("vllm:spec_decode_num_drafts_total", engine="0")
    drafted = gateway.sum("vllm:spec_decode_num_draft_tokens_total", engine="0")
    accepted = gateway.sum("vllm:spec_decode_num_accepted_tokens_total", engine="0")
    assert accepted / drafted == totals.draft_efficiency
    assert 1 + accepted / drafts == totals.mean_acceptance_length
    per_position = list(gateway.named("vllm:spec_decode_num_accepted_tokens_per_pos_total"))
    by_position = {int(s.labels["position"]): s.value for s in per_position}
    assert [by_position[i] for i in range(len(by_position))] == totals.accepted_by_position
    models = {s.labels["model_name"] for s in gateway.samples if s.name.startswith("vllm:")}
    assert models == {played.answers[0].started.model}
    assert gateway.sum("vllm:request_success_total", finished_reason="length") == len(
        played.answers
    )
    tokens = sum(len(answer.token_ids) for answer in played.answers)
    assert gateway.sum("vllm:generation_tokens_total") == tokens
    assert gateway.sum("vllm:e2e_request_latency_seconds_count") == len(played.answers)
    assert played.verifier.sum("vllm:num_requests_running") == 0
    assert played.verifier.sum("vllm:kv_cache_usage_perc") == 0


def test_every_instrument_is_shown_and_labels_are_closed(played: Played):
    pages = (
        (played.gateway, instruments.GATEWAY, aliases.GATEWAY),
        (played.verifier, instruments.VERIFIER, aliases.VERIFIER),
        (played.drafter, instruments.DRAFTER, ()),
    )
    for shown, listed, renamed in pages:
        names = {s.name for s in shown.samples}
        for instrument in listed:
            suffix = "_count" if instrument.kind is Kind.HISTOGRAM else ""
            assert instrument.prometheus_name + suffix in names
        for alias in renamed:
            suffix = "_count" if alias.of.kind is Kind.HISTOGRAM else ""
            assert alias.name + suffix in names
        closed = {name.replace(".", "_"): values for name, values in CLOSED.items()}
        free = {name.replace(".", "_") for name in FROM_CONFIGURATION}
        vllm = {"le", "engine", "model_name", "finished_reason"}
        for sample in shown.samples:
            for label, value in sample.labels.items():
                assert label in free | vllm or value in closed[label], sample
    sources = {s.labels["source"] for s in played.gateway.named("paceline_rounds_total")}
    assert sources == {"none", TokenSource.PROMPT_LOOKUP.name.lower()}
    workloads = {s.labels["workload"] for s in played.gateway.named("paceline_rounds_total")}
    assert workloads == {"coding", "qa", "default", "other"}


def test_exemplars_lead_from_a_bucket_to_a_request(played: Played):
    assert {s.name for s in played.exemplars} >= {
        "gen_ai_server_time_to_first_token_seconds_bucket",
        "gen_ai_server_request_duration_seconds_bucket",
        "paceline_round_duration_seconds_bucket",
    }
    known = {(s.trace_id, s.span_id) for s in played.sink.spans if s.name.startswith("chat ")}
    for sample in played.exemplars:
        named = sample.exemplar.labels
        assert (named["trace_id"], named["span_id"]) in known
        assert sample.exemplar.value <= float(sample.labels["le"])


def test_the_gateway_remembers_the_rounds_of_an_answer(played: Played):
    for answer, trace in zip(played.answers, played.traces, strict=True):
        assert trace.rounds == answer.rounds
        assert trace.trace_id == answer.started.trace_id
        assert trace.finished.totals == answer.finished.totals
        assert (trace.finished.stop, trace.finished.digest) == ("", b"")


def test_no_text_is_in_a_span_a_metric_a_remembered_trace_or_a_log(played: Played):
    assert len(played.told) > 100
    assert min(map(len, played.said)) >= 10
    for output in played.told:
        assert not [text for text in played.said if text in output]
    # Nor token ids, from which the text could be had.
    lists = {k for s in played.sink.spans for k, v in s.attributes.items() if hasattr(v, "values")}
    assert lists == {"gen_ai.response.finish_reasons"}
    metrics = [*played.gateway.samples, *played.verifier.samples]
    assert not [s for s in metrics if MADE_UP_WORKLOAD in s.labels.values()]
