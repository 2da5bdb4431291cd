"""Noise: every random number as a pure function of (seed, purpose, position, token_id).

The specification, with test vectors, stands in protos/paceline/v1/tokens.proto. There is no
generator state anywhere, so a replay, another drafter or another replica draws the same numbers.
Whole vocabularies at once are in paceline.races. Knows nothing of probabilities, and no torch.
"""

from enum import IntEnum

_MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a number is used for: numbers of different purposes are independent."""

    CHOOSE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    DERIVE = 4


def mixed(value: int) -> int:
    """splitmix64's finaliser: 64 bits in, 64 bits out."""
    value &= _MASK
    value ^= value >> 30
    value = value * MULTIPLIER_1 & _MASK
    value ^= value >> 27
    value = value * MULTIPLIER_2 & _MASK
    return value ^ value >> 31


def row_key(seed: int, purpose: Purpose, position: int) -> int:
    """The 64-bit state of one position; combined with a token id it gives the bits."""
    key = mixed(seed + GOLDEN * (purpose + 1))
    return mixed(key + GOLDEN * (position + 1))


def bits(seed: int, purpose: Purpose, position: int, token_id: int) -> int:
    """The 64 bits of one number."""
    return mixed(row_key(seed, purpose, position) + GOLDEN * (token_id + 1))


def uniform(seed: int, purpose: Purpose, position: int, token_id: int = 0) -> float:
    """One number in (0, 1)."""
    return ((bits(seed, purpose, position, token_id) >> 12) + 0.5) * 2.0**-52


def derived_seed(seed: int, index: int) -> int:
    """The seed of one of several answers to a request; the first keeps the request's own."""
    return seed if index == 0 else bits(seed, Purpose.DERIVE, index, 0) >> 1
