"""The HTTP door through the real `openai` client: sync, async and streaming, unmodified."""

import asyncio
import contextlib
from typing import Any

import openai
import pytest
from fakes import eventually, gateway_for, served
from http_door import IDS, TEXT, fake_verifier, open_door

from gateway.gateway import Gateway
from gateway.placement import ranked
from paceline.noise import derived_seed
from paceline.v1 import gateway_pb2 as pb

ASKED: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "it"}]},
]


def client_of(gateway: Gateway, **options: Any) -> openai.AsyncOpenAI:
    url = f"http://{gateway.http_address}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, **options)


async def test_a_sync_client_gets_models_answers_and_streams():
    def talk(url: str) -> tuple[Any, ...]:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = client.models.list().data[0].id
            whole = client.chat.completions.create(model=model, messages=ASKED, seed=7)
            with client.chat.completions.create(model=model, messages=ASKED, stream=True) as chunks:
                streamed = "".join(c.choices[0].delta.content or "" for c in chunks)
            return model, client.models.retrieve(model).id, whole, streamed

    async with open_door() as (gateway, fake, _):
        url = f"http://{gateway.http_address}/v1"
        model, same_model, whole, streamed = await asyncio.to_thread(talk, url)
    assert model == same_model == "tiny"
    assert whole.choices[0].message.content == streamed == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == len(IDS)
    assert whole.usage.prompt_tokens == len(fake.opens[0].token_ids)
    assert whole.usage.prompt_tokens_details.cached_tokens == 2
    assert whole.id.startswith("chatcmpl-")
    assert whole.system_fingerprint == "m" * 16 + "-exact"
    assert fake.opens[0].seed == 7


async def test_an_async_stream_has_role_first_then_text_then_reason_then_usage():
    async with open_door() as (gateway, _, _), client_of(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    first, *pieces, last, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in pieces) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(IDS)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


async def test_every_token_says_where_it_came_from_and_totals_add_up():
    async with open_door() as (gateway, _, _), client_of(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=ASKED,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"paceline": {"speculation": "fixed", "max_draft_tokens": 6}},
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.chat.completions.create(model="tiny", messages=ASKED, seed=5)
    reports = [chunk.choices[0].paceline for chunk in chunks[:-1]]
    assert reports[0]["seed"] == 5
    assert len(reports[0]["id"]) == 32
    deltas, totals = reports[1:-1], reports[-1]["totals"]
    assert [i for report in deltas for i in report["token_ids"]] == IDS
    assert deltas[0]["sources"] == ["prompt_lookup", "plain"]
    assert deltas[0]["prefill"]["num_cached_tokens"] == 2
    rounds = [report["round"] for report in deltas]
    assert [r["num_output"] for r in rounds] == [2, 3, len(IDS) - 5]
    assert rounds[0]["source"] == "prompt_lookup"
    assert totals["num_accepted"] == sum(r["num_accepted"] for r in rounds)
    tested = sum(r["num_tested"] for r in rounds)
    assert totals["acceptance_rate"] == totals["num_accepted"] / tested
    metrics = chunks[-1].metrics
    speculative = metrics["speculative_decoding"]
    assert speculative["num_spec_tokens"] == max(6, len(IDS) - 6)
    histogram = speculative["acceptance_histogram"]
    assert len(histogram) == speculative["num_spec_tokens"] + 1
    assert sum(histogram) == speculative["num_spec_steps"] == 3
    assert sum(n * count for n, count in enumerate(histogram)) == totals["num_accepted"]
    assert metrics["time_to_first_token_ms"] > 0
    report = whole.choices[0].paceline
    assert (report["token_ids"], report["rounds"]) == (IDS, rounds)
    assert report["totals"] == totals
    assert report["digest"] == reports[-1]["digest"]


