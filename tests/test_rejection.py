"""REJECTION: the exact law of block verification, by enumeration in float64."""

import itertools

import pytest
import torch
from scipy import stats

from paceline import rejection
from paceline.rejection import (
    DraftDistribution,
    draw,
    one_hot,
    prefix_weights,
    quantised,
    residual_distribution,
    thresholds,
    verify_block,
)

LENGTH = 4


class Markov:
    """p(next | last) as a table in float64."""

    def __init__(self, size, seed, zeros=0.0):
        generator = torch.Generator().manual_seed(seed)
        table = torch.rand(size, size, generator=generator, dtype=torch.float64) ** 2
        table[torch.rand(size, size, generator=generator) < zeros] = 0.0
        table[:, seed % size] += 0.05
        self.rows = table / table.sum(-1, keepdim=True)
        self.size = size

    def probability(self, first, tokens):
        product = 1.0
        for last, token in itertools.pairwise((first, *tokens)):
            product *= float(self.rows[last, token])
        return product


class Draft:
    """q(next | last), as integers."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, last):
        row = self.weights[last]
        ids = row.nonzero().squeeze(-1)
        return DraftDistribution(ids, row[ids])


def integer_draft(size, seed, zeros):
    generator = torch.Generator().manual_seed(100 + seed)
    weights = torch.randint(1, 60, (size, size), generator=generator)
    weights[torch.rand(size, size, generator=generator) < zeros] = 0
    weights[:, (seed + 1) % size] += 1
    return Draft(weights)


def outcomes(model, draft, last, block):
    """(probability, output) of one round, over the block's draws, the coins and the next token.

    Uses the production functions for every number; only the drawing is replaced by a sum.
    """
    for tokens in itertools.product(range(model.size), repeat=block):
        lasts = (last, *tokens)
        distributions = [draft(lasts[index]) for index in range(block)]
        chance = 1.0
        for token, distribution in zip(tokens, distributions, strict=True):
            chance *= rejection._probability(distribution, token)
        if chance == 0.0:
            continue
        rows = model.rows[list(lasts)]
        weights = prefix_weights(rows, tokens, distributions)
        coins = thresholds(rows, weights, distributions)
        for accepted in range(block + 1):
            # The last success decides: success at `accepted`, failures after it.
            part = chance * (coins[accepted - 1] if accepted else 1.0)
            for coin in coins[accepted:]:
                part *= 1.0 - coin
            if part <= 0.0:
                continue
            row = rows[accepted]
            if accepted < block:
                row = residual_distribution(row, weights[accepted], distributions[accepted])
            for token in range(model.size):
                if float(row[token]) > 0.0:
                    yield part * float(row[token]), (*tokens[:accepted], token)


def joint_law(model, draft, first, block):
    """The law of the first LENGTH tokens of speculative decoding."""
    law: dict[tuple[int, ...], float] = {}
    unfinished = {(): 1.0}
    while unfinished:
        following: dict[tuple[int, ...], float] = {}
        for output, weight in unfinished.items():
            last = output[-1] if output else first
            for chance, tokens in outcomes(model, draft, last, block):
                longer = (*output, *tokens)
                if len(longer) >= LENGTH:
                    cut = longer[:LENGTH]
                    law[cut] = law.get(cut, 0.0) + weight * chance
                else:
                    following[longer] = following.get(longer, 0.0) + weight * chance
        unfinished = following
    return law


def assert_exact(model, draft, block):
    first = 0
    law = joint_law(model, draft, first, block)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    for sequence in itertools.product(range(model.size), repeat=LENGTH):
        expected = model.probability(first, sequence)
        assert abs(law.get(sequence, 0.0) - expected) < 1e-9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("size", "block"), [(2, 4), (3, 3), (3, 1), (5, 2)])
def test_the_joint_law_is_the_targets_with_zeros_in_both(seed, size, block):
    assert_exact(Markov(size, seed, zeros=0.3), integer_draft(size, seed, zeros=0.3), block)


def test_the_joint_law_is_the_targets_for_a_lookup():
    model = Markov(3, 1)
    assert_exact(model, lambda last: one_hot((last + 1) % 3), 3)


def test_equal_distributions_accept_every_token():
    weights = torch.tensor([[10, 30, 60], [50, 25, 25], [1, 1, 98]])
    model, draft = Markov(3, 0), Draft(weights)
    model.rows = weights.double() / weights.sum(-1, keepdim=True)
    assert_exact(model, draft, 3)
    for tokens in itertools.product(range(3), repeat=3):
        lasts = (0, *tokens)
        distributions = [draft(last) for last in lasts[:3]]
        rows = model.rows[list(lasts)]
        weights_of = prefix_weights(rows, tokens, distributions)
        assert weights_of[-1] == pytest.approx(1.0)


def test_disjoint_supports_accept_nothing():
    rows = torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 3, dtype=torch.float64)
    q = DraftDistribution(torch.tensor([2, 3]), torch.tensor([1, 1]))
    for seed in range(50):
        verdict = verify_block(rows, [2, 3], [q, q], seed, 7)
        assert verdict.num_accepted == 0
        assert verdict.next_token_id < 2


@pytest.mark.parametrize("seed", range(3))
def test_block_verification_accepts_at_least_as_much_as_token_verification(seed):
    model, draft, block = Markov(3, seed), integer_draft(3, seed, zeros=0.0), 3
    by_block = by_token = 0.0
    for tokens in itertools.product(range(3), repeat=block):
        lasts = (0, *tokens)
        distributions = [draft(last) for last in lasts[:block]]
        rows = model.rows[list(lasts)]
        chance, run = 1.0, 1.0
        for index, token in enumerate(tokens):
            q = rejection._probability(distributions[index], token)
            chance *= q
        weights = prefix_weights(rows, tokens, distributions)
        coins = thresholds(rows, weights, distributions)
        for accepted in range(1, block + 1):
            part = coins[accepted - 1]
            for coin in coins[accepted:]:
                part *= 1.0 - coin
            by_block += chance * part * accepted
        for index, token in enumerate(tokens):
            q = rejection._probability(distributions[index], token)
            run *= min(1.0, float(rows[index, token]) / q)
            by_token += chance * run
    assert by_block >= by_token - 1e-12


def test_the_drawn_law_is_the_enumerated_one():
    """The production path with its own noise, against the enumeration."""
    model, draft, runs = Markov(3, 2), integer_draft(3, 2, zeros=0.2), 6_000
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(runs):
        tokens: list[int] = []
        distributions = []
        for position in range(2):
            distribution = draft(tokens[-1] if tokens else 0)
            distributions.append(distribution)
            tokens.append(draw(distribution, seed, 10, 10 + position))
        rows = model.rows[[0, *tokens]]
        verdict = verify_block(rows, tokens, distributions, seed, 10)
        output = (*tokens[: verdict.num_accepted], verdict.next_token_id)
        counts[output] = counts.get(output, 0) + 1
    law: dict[tuple[int, ...], float] = {}
    for chance, output in outcomes(model, draft, 0, 2):
        law[output] = law.get(output, 0.0) + chance
    assert set(counts) <= set(law)
    keys = [key for key in law if law[key] * runs >= 5]
    observed = [counts.get(key, 0) for key in keys]
    expected = [law[key] * runs for key in keys]
    observed.append(runs - sum(observed))
    expected.append(runs - sum(expected))
    if expected[-1] < 5:
        observed[-2:] = [sum(observed[-2:])]
        expected[-2:] = [sum(expected[-2:])]
    assert stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue > 1e-4


def test_a_replay_gives_the_same_tokens():
    model, draft = Markov(4, 5), integer_draft(4, 5, zeros=0.0)
    q = draft(0)
    for seed in range(20):
        token = draw(q, seed, 3, 3)
        assert draw(q, seed, 3, 3) == token
        first = verify_block(model.rows[[0, token]], [token], [q], seed, 3)
        assert verify_block(model.rows[[0, token]], [token], [q], seed, 3) == first


def test_another_base_draws_other_coins():
    q = DraftDistribution(torch.arange(8), torch.ones(8, dtype=torch.int64))
    assert len({tuple(draw(q, 1, base, 20 + i) for i in range(12)) for base in range(6)}) == 6


def test_quantised_is_what_both_sides_hold():
    scores = torch.randn(500, generator=torch.Generator().manual_seed(1)) * 3
    distribution = quantised(scores)
    assert len(distribution.token_ids) <= 64
    assert bool((distribution.token_ids.diff() > 0).all())
    assert int(distribution.weights.min()) >= 1
    assert float(distribution.probs.sum()) == pytest.approx(1.0)
    likeliest = int(scores.argmax())
    assert likeliest == int(distribution.token_ids[int(distribution.weights.argmax())])
