"""The three processes together: faults, refusals, cancellation, and that every round is seen."""

import asyncio
import random
import re
import time
from dataclasses import replace

import openai
import pytest
from answers import ask, chat_prompts
from processes import Process, free_port, stack, wait_until
from sink import otlp_sink
from tiny import EOS, VOCAB_SIZE, byte_tokenizer, save_tiny_llama

from paceline.client import GatewayClient
from paceline.events import ChatMessage
from paceline.params import SamplingParams, Speculation
from paceline.rounds import PlainReason, SpeculationTotals, TokenSource
from paceline.server import Refusal
from paceline.telemetry import round_span_id

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
QUESTION = [ChatMessage("user", "Say something, and say it again and again.")]


@pytest.fixture(scope="module")
def sink():
    with otlp_sink() as opened:
        yield opened


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, sink):
    folder = str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    _, env = sink
    with stack(folder, env=env, dtype="float32", threads=1, max_sequences=8) as opened:
        # The target as its own drafter: with shared noise every draft token is accepted.
        opened.start_drafter("model", "--model", folder, "--dtype", "float32")
        wait_until(lambda: ready(opened), what="drafter ready")
        yield opened


def is_idle(opened) -> bool:
    now = opened.status()
    busy = now.num_running + now.num_waiting + now.kv_blocks_used
    return busy + sum(drafter.num_sequences for drafter in now.drafters) == 0


def answer(opened, prompt=QUESTION, params=GREEDY, **how):
    async def call():
        async with GatewayClient(opened.gateway_address) as client:
            return await ask(client, prompt, params, **how)

    return asyncio.run(call())


def ready(opened) -> bool:
    return opened.status().drafters[0].state == "ready"


def test_two_hundred_cancels_at_random_moments_leave_nothing_behind(tiny):
    before = answer(tiny)
    rng = random.Random(0)

    async def cancel_one(client):
        long = SamplingParams(temperature=0.8, max_tokens=400, ignore_eos=True)
        task = asyncio.create_task(ask(client, QUESTION, long, seed=rng.getrandbits(32)))
        await asyncio.sleep(rng.random() * 0.15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def storm():
        async with GatewayClient(tiny.gateway_address) as client:
            for _ in range(20):
                await asyncio.gather(*(cancel_one(client) for _ in range(10)))

    asyncio.run(storm())
    wait_until(lambda: is_idle(tiny), 5.0, "no live sequence and no used KV block")
    assert answer(tiny).token_ids == before.token_ids


def test_openai_clients_get_the_same_text_as_grpc_and_may_go_away(tiny):
    over_grpc = answer(tiny, params=replace(GREEDY, temperature=0.8), seed=11)
    asked = {
        "model": "",
        "messages": [{"role": m.role, "content": m.content} for m in QUESTION],
        "temperature": 0.8,
        "max_tokens": GREEDY.max_tokens,
        "seed": 11,
    }
    ignoring = {"ignore_eos": True}
    with openai.OpenAI(base_url=f"{tiny.http_url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        asked["model"] = model
        drafting = {**ignoring, "paceline": {"speculation": "fixed"}}
        whole = client.chat.completions.create(**asked, extra_body=drafting)
        plain = {**ignoring, "paceline": {"speculation": "off"}}
        with client.chat.completions.create(**asked, extra_body=plain, stream=True) as chunks:
            reports = [chunk.choices[0].paceline for chunk in chunks]
        long = {**asked, "max_tokens": 400}
        with client.chat.completions.create(**long, extra_body=ignoring, stream=True) as chunks:
            next(iter(chunks))
    wait_until(lambda: is_idle(tiny), 5.0, "the sequence of a client that went away has ended")
    speculative = whole.choices[0]
    assert speculative.message.content == over_grpc.text
    assert speculative.paceline["token_ids"] == list(over_grpc.token_ids)
    assert speculative.paceline["totals"]["num_drafted"] > 0
    assert [i for r in reports for i in r.get("token_ids", [])] == list(over_grpc.token_ids)
    assert {source for r in reports for source in r.get("sources", [])} == {"plain"}
    assert reports[-1]["digest"] == speculative.paceline["digest"]


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("params.temperature", SamplingParams(temperature=float("nan"))),
        ("params.temperature", SamplingParams(temperature=-1.0)),
        ("params.temperature", SamplingParams(temperature=1e-12)),
        ("params.top_p", SamplingParams(top_p=0.0)),
        ("params.top_p", SamplingParams(top_p=float("nan"))),
        ("params.min_p", SamplingParams(min_p=1.5)),
        ("params.repetition_penalty", SamplingParams(repetition_penalty=0.0)),
        ("params.presence_penalty", SamplingParams(presence_penalty=float("inf"))),
        ("params.frequency_penalty", SamplingParams(frequency_penalty=-2.5)),
        ("params.logit_bias", SamplingParams(logit_bias={VOCAB_SIZE + 5: 1.0})),
        ("params.logit_bias", SamplingParams(logit_bias={1: float("nan")})),
        ("params.logit_bias", SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))),
        ("params.max_tokens", SamplingParams(max_tokens=0)),
        ("params.min_tokens", SamplingParams(max_tokens=4, min_tokens=5)),
        ("params.stop_token_ids", SamplingParams(stop_token_ids=[VOCAB_SIZE])),
        ("params.num_logprobs", SamplingParams(num_logprobs=21)),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(tiny, field, params):
    with pytest.raises(Refusal) as refused:
        answer(tiny, params=params)
    assert refused.value.code.name == "INVALID_ARGUMENT"
    assert field in refused.value.message
    assert any(violation.field.startswith(field) for violation in refused.value.violations)
    assert len(answer(tiny).token_ids) == 60


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(tiny):
    with pytest.raises(Refusal, match=r"prompt of 500 tokens \+ max_tokens 60 exceeds .* 512"):
        answer(tiny, prompt=[65] * 500)