async def test_logprobs_come_in_both_forms_and_agree():
    async with open_door() as (gateway, fake, _), client_of(gateway) as client:
        chat = await client.chat.completions.create(
            model="tiny", messages=ASKED, logprobs=True, top_logprobs=1
        )
        legacy = await client.completions.create(model="tiny", prompt="Say", logprobs=1)
        stream = await client.chat.completions.create(
            model="tiny", messages=ASKED, logprobs=True, top_logprobs=1, stream=True
        )
        streamed = [chunk.choices[0].logprobs async for chunk in stream]
        plain = await client.chat.completions.create(model="tiny", messages=ASKED)
    content = chat.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content[:-1]).decode() == TEXT
    assert (content[0].token, content[0].top_logprobs[0].logprob) == ("hello", -0.5)
    assert [token for scores in streamed if scores for token in scores.content] == content
    old = legacy.choices[0].logprobs
    assert old.tokens == [token.token for token in content]
    assert old.token_logprobs == [token.logprob for token in content]
    assert [old.text_offset[0], old.text_offset[1], old.text_offset[-1]] == [0, 5, len(TEXT)]
    assert legacy.choices[0].text == TEXT
    assert legacy.id.startswith("cmpl-")
    assert plain.choices[0].logprobs is None
    assert [opening.params.num_logprobs for opening in fake.opens[:2]] == [1, 1]


async def test_every_parameter_reaches_the_verifier():
    async with open_door() as (gateway, fake, _), client_of(gateway) as client:
        await client.chat.completions.create(
            model="tiny",
            messages=ASKED,
            temperature=0.5,
            top_p=0.9,
            presence_penalty=0.25,
            frequency_penalty=-0.5,
            logit_bias={"5": 1.5},
            max_completion_tokens=33,
            seed=2**63 + 1,
            user="somebody",
            store=False,
            extra_body={
                "top_k": 40,
                "min_p": 0.125,
                "repetition_penalty": 1.5,
                "min_tokens": 3,
                "ignore_eos": True,
                "stop_token_ids": [7, 9],
                "paceline": {
                    "speculation": "fixed",
                    "max_draft_tokens": 4,
                    "forget": True,
                    "mode": "rejection",
                    "workload": "coding",
                },
            },
        )
        await client.completions.create(
            model="tiny", prompt=[1, 2, 3], max_tokens=5, extra_body={"top_k": -1}
        )
    opening, legacy = fake.opens
    params = opening.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.125)
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    assert penalties == (1.5, 0.25, -0.5)
    assert dict(params.logit_bias) == {5: 1.5}
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (33, 3, True)
    assert list(params.stop_token_ids) == [7, 9]
    assert (opening.seed, opening.workload, params.mode) == (2**63 + 1, "coding", 2)
    draft = opening.draft
    assert (draft.speculation, draft.max_draft_tokens, draft.forget) == (3, 4, True)
    assert not params.HasField("num_logprobs")
    assert list(legacy.token_ids) == [1, 2, 3]
    assert (legacy.params.max_tokens, legacy.params.top_k) == (5, 0)


@pytest.mark.parametrize("stop", [" world", ["absent", " world"]])
async def test_a_stop_string_ends_the_text(stop: Any):
    async with open_door() as (gateway, _, _), client_of(gateway) as client:
        answer = await client.chat.completions.create(model="tiny", messages=ASKED, stop=stop)
    assert answer.choices[0].message.content == "hello 😀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].paceline["stop"] == " world"


async def test_several_answers_have_seeds_of_their_own_whole_and_streamed():
    async with open_door() as (gateway, fake, _), client_of(gateway) as client:
        whole = await client.chat.completions.create(model="tiny", messages=ASKED, n=3, seed=9)
        stream = await client.chat.completions.create(
            model="tiny",
            messages=ASKED,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {TEXT}
    seeds = [derived_seed(9, index) for index in range(3)]
    assert [choice.paceline["seed"] for choice in whole.choices] == seeds
    assert sorted(opening.seed for opening in fake.opens[:3]) == sorted(seeds)
    assert whole.usage.completion_tokens == 3 * len(IDS)
    assert whole.usage.prompt_tokens == len(fake.opens[0].token_ids)
    assert whole.metrics is None
    for index in (0, 1):
        mine = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in mine) == TEXT
        assert mine[0].delta.role == "assistant"
        assert mine[-1].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 2 * len(IDS)


