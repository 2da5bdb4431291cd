"""Seeds through the real processes: what is asked again is answered again, and nothing else is."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from answers import ask
from processes import Stack, stack, wait_until
from tiny import save_tiny_llama

from paceline.client import GatewayClient
from paceline.events import Delta, Finished, Request, Started
from paceline.noise import derived_seed
from paceline.params import SamplingParams

WARM = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)
PROMPT = "one two three one two three one"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    with stack(folder, dtype="float32", threads=1, max_sequences=8) as opened:
        opened.start_drafter("lookup")
        wait_until(lambda: opened.status().drafters[0].state == "ready", what="drafter ready")
        yield opened


def ask_together(opened: Stack, seeds: list[int | None]) -> list[tuple[int, ...]]:
    """The token ids of one answer per seed, all under way at once."""

    async def call() -> list[tuple[int, ...]]:
        async with GatewayClient(opened.gateway_address) as client:
            answers = [ask(client, PROMPT, WARM, seed=seed) for seed in seeds]
            return [tuple(a.token_ids) for a in await asyncio.gather(*answers)]

    return asyncio.run(call())


def test_four_answers_to_one_seed_differ_and_each_is_the_answer_to_its_own(tiny: Stack):
    async def ask_for_four() -> tuple[list[int], list[tuple[int, ...]]]:
        token_ids: list[list[int]] = [[] for _ in range(4)]
        seeds = [-1] * 4
        finished: list[int] = []
        async with GatewayClient(tiny.gateway_address) as client:
            request = Request(prompt=PROMPT, params=WARM, seed=42, n=4)
            async for index, event in client.generate_many(request):
                match event:
                    case Started():
                        seeds[index] = event.seed
                    case Delta():
                        token_ids[index] += event.token_ids
                    case Finished():
                        assert event.num_completion_tokens == len(token_ids[index])
                        finished.append(index)
        assert sorted(finished) == [0, 1, 2, 3]
        return seeds, [tuple(ids) for ids in token_ids]

    seeds, together = asyncio.run(ask_for_four())
    assert seeds == [derived_seed(42, index) for index in range(4)]
    assert len(set(together)) == 4
    for seed, token_ids in zip(seeds, together, strict=True):
        assert ask_together(tiny, [seed]) == [token_ids]


def test_twenty_requests_without_a_seed_are_answered_differently(tiny: Stack):
    one_by_one = [ask_together(tiny, [None])[0] for _ in range(4)]
    assert len({*one_by_one, *ask_together(tiny, [None] * 16)}) == 20


def test_one_seed_is_one_answer_alone_and_among_requests_without_one(tiny: Stack):
    alone = [ask_together(tiny, [42])[0] for _ in range(4)]
    crowd = ask_together(tiny, [42, None] * 8)
    others = ask_together(tiny, [43] + [42] * 8)
    same = alone + crowd[::2] + others[1:]
    assert len(same) == 20
    assert len(set(same)) == 1
    assert len({*crowd[1::2], others[0], same[0]}) == 8 + 2


def test_the_command_prints_every_answer_and_asking_for_one_of_them_gives_it_again(tiny: Stack):
    command = [sys.executable, "-m", "paceline.cli.main", "generate", PROMPT, "--raw", "--json"]
    command += ["--gateway", tiny.gateway_address, "--temperature", "0.8", "--max-tokens", "12"]

    def run(*flags: str) -> dict:
        done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    answers = run("--seed", "42", "--n", "3", "--logprobs", "1")["answers"]
    assert [answer["seed"] for answer in answers] == [derived_seed(42, i) for i in range(3)]
    last = run("--seed", str(answers[2]["seed"]))
    assert last["token_ids"] == answers[2]["token_ids"]
    assert "logprobs" not in last
    for token_id, entry in zip(answers[0]["token_ids"], answers[0]["logprobs"], strict=True):
        assert entry["token_id"] == token_id
        assert entry["logprob"] <= entry["top"][0][1] <= 0.0
