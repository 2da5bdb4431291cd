"""Lossless through the three real processes: speculation changes speed, never a token."""

import asyncio
import itertools

import pytest
from answers import ask_all, chat_prompts
from processes import stack, wait_until
from tiny import save_tiny_llama

from paceline.params import SamplingParams, Speculation

TEMPERATURES = (0.0, 0.8)
DRAFT_TOKENS = (1, 4, 8)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    with stack(folder, dtype="float32", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def smollm2():
    with stack("embedded") as opened:
        yield opened


def requests(prompts, max_tokens):
    return [
        {
            "prompt": prompt,
            "params": SamplingParams(temperature=temperature, max_tokens=max_tokens),
            "seed": 1000 + number,
        }
        for temperature, (number, prompt) in itertools.product(TEMPERATURES, enumerate(prompts))
    ]


def plain_answers(opened, prompts, max_tokens):
    """The reference: speculation off, each request alone."""
    opened.stop_drafter()
    off = [r | {"speculation": Speculation.OFF} for r in requests(prompts, max_tokens)]
    answers = asyncio.run(ask_all(opened.gateway_address, off, at_once=1))
    assert all(answer.num_drafted == 0 for answer in answers)
    return [answer.token_ids for answer in answers]


def check(opened, kind, flags, prompts, max_tokens, plain, lengths=DRAFT_TOKENS):
    """Each draft length, requests sharing forwards; drafts must really have been verified."""
    opened.start_drafter(kind, *flags)
    wait_for_drafter(opened)
    for draft_tokens in lengths:
        speculative = [
            r | {"draft_tokens": draft_tokens, "speculation": Speculation.FIXED}
            for r in requests(prompts, max_tokens)
        ]
        answers = asyncio.run(ask_all(opened.gateway_address, speculative))
        assert [answer.token_ids for answer in answers] == plain
        assert sum(answer.num_drafted for answer in answers) > 0
        for answer in answers:
            assert all(report.num_drafted <= draft_tokens for report in answer.rounds)


def wait_for_drafter(opened):
    wait_until(lambda: opened.status().drafters[0].state == "ready", 40.0, "drafter ready")


@pytest.fixture(scope="module")
def tiny_plain(tiny):
    prompts = chat_prompts(12, max_chars=250)
    return prompts, plain_answers(tiny, prompts, 40)


@pytest.mark.parametrize("kind", ["lookup", "random", "model"])
def test_tiny_fp32_gives_the_same_tokens(tiny, tiny_plain, kind):
    prompts, plain = tiny_plain
    flags = ("--model", tiny.model, "--dtype", "float32") if kind == "model" else ()
    check(tiny, kind, flags, prompts, 40, plain)


@pytest.fixture(scope="module")
def smollm2_plain(smollm2):
    prompts = chat_prompts(4, max_chars=450)
    return prompts, plain_answers(smollm2, prompts, 16)


# All prompts, and the target as its own drafter, are in test_slow_smollm2.py.
@pytest.mark.parametrize("kind", ["lookup", "random"])
def test_smollm2_bf16_gives_the_same_tokens(smollm2, smollm2_plain, kind):
    prompts, plain = smollm2_plain
    check(smollm2, kind, (), prompts, 16, plain, lengths=(8,))