async def test_both_doors_give_the_same_answer():
    async with open_door() as (gateway, fake, stub), client_of(gateway) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], seed=11
        )
        chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="a")])
        call = stub.Generate(pb.GenerateRequest(chat=chat, seed=11))
        deltas = [r.delta async for r in call if r.WhichOneof("response") == "delta"]
    assert answer.choices[0].message.content == "".join(delta.text for delta in deltas)
    over_http, over_grpc = fake.opens
    assert list(over_http.token_ids) == list(over_grpc.token_ids)
    assert over_http.params == over_grpc.params
    assert over_http.seed == over_grpc.seed


async def test_an_answer_that_was_cut_goes_on():
    async with open_door() as (gateway, fake, _), client_of(gateway) as client:

        async def ask(seed: int, paceline: dict[str, Any]) -> Any:
            return await client.chat.completions.create(
                model="tiny", messages=ASKED, seed=seed, extra_body={"paceline": paceline}
            )

        first = (await ask(5, {})).choices[0].paceline
        for num_had in (1, len(IDS)):
            kept = {
                "model_fingerprint": first["model_fingerprint"],
                "generated_token_ids": IDS[:num_had],
            }
            rest = await ask(first["seed"], kept)
            report = rest.choices[0].paceline
            assert report["token_ids"] == IDS[num_had:]
            assert report["digest"] == first["digest"]
            assert TEXT.endswith(rest.choices[0].message.content)
            assert rest.usage.completion_tokens == len(IDS) - num_had
        assert list(fake.opens[1].generated_token_ids) == IDS[:1]
        with pytest.raises(openai.BadRequestError, match="not the one"):
            await ask(5, {**kept, "model_fingerprint": "another"})


async def test_a_session_stays_at_its_verifier():
    fakes = {}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            fake = fake_verifier()
            address, _ = await stack.enter_async_context(served(fake))
            fakes[address] = fake
        door = gateway_for(*fakes, http_host="127.0.0.1")
        gateway, _ = await stack.enter_async_context(door)
        await eventually(lambda: all(v.is_ready for v in gateway.verifiers.all))
        client = await stack.enter_async_context(client_of(gateway))
        home = {ranked(label, list(fakes))[0]: label for label in map(str, range(64))}
        assert home.keys() == fakes.keys()
        for address, session in [*home.items()] * 2:
            before = len(fakes[address].opens)
            await client.chat.completions.create(
                model="tiny", messages=ASKED, extra_headers={"X-Paceline-Session": session}
            )
            assert len(fakes[address].opens) == before + 1
        with pytest.raises(openai.BadRequestError, match="printable") as refused:
            await client.chat.completions.create(
                model="tiny", messages=ASKED, extra_headers={"X-Paceline-Session": "x" * 257}
            )
        assert refused.value.param == "X-Paceline-Session"


async def test_an_answer_sent_back_as_it_came_is_taken():
    async with open_door() as (gateway, fake, _), client_of(gateway) as client:
        first = await client.chat.completions.create(model="tiny", messages=ASKED)
        message: Any = first.choices[0].message
        question: Any = {"role": "user", "content": "and?"}
        await client.chat.completions.create(model="tiny", messages=[*ASKED, message, question])
    assert len(fake.opens[1].token_ids) > len(fake.opens[0].token_ids)


async def test_the_client_raises_its_own_errors():
    async with open_door() as (gateway, fake, _), client_of(gateway) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="other", messages=ASKED)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=ASKED, tools=[{}])  # type: ignore[list-item]
        fake.with_final = False
        fake.rounds = [IDS[:2]]
        stream = await client.chat.completions.create(model="tiny", messages=ASKED, stream=True)
        with pytest.raises(openai.APIError, match="the verifier went away"):
            async for _ in stream:
                pass
    assert unknown.value.code == "model_not_found"
    assert unknown.value.param == "model"
    assert refused.value.param == "tools"
    assert refused.value.request_id
