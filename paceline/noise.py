"""Noise: every random number as a pure function of (seed, purpose, position, token_id).

The specification, with test vectors, stands in protos/paceline/v1/tokens.proto. There is no
generator state anywhere, so a replay, another drafter or another replica draws the same numbers.
Knows nothing of probabilities.
"""

from enum import IntEnum

import torch
from torch import Tensor

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a number is used for: numbers of different purposes are independent."""

    CHOOSE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    DERIVE = 4


def _signed(value: int) -> int:
    """The int64 with the bits of a 64-bit unsigned value."""
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def _mix(value: int) -> int:
    value &= _MASK
    value ^= value >> 30
    value = value * _MULTIPLIER_1 & _MASK
    value ^= value >> 27
    value = value * _MULTIPLIER_2 & _MASK
    return value ^ value >> 31


def row_key(seed: int, purpose: Purpose, position: int) -> int:
    """The 64-bit state of one position; combined with a token id it gives the bits."""
    key = _mix(seed + _GOLDEN * (purpose + 1))
    return _mix(key + _GOLDEN * (position + 1))


def bits(seed: int, purpose: Purpose, position: int, token_id: int) -> int:
    """The 64 bits of one number."""
    return _mix(row_key(seed, purpose, position) + _GOLDEN * (token_id + 1))


def uniform(seed: int, purpose: Purpose, position: int, token_id: int = 0) -> float:
    """One number in (0, 1)."""
    return ((bits(seed, purpose, position, token_id) >> 12) + 0.5) * 2.0**-52


def token_offsets(vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """G * (token_id + 1) for every token id: int64 [vocab_size]. Made once per vocabulary."""
    return torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN)


def exponentials(
    seed: int,
    purpose: Purpose,
    position: int,
    offsets: Tensor,  # int64 [num_tokens], of token_offsets
) -> Tensor:  # float64 [num_tokens]
    """-log u for each token: independent draws of the standard exponential distribution."""
    z = offsets + _signed(row_key(seed, purpose, position))
    # int64 shifts are arithmetic: the masks make them logical.
    z.bitwise_xor_((z >> 30).bitwise_and_(2**34 - 1)).mul_(_signed(_MULTIPLIER_1))
    z.bitwise_xor_((z >> 27).bitwise_and_(2**37 - 1)).mul_(_signed(_MULTIPLIER_2))
    z.bitwise_xor_((z >> 31).bitwise_and_(2**33 - 1))
    z.bitwise_right_shift_(12).bitwise_and_(2**52 - 1)
    return z.to(torch.float64).add_(0.5).mul_(2.0**-52).log_().neg_()
