"""Luck is the verifier's own noise: who wins the race here wins it there."""

import pytest
import torch

from paceline.lookup.luck import Luck, luck_level
from paceline.noise import Purpose
from paceline.races import exponentials, token_offsets


def test_a_candidates_noise_is_the_verifiers():
    offsets = token_offsets(50)
    luck = Luck(99, 0.8)
    for position in range(300):
        expected = exponentials(99, Purpose.CHOOSE, position, offsets)
        assert luck.exponential(position, 7) == pytest.approx(float(expected[7]), rel=1e-12)


def test_the_race_of_few_has_the_winner_of_all():
    logprobs = torch.log_softmax(torch.randn(50, generator=torch.Generator().manual_seed(1)), -1)
    luck = Luck(5, 0.7)
    for position in range(100):
        noise = exponentials(5, Purpose.CHOOSE, position, token_offsets(50))
        winner = int((logprobs.double() / 0.7 - noise.log()).argmax())
        scores = luck.scores(position, range(50), logprobs.tolist())
        assert max(range(50), key=scores.__getitem__) == winner


def test_levels_are_in_order_of_luck_and_greedy_decoding_has_none():
    luck = Luck(5, 1.0)
    pairs = sorted((luck.exponential(3, i), luck_level(luck, 3, i)) for i in range(200))
    levels = [level for _, level in pairs]
    assert levels == sorted(levels)
    assert set(levels) == {1, 2, 3, 4}
    assert luck_level(None, 3, 1) == 0
    with pytest.raises(ValueError, match="no noise"):
        Luck(5, 0.0)
