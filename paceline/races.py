"""Exponential noise for many tokens at once: the numbers of paceline.noise as tensors."""

import torch
from torch import Tensor

from paceline.noise import GOLDEN, MULTIPLIER_1, MULTIPLIER_2, Purpose, row_key


def _signed(value: int) -> int:
    """The int64 with the bits of a 64-bit unsigned value."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def token_offsets(vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """G * (token_id + 1) for every token id: int64 [vocab_size]. Made once per vocabulary."""
    return torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _signed(GOLDEN)


def exponentials(
    seed: int,
    purpose: Purpose,
    position: int,
    offsets: Tensor,  # int64 [num_tokens], of token_offsets
) -> Tensor:  # float64 [num_tokens]
    """-log u for each token: independent draws of the standard exponential distribution."""
    z = offsets + _signed(row_key(seed, purpose, position))
    # int64 shifts are arithmetic: the masks make them logical.
    z.bitwise_xor_((z >> 30).bitwise_and_(2**34 - 1)).mul_(_signed(MULTIPLIER_1))
    z.bitwise_xor_((z >> 27).bitwise_and_(2**37 - 1)).mul_(_signed(MULTIPLIER_2))
    z.bitwise_xor_((z >> 31).bitwise_and_(2**33 - 1))
    z.bitwise_right_shift_(12).bitwise_and_(2**52 - 1)
    return z.to(torch.float64).add_(0.5).mul_(2.0**-52).log_().neg_()