def test_ids_outside_the_vocabulary_are_refused_by_index(tiny):
    vocab_size = byte_tokenizer().get_vocab_size()
    with pytest.raises(Refusal, match=rf"token_ids\[2\].*{vocab_size + 3}"):
        answer(tiny, prompt=[1, 2, vocab_size + 3])


def test_an_empty_prompt_is_refused(tiny):
    with pytest.raises(Refusal, match=r"prompt is empty|input"):
        answer(tiny, prompt=[])
    assert len(answer(tiny).token_ids) == 60


def test_stop_tokens_and_max_tokens_end_an_answer_inside_a_block(tiny):
    plain = answer(tiny, speculation=Speculation.OFF).token_ids
    for max_tokens in (1, 8, 9, 30):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        cut = answer(tiny, params=params, speculation=Speculation.FIXED)
        assert cut.token_ids == plain[:max_tokens]
        assert cut.finished.finish_reason.label == "length"
    stop_at = 25
    params = SamplingParams(
        temperature=0.0, max_tokens=60, ignore_eos=True, stop_token_ids=[plain[stop_at]]
    )
    end = plain.index(plain[stop_at])
    stopped = answer(tiny, params=params, speculation=Speculation.FIXED)
    assert stopped.token_ids == plain[: end + 1]
    assert stopped.finished.finish_reason.label == "stop"
    assert stopped.finished.num_completion_tokens == end + 1


def test_logprobs_are_the_targets_with_and_without_speculation(tiny):
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, num_logprobs=3)

    plain = answer(tiny, params=params, speculation=Speculation.OFF)
    speculative = answer(tiny, params=params, speculation=Speculation.FIXED)
    assert speculative.num_drafted > 0
    assert speculative.token_ids == plain.token_ids
    assert len(speculative.logprobs) == len(plain.logprobs) == 40
    for token_id, ours, theirs in zip(
        plain.token_ids, speculative.logprobs, plain.logprobs, strict=True
    ):
        assert ours == theirs
        assert ours.top_token_ids[0] == token_id
        assert ours.logprob < 0.0


def test_every_round_is_one_span_under_its_request(tiny, sink):
    """Across three processes; sums of spans, of the stream and of the totals are equal."""
    seen, _ = sink
    given = answer(tiny, speculation=Speculation.FIXED)
    trace_id = given.started.trace_id
    assert len(trace_id) == 32

    def spans(name):
        return [span for span in seen.named(name) if span.trace_id == trace_id]

    def complete():
        return len(spans("paceline.verify")) == len(given.rounds) and any(
            span.name.startswith("chat") and span.trace_id == trace_id for span in seen.spans
        )

    wait_until(complete, 10.0, "all spans exported")
    chats = [s for s in seen.spans if s.name.startswith("chat") and s.trace_id == trace_id]
    assert len(chats) == 1
    rounds = sorted(spans("paceline.round"), key=lambda s: s.attributes["paceline.round.index"])
    assert [s.attributes["paceline.round.index"] for s in rounds] == list(
        range(1, len(given.rounds) + 1)
    )
    for span, report in zip(rounds, given.rounds, strict=True):
        assert span.parent_id == chats[0].span_id
        assert span.span_id == f"{round_span_id(int(chats[0].span_id, 16), report.round):016x}"
        assert span.attributes["paceline.round.drafted"] == report.num_drafted
        assert span.attributes["paceline.round.tested"] == report.num_tested
        assert span.attributes["paceline.round.accepted"] == report.num_accepted
        assert span.end >= span.start
    verifies = spans("paceline.verify")
    assert sorted(s.parent_id for s in verifies) == sorted(s.span_id for s in rounds)
    assert {s.service for s in verifies} == {"paceline-verifier"}
    drafts = spans("paceline.draft")
    assert drafts and {s.service for s in drafts} == {"paceline-drafter"}
    known = {s.span_id for s in rounds}
    derived = {f"{round_span_id(int(chats[0].span_id, 16), n):016x}" for n in range(1, 90)}
    assert {s.parent_id for s in drafts} <= derived
    assert {s.parent_id for s in drafts} & known
    totals = SpeculationTotals()
    for report in given.rounds:
        totals.add_round(report)
    assert given.finished.totals == totals
    assert totals.num_accepted > 0
    for name in ("paceline.queue", "paceline.prefill"):
        assert len(spans(name)) == 1


