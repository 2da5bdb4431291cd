"""Luck: the shared noise of a few candidates, without torch.

The verifier chooses argmin of E / p (design.md 3), so of two candidates the one with the smaller E
is ahead before p is known. Knows no source and no model.
"""

import math
from bisect import bisect
from collections.abc import Sequence

from paceline.noise import GOLDEN, Purpose, mixed, row_key

# Above temperature 0 a copied token stands or falls with its noise: levels of E, lucky first.
_LEVELS = (0.25, 0.7, 1.5)
# Keys of recent positions: a trie is never deeper.
_MAX_KEYS = 256


class Luck:
    """The noise of one sequence at temperature above 0."""

    def __init__(self, seed: int, temperature: float) -> None:
        """Raises ValueError at temperature 0, where no noise is drawn."""
        if temperature <= 0.0:
            raise ValueError("at temperature 0 there is no noise")
        self._seed = seed
        self._temperature = temperature
        self._keys: dict[int, int] = {}

    def exponential(self, position: int, token_id: int) -> float:
        """E of one token at one position: small is lucky."""
        key = self._keys.get(position)
        if key is None:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            key = self._keys[position] = row_key(self._seed, Purpose.CHOOSE, position)
        bits = mixed(key + GOLDEN * (token_id + 1)) >> 12
        return -math.log((bits + 0.5) * 2.0**-52)

    def scores(
        self, position: int, token_ids: Sequence[int], logprobs: Sequence[float]
    ) -> list[float]:
        """log p / T - log E of each candidate: the largest wins the race."""
        return [
            logprob / self._temperature - math.log(self.exponential(position, token_id))
            for token_id, logprob in zip(token_ids, logprobs, strict=True)
        ]


def luck_level(luck: Luck | None, position: int, token_id: int) -> int:
    """0 at temperature 0; else 1 (lucky) to 4 (unlucky)."""
    if luck is None:
        return 0
    return 1 + bisect(_LEVELS, luck.exponential(position, token_id))
