"""Drafting without a draft model, through the three services: the same tokens, in fewer rounds."""

import in_process
import pytest
from answers import ask_all, chat_prompts
from in_process import services
from tiny import save_tiny_llama

from drafter_service.config import DrafterSettings
from drafter_service.random import RandomDrafter
from paceline.params import SamplingParams, Speculation
from paceline.rounds import TokenSource
from verifier_service.sources import LOOKAHEAD, SOURCES


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))


def requests():
    """Greedy and sampled, with and without what changes from node to node of a tree."""
    kinds = (
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.2},
        {"temperature": 1.2, "top_k": 20, "presence_penalty": 0.5, "min_tokens": 12},
    )
    return [
        {
            "prompt": prompt,
            "params": SamplingParams(max_tokens=40, **kind),
            "seed": 77 + number,
            "speculation": Speculation.FIXED,
        }
        for number, prompt in enumerate(chat_prompts(2, max_chars=200))
        for kind in kinds
    ]


async def plain_answers(address):
    off = [request | {"speculation": Speculation.OFF} for request in requests()]
    return [answer.token_ids for answer in await ask_all(address, off)]


@pytest.mark.parametrize("with_drafter", [False, True])
async def test_all_sources_in_one_trie_give_the_same_tokens(tiny, with_drafter):
    drafter = DrafterSettings(drafter="random") if with_drafter else None
    async with services(tiny, drafter, SOURCES) as address:
        plain = await plain_answers(address)
        once = await ask_all(address, requests())
        again = await ask_all(address, requests())
    assert [answer.token_ids for answer in once] == plain
    assert [answer.token_ids for answer in again] == plain
    # What was answered is drafted from, so a second time takes far fewer rounds.
    rounds = [sum(len(answer.rounds) for answer in answers) for answers in (once, again)]
    assert rounds[1] * 2 < rounds[0]
    drafted = {source for answer in again for source in answer.sources}
    assert TokenSource.PAST_ANSWERS in drafted
    for answer in [*once, *again]:
        assert all(report.num_drafted <= 15 for report in answer.rounds)


async def test_lookahead_alone_gives_the_same_tokens(tiny):
    async with services(tiny, None, [LOOKAHEAD]) as address:
        plain = await plain_answers(address)
        ahead = await ask_all(address, requests())
    assert [answer.token_ids for answer in ahead] == plain
    assert sum(answer.sources.count(TokenSource.LOOKAHEAD) for answer in ahead) > 20
    assert all(report.num_drafted <= 15 for answer in ahead for report in answer.rounds)


class ShortDrafter(RandomDrafter):
    """Follows no sequence beyond its context, which the target's is longer than."""

    max_context = 60


async def test_an_answer_goes_on_alone_beyond_the_drafters_context(tiny, monkeypatch):
    monkeypatch.setattr(in_process, "open_drafter", lambda settings: ShortDrafter())
    request = {
        "prompt": list(range(3, 43)),
        "params": SamplingParams(max_tokens=60, temperature=0.8, ignore_eos=True),
        "seed": 5,
        "speculation": Speculation.FIXED,
    }
    async with services(tiny, DrafterSettings(drafter="random")) as address:
        [plain] = await ask_all(address, [request | {"speculation": Speculation.OFF}])
        [answer] = await ask_all(address, [request])
    assert answer.token_ids == plain.token_ids
    lengths = [40]
    for report in answer.rounds:
        lengths.append(lengths[-1] + report.num_output)
    with_draft = [
        n for n, report in zip(lengths, answer.rounds, strict=False) if report.num_drafted
    ]
    assert with_draft
    assert max(with_draft) < ShortDrafter.max_context


async def test_a_drafter_keeps_the_answers_that_it_may(tiny):
    request = {
        "prompt": list(range(3, 23)),
        "params": SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True),
        "seed": 5,
        "speculation": Speculation.FIXED,
    }
    other = request | {"prompt": list(range(43, 63)), "forget": True}
    async with services(tiny, DrafterSettings(drafter="past_answers")) as address:
        answers = [(await ask_all(address, [r]))[0] for r in (request, request, other, other)]
    first, again, forgotten, once_more = answers
    assert again.token_ids == first.token_ids
    assert len(again.rounds) * 2 < len(first.rounds)
    assert TokenSource.PAST_ANSWERS in again.sources
    assert once_more.token_ids == forgotten.token_ids
    assert len(once_more.rounds) * 2 > len(forgotten.rounds)