def test_watch_rounds_streams_the_numbers_of_the_answer(tiny):
    async def watch():
        async with GatewayClient(tiny.gateway_address) as client:
            watched = []
            rounds = client.watch_rounds()
            first = asyncio.create_task(anext(rounds))
            # The watch is registered once its call is open; rounds before that are not its own.
            given = None
            while not first.done():
                given = await ask(client, QUESTION, GREEDY)
            watched.append(first.result())
            given = await ask(client, QUESTION, GREEDY)
            async for item in rounds:
                watched.append(item)
                if item.id == given.started.id and item.round == given.rounds[-1]:
                    break
            await rounds.aclose()
            return given, [item.round for item in watched if item.id == given.started.id]

    given, rounds = asyncio.run(watch())
    assert rounds == given.rounds


def test_killing_and_restarting_the_drafter_in_mid_answer_changes_nothing():
    prompt = chat_prompts(12, max_chars=450)[3]
    params = SamplingParams(temperature=0.8, max_tokens=120, ignore_eos=True)
    with stack("embedded", max_draft_tokens=4) as opened:
        plain = answer(opened, prompt, params, speculation=Speculation.OFF)
        opened.start_drafter("random")
        wait_until(lambda: ready(opened), what="drafter ready")
        moments = {}

        async def on_delta(so_far):
            count = len(so_far.token_ids)
            if count >= 10 and "killed" not in moments:
                assert so_far.num_drafted > 0
                opened.drafter.kill()
                moments["killed"] = len(so_far.rounds)
            elif count >= 30 and "restarted" not in moments:
                await asyncio.to_thread(opened.start_drafter, "random")
                moments["restarted"] = time.time_ns()

        async def call():
            async with GatewayClient(opened.gateway_address) as client:
                return await ask(
                    client, prompt, params, speculation=Speculation.FIXED, on_delta=on_delta
                )

        speculative = asyncio.run(call())
    assert speculative.token_ids == plain.token_ids
    resumed = [
        report
        for report in speculative.rounds
        if report.num_drafted and report.start_unix_nanos > moments["restarted"]
    ]
    assert resumed, "drafting did not resume"
    assert resumed[0].start_unix_nanos - moments["restarted"] < 2_000_000_000
    without = [r for r in speculative.rounds if r.plain_reason is PlainReason.NO_DRAFTER]
    assert without


def test_a_draft_model_with_another_tokenizer_is_refused_and_answers_go_on(tmp_path):
    target = str(save_tiny_llama(tmp_path / "target"))
    draft = save_tiny_llama(tmp_path / "draft", seed=1)
    other = byte_tokenizer()
    other.add_tokens(["one more"])
    other.save(str(draft / "tokenizer.json"))
    with stack(target, dtype="float32", threads=1) as opened:
        opened.start_drafter("model", "--model", str(draft), "--dtype", "float32")
        wait_until(lambda: opened.status().drafters[0].state == "refused", what="refusal")
        detail = opened.status().drafters[0].detail
        given = answer(opened)
    assert len(set(re.findall(r"\b[0-9a-f]{64}\b", detail))) == 2
    assert len(given.token_ids) == 60
    assert given.num_drafted == 0


def test_a_service_that_is_told_to_stop_finishes_its_answers(tmp_path):
    folder = str(save_tiny_llama(tmp_path))
    with stack(folder, dtype="float32", threads=1) as opened:

        async def call():
            async with GatewayClient(opened.gateway_address) as client:
                long = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
                started = asyncio.Event()

                async def on_delta(_):
                    started.set()

                task = asyncio.create_task(ask(client, QUESTION, long, on_delta=on_delta))
                await started.wait()
                codes = [await asyncio.to_thread(opened.gateway.stop)]
                return await task, codes

        given, codes = asyncio.run(call())
        assert len(given.token_ids) == 300
        assert codes == [0]
        assert opened.verifier.stop() == 0


def test_plaintext_is_refused_beyond_loopback():
    process = Process("verifier_service", "--host=0.0.0.0", f"--port={free_port()}")
    assert process.process.wait(timeout=60) != 0
    wait_until(lambda: any("--insecure" in line for line in process.log), what="the reason")
    process.close()


def test_provenance_names_the_source_of_every_token(tiny):
    given = answer(tiny, speculation=Speculation.FIXED)
    assert len(given.sources) == len(given.token_ids)
    drafted = given.sources.count(TokenSource.DRAFT_MODEL)
    assert drafted == sum(report.num_accepted for report in given.rounds) > 0
    assert given.sources.count(TokenSource.PLAIN) == sum(
        report.num_drafted == 0 for report in given.rounds
    )


def test_the_end_of_sequence_token_ends_the_answer_and_is_not_text(tiny):
    params = SamplingParams(temperature=0.0, max_tokens=60, logit_bias={EOS: 100.0})
    given = answer(tiny, params=params)
    assert given.token_ids == [EOS]
    assert given.text == ""
    assert given.finished.finish_reason.label == "stop"
