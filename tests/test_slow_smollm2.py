"""Every bench prompt, on the embedded model in bf16: the same token ids, whatever drafts."""

import asyncio
import itertools
import json

import pytest
from answers import PROMPTS, ask_all
from processes import Process, stack, wait_until
from transformers import AutoTokenizer
from verifier_calls import generate, verifier_stub

from paceline.model.load import resolve
from paceline.params import SamplingParams, Speculation

pytestmark = pytest.mark.slow

TEMPERATURES = (0.0, 0.8)
MAX_TOKENS = 24
DRAFT_TOKENS = 8
BATCH = 8
# How much of an answer was delivered before it is opened again.
CUTS = (1, 7, 16, 23)


def prompts():
    """Token ids of all bench prompts."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("embedded"))
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    return [
        tokenizer.apply_chat_template(
            line["messages"], add_generation_prompt=True, return_dict=False
        )
        for line in lines
    ]


def params(temperature):
    return SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="module")
def requests():
    return [
        {"prompt": prompt, "params": params(temperature), "seed": 1000 + number}
        for temperature, (number, prompt) in itertools.product(TEMPERATURES, enumerate(prompts()))
    ]


@pytest.fixture(scope="module")
def smollm2():
    with stack("embedded") as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(smollm2, requests):
    """The reference: speculation off, each request alone."""
    off = [request | {"speculation": Speculation.OFF} for request in requests]
    answers = asyncio.run(ask_all(smollm2.gateway_address, off, at_once=1))
    assert all(answer.num_drafted == 0 for answer in answers)
    return [answer.token_ids for answer in answers]


def every_ninth(requests):
    """Indices of a part of the requests that has all categories and temperatures."""
    return range(2, len(requests), 9)


def different(found, expected):
    """Indices of the answers that are not the expected ones."""
    return [
        index
        for index, (ours, theirs) in enumerate(zip(found, expected, strict=True))
        if ours != theirs
    ]


@pytest.mark.parametrize(
    "drafter",
    [("lookup",), ("random",), ("model", "--model=embedded")],
    ids=lambda drafter: drafter[0],
)
def test_every_prompt_gives_the_same_tokens(smollm2, requests, plain, drafter):
    smollm2.start_drafter(*drafter)
    wait_until(lambda: smollm2.status().drafters[0].state == "ready", 60.0, "drafter ready")
    fixed = [
        request | {"draft_tokens": DRAFT_TOKENS, "speculation": Speculation.FIXED}
        for request in requests
    ]
    num_drafted = 0
    for at_once in (BATCH, 1):
        answers = asyncio.run(ask_all(smollm2.gateway_address, fixed, at_once=at_once))
        num_drafted += sum(answer.num_drafted for answer in answers)
        assert different([answer.token_ids for answer in answers], plain) == []
    assert num_drafted > 0
    smollm2.stop_drafter()


def ask_verifier(address, requests):
    """Token ids of each, `BATCH` at a time, without speculation."""

    async def call():
        gate = asyncio.Semaphore(BATCH)
        async with verifier_stub(address) as stub:

            async def one(request):
                async with gate:
                    how = request | {"speculation": Speculation.OFF, "deadline_s": 300.0}
                    return (await generate(stub, **how)).token_ids

            return await asyncio.gather(*map(one, requests))

    return asyncio.run(call())


def test_an_answer_that_is_opened_again_goes_on_with_the_same_tokens(smollm2, requests, plain):
    reopened, rest = [], []
    for index, cut in itertools.product(every_ninth(requests), CUTS):
        if cut < len(plain[index]):
            reopened.append(requests[index] | {"generated": plain[index][:cut]})
            rest.append(plain[index][cut:])
    assert len(rest) > len(requests) // 9
    assert different(ask_verifier(smollm2.verifier_address, reopened), rest) == []


def test_other_prefill_chunks_give_the_same_tokens(requests, plain):
    verifier = Process(
        "verifier_service", "--port=0", "--model=embedded", "--prefill-rows=37", "--step-rows=64"
    )
    try:
        found = ask_verifier(verifier.address(), requests)
    finally:
        verifier.close()
    assert different(found, plain) == []
