"""Verifying a tree: whatever it holds, the tokens are those of plain decoding."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TableModel

from paceline.params import SamplingParams
from paceline.sampling import Chooser, SamplingState, top_tokens, verify

MODEL = TableModel()
CHOOSER = Chooser(MODEL.vocab_size)
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.7),
    SamplingParams(temperature=0.0, presence_penalty=1.5, min_tokens=6, stop_token_ids=[1]),
    SamplingParams(temperature=1.3, top_k=3, logit_bias={2: 3.0}),
)
PROMPT = [0, 3]
LENGTH = 12


def new_state(params, seed):
    return SamplingState(params, seed, PROMPT, vocab_size=MODEL.vocab_size)


def logits_after(last):
    return MODEL.next_probs(last).clamp_min(1e-9).log().float()


def plain(params, seed):
    state = new_state(params, seed)
    while len(state.output) < LENGTH:
        verify(CHOOSER, logits_after((state.output or PROMPT)[-1])[None], [], state)
    return state.output


def random_tree(rng, size):
    """Distinct children per node, parents first."""
    token_ids, parents, taken = [], [], set()
    for index in range(size):
        parent, token_id = rng.randint(-1, index - 1), rng.randrange(MODEL.vocab_size)
        while (parent, token_id) in taken:
            parent, token_id = rng.randint(-1, index - 1), rng.randrange(MODEL.vocab_size)
        taken.add((parent, token_id))
        token_ids.append(token_id)
        parents.append(parent)
    return token_ids, parents


def in_trees(params, seed, rng):
    """The same answer in rounds of random trees; how many tokens were accepted."""
    state, accepted = new_state(params, seed), 0
    while len(state.output) < LENGTH:
        token_ids, parents = random_tree(rng, rng.randint(0, 12))
        last = (state.output or PROMPT)[-1]
        rows = torch.stack([logits_after(token_id) for token_id in (last, *token_ids)])
        before = len(state.output)
        verdict = verify(CHOOSER, rows, token_ids, state, parents=parents)
        assert state.output[before:] == list(verdict.token_ids)
        assert [token_ids[node] for node in verdict.path] == verdict.token_ids[:-1]
        assert [parents[node] for node in verdict.path] == [-1, *verdict.path][:-1]
        stands = verdict.path[-1] if verdict.path else -1
        assert verdict.num_tested == verdict.num_accepted + (stands in parents)
        accepted += verdict.num_accepted
    return state.output[:LENGTH], accepted


@pytest.mark.parametrize("params", PARAMS)
def test_any_tree_gives_the_tokens_of_plain_decoding(params):
    total = 0
    for seed in range(12):
        output, accepted = in_trees(params, seed, random.Random(seed))
        assert output == plain(params, seed)
        total += accepted
    assert total > 20


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 99))
def test_a_chain_is_a_tree_of_one_branch(draft, seed):
    params = PARAMS[1]
    rows = torch.stack([logits_after(token_id) for token_id in (PROMPT[-1], *draft)])
    as_chain = verify(CHOOSER, rows, draft, new_state(params, seed))
    parents = list(range(-1, len(draft) - 1))
    as_tree = verify(CHOOSER, rows, draft, new_state(params, seed), parents=parents)
    assert as_chain == as_tree
    assert list(as_chain.path) == list(range(as_chain.num_accepted))


def test_all_one_step_continuations_are_always_accepted():
    """A node for every token: the walk never stops for want of a branch."""
    token_ids, parents = [*range(5), *range(5)], [-1] * 5 + [2] * 5
    for seed in range(50):
        rows = torch.stack([logits_after(token_id) for token_id in (PROMPT[-1], *token_ids)])
        verdict = verify(CHOOSER, rows, token_ids, new_state(PARAMS[1], seed), parents=parents)
        assert verdict.num_accepted == (2 if verdict.token_ids[0] == 2 else 1)


def test_rows_of_other_branches_never_decide():
    """A mutation: were a node's row another's, the tokens would differ."""
    token_ids, parents = [*range(5)], [-1] * 5
    differs = 0
    for seed in range(50):
        rows = torch.stack([logits_after(token_id) for token_id in (PROMPT[-1], *token_ids)])
        right = verify(CHOOSER, rows, token_ids, new_state(PARAMS[1], seed), parents=parents)
        swapped = rows[[0, 2, 3, 4, 5, 1]]
        wrong = verify(CHOOSER, swapped, token_ids, new_state(PARAMS[1], seed), parents=parents)
        assert right.token_ids[0] == wrong.token_ids[0]
        differs += right.token_ids != wrong.token_ids
    assert differs > 5


def test_top_tokens_are_raw_log_probabilities():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    for row, (token_ids, logprobs) in zip(logits, top_tokens(logits, 4), strict=True):
        expected = torch.log_softmax(row, -1)
        assert token_ids == expected.argsort(descending=True)[:4].tolist()
        assert logprobs == pytest.approx(expected[token_ids].tolist(), abs=1e-5)
