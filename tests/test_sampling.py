"""Sampling: parity with transformers, the law of what is chosen, and verifying by equality."""

import itertools
import math

import pytest
import torch
from scipy import stats
from tiny import TableModel
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline import sampling
from paceline.params import SamplingParams
from paceline.sampling import Chooser, NotFinite, NothingLeft, SamplingState, verify


def state(params, *, seed=1, prompt=(0,), output=(), vocab_size=5, end_token_ids=()):
    return SamplingState(
        params, seed, prompt, output, vocab_size=vocab_size, end_token_ids=end_token_ids
    )


def test_processed_probabilities_equal_transformers_for_random_parameters():
    generator = torch.Generator().manual_seed(0)

    def draw(low, high):
        return low + (high - low) * float(torch.rand(1, generator=generator))

    for _ in range(200):
        logits = 4 * torch.randn(64, generator=generator)
        prompt = torch.randint(64, (12,), generator=generator).tolist()
        params = SamplingParams(
            temperature=draw(0.2, 2.0),
            top_k=int(draw(0, 40)),
            top_p=draw(0.3, 1.0),
            min_p=draw(0.0, 0.2) if draw(0, 1) > 0.5 else 0.0,
            repetition_penalty=draw(0.7, 1.6),
        )
        ids, scores = torch.tensor([prompt]), logits[None].clone()
        chain = [
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            TemperatureLogitsWarper(params.temperature),
        ]
        if params.top_k:
            chain.append(TopKLogitsWarper(params.top_k))
        chain.append(TopPLogitsWarper(params.top_p))
        if params.min_p:
            chain.append(MinPLogitsWarper(params.min_p))
        for processor in chain:
            scores = processor(ids, scores)
        ours = state(params, prompt=prompt, vocab_size=64).scores(logits)
        torch.testing.assert_close(
            torch.softmax(ours, -1), torch.softmax(scores[0], -1), rtol=0, atol=1e-6
        )


def test_the_chosen_token_follows_the_distribution():
    logits = torch.tensor([1.0, 0.5, -0.3, -1.0, 2.0])
    for params in (
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=1.3, top_p=0.8),
    ):
        chooser = Chooser(5)
        counts = [0] * 5
        for seed in range(6_000):
            counts[chooser.choose(logits, state(params, seed=seed))] += 1
        probs = torch.softmax(state(params).scores(logits).double(), -1)
        support = [index for index in range(5) if probs[index] > 0]
        assert sum(counts[index] for index in support) == 6_000
        expected = [6_000 * float(probs[index]) for index in support]
        observed = [counts[index] for index in support]
        scale = sum(observed) / sum(expected)
        expected = [value * scale for value in expected]
        test = stats.power_divergence(observed, expected, lambda_="log-likelihood")
        assert test.pvalue > 1e-4


def test_greedy_is_the_lowest_id_among_the_largest():
    chooser = Chooser(5)
    greedy = SamplingParams(temperature=0.0)
    assert chooser.choose(torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0]), state(greedy)) == 1


def test_padding_beyond_the_vocabulary_is_never_chosen():
    logits = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 99.0, 99.0])
    for temperature in (0.0, 1.0):
        for seed in range(50):
            params = SamplingParams(temperature=temperature)
            assert Chooser(5).choose(logits, state(params, seed=seed)) < 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 3])
def test_logits_that_are_not_finite_are_an_error_and_never_a_token(temperature, top_k):
    params = SamplingParams(temperature=temperature, top_k=top_k)
    for bad in (math.nan, math.inf):
        logits = torch.tensor([0.0, 1.0, bad, 0.0, 0.0])
        with pytest.raises(NotFinite):
            Chooser(5).choose(logits, state(params))


def test_constraints_that_exclude_every_token_are_an_error():
    params = SamplingParams(logit_bias=dict.fromkeys(range(5), -100.0))
    with pytest.raises(NothingLeft):
        Chooser(5).choose(torch.zeros(5), state(params))


def test_end_tokens_wait_for_min_tokens():
    logits = torch.tensor([0.0, 1.0, 0.0, 0.0, 9.0])
    params = SamplingParams(temperature=0.0, min_tokens=2)
    chooser = Chooser(5)
    assert chooser.choose(logits, state(params, end_token_ids=[4])) == 1
    assert chooser.choose(logits, state(params, output=[1, 1], end_token_ids=[4])) == 4


def test_popping_what_was_appended_restores_the_penalties():
    params = SamplingParams(repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=-0.3)
    logits = torch.tensor([0.3, 1.0, -0.5, 0.2, 0.9])
    fresh = state(params, output=[2, 2])
    worn = state(params, output=[2, 2, 3, 1, 3])
    worn.pop(3)
    assert torch.equal(fresh.scores(logits), worn.scores(logits))
    assert fresh.position == worn.position


class Draws:
    """Noise under which a given token wins at each position, whatever p is.

    In the exponential race token y wins with probability p(y) exactly; enumerating winners and
    weighing each with its p turns a statistical claim into a sum.
    """

    def __init__(self, monkeypatch, model, first, winners, num_prompt_tokens):
        self.model, self.first, self.winners = model, first, winners
        self.num_prompt_tokens = num_prompt_tokens
        monkeypatch.setattr(sampling, "exponentials", self.exponentials)

    def exponentials(self, seed, purpose, position, offsets):
        index = position - self.num_prompt_tokens
        last = self.winners[index - 1] if index else self.first
        probs = self.model.next_probs(last)
        noise = probs.clone().clamp_min(1e-300)
        noise[self.winners[index]] *= 0.5
        return noise


def decode(model, chooser, first, length, drafter, params):
    """Speculative decoding of a table model, through the real verify."""
    sequence = state(params, prompt=(first,))
    while len(sequence.output) < length:
        so_far = [first, *sequence.output]
        draft = drafter(so_far)[: length - len(sequence.output) - 1]
        rows = [model.next_probs(token).log() for token in [so_far[-1], *draft]]
        verify(chooser, torch.stack(rows), draft, sequence)
    return tuple(sequence.output)


def good(model):
    return lambda so_far: [int(model.next_probs(so_far[-1]).argmax())] * 2


def uniform(_):
    counter = itertools.count()
    return lambda so_far: [next(counter) % 5 for _ in range(3)]


def adversarial(model):
    return lambda so_far: [int(model.next_probs(so_far[-1]).argmin())] * 3


def nothing(_):
    return lambda so_far: []


@pytest.mark.parametrize("make_drafter", [nothing, good, uniform, adversarial])
def test_the_joint_law_of_all_sequences_is_the_models_exactly(monkeypatch, make_drafter):
    model, first, length = TableModel(), 2, 4
    params, chooser = SamplingParams(temperature=1.0), Chooser(5)
    law: dict[tuple[int, ...], float] = {}
    for winners in model.sequences(length):
        weight = model.sequence_probability(first, winners)
        if weight == 0.0:
            continue
        Draws(monkeypatch, model, first, winners, 1)
        output = decode(model, chooser, first, length, make_drafter(model), params)
        law[output] = law.get(output, 0.0) + weight
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    for sequence in model.sequences(length):
        expected = model.sequence_probability(first, sequence)
        assert abs(law.get(sequence, 0.0) - expected) < 1e-12


def test_every_draft_block_gives_the_tokens_of_plain_decoding():
    model, chooser = TableModel(), Chooser(5)
    for seed in range(6):
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature)
            plain = state(params, seed=seed, prompt=(2,))
            while len(plain.output) < 4:
                last = [2, *plain.output][-1]
                verify(chooser, model.next_probs(last).log()[None], [], plain)
            for block in model.sequences(3):
                spec = state(params, seed=seed, prompt=(2,))
                rows = torch.stack([model.next_probs(token).log() for token in (2, *block)])
                verdict = verify(chooser, rows, block, spec)
                assert verdict.token_ids == plain.output[: len(verdict.token_ids)]
                assert len(verdict.token_ids) == verdict.num_accepted + 1
                assert verdict.num_tested == min(verdict.num_accepted + 1, 3)
                assert list(block[: verdict.num_accepted]) == plain.output[: verdict.num_accepted]


def test_match_probability_of_two_models_equals_the_formula():
    # Daliri, Musco, Suresh 2024: sum over y of 1 / sum over z of max(p_z / p_y, q_z / q_y).
    p = torch.tensor([0.5, 0.3, 0.1, 0.07, 0.03], dtype=torch.float64)
    q = torch.tensor([0.4, 0.2, 0.25, 0.1, 0.05], dtype=torch.float64)
    formula = sum(1 / float(torch.maximum(p / p[y], q / q[y]).sum()) for y in range(5))
    chooser, params = Chooser(5), SamplingParams(temperature=1.0)
    matches = sum(
        chooser.choose(p.log(), state(params, seed=seed))
        == chooser.choose(q.log(), state(params, seed=seed))
        for seed in range(4_000)
    )
    assert abs(matches / 4_000 - formula) < 4 * (formula * (1 - formula) / 4_000) ** 0.5
