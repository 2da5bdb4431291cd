"""REJECTION: verify a draft block against the distributions it was sampled from.

Block verification (Sun et al., ICLR 2025, arXiv 2403.10444, algorithm 2): the law of the output is
the target's for any draft distribution, and no token-by-token test accepts more. The draft
distribution is made of integers and sampled from those integers, so that both sides hold the same
numbers. All randomness is a pure function of the seed, the round's base and the position: a replay
gives the same tokens. Knows nothing of models, messages or services. p and q are the papers'
target and draft distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.noise import Purpose, bits, uniform
from paceline.races import exponentials, token_offsets

# Entries of a draft distribution, and what its weights add up to about. 2^13 keeps nearly every
# weight of a 64-entry distribution in one or two bytes on the wire.
MAX_ENTRIES = 64
MAX_ENTRIES_ACCEPTED = 256
TOTAL_WEIGHT = 1 << 13
# Below this the residual is rounding error: p and q are equal there.
_NO_RESIDUAL = 1e-12


@dataclass(frozen=True, slots=True)
class DraftDistribution:
    """q at one position: weight / sum of weights on ascending ids, zero elsewhere."""

    token_ids: Tensor  # int64 [num_entries], ascending
    weights: Tensor  # int64 [num_entries], at least 1

    @property
    def probs(self) -> Tensor:
        """float64 [num_entries]."""
        return self.weights.double() / self.weights.sum().double()


def checked(
    token_ids: Sequence[int], weights: Sequence[int], vocab_size: int
) -> DraftDistribution | None:
    """What a drafter sent, or None when it is no distribution over the vocabulary."""
    if not 0 < len(token_ids) == len(weights) <= MAX_ENTRIES_ACCEPTED:
        return None
    ids = torch.tensor(list(token_ids), dtype=torch.int64)
    values = torch.tensor(list(weights), dtype=torch.int64)
    ascending = bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocab_size
    in_range = int(values.min()) >= 1 and int(values.max()) < 1 << 31
    return DraftDistribution(ids, values) if ascending and in_range else None


def one_hot(token_id: int) -> DraftDistribution:
    """What a lookup proposes: certainty."""
    return DraftDistribution(torch.tensor([token_id]), torch.tensor([1]))


def quantised(scores: Tensor, max_entries: int = MAX_ENTRIES) -> DraftDistribution:
    """The likeliest tokens of scores [vocab_size], with integer weights. Sample from these."""
    top = torch.topk(scores, min(max_entries, scores.numel()))
    probs = torch.softmax(top.values.double(), -1)
    keep = probs > 0
    ids, order = torch.sort(top.indices[keep])
    weights = (probs[keep][order] * TOTAL_WEIGHT).round().long().clamp_min(1)
    return DraftDistribution(ids, weights)


def _rekeyed(seed: int, base: int) -> int:
    """A seed for one round or one run of drafting: bases never repeat, so coins never do."""
    return bits(seed, Purpose.DERIVE, base, 0)


def draw(distribution: DraftDistribution, seed: int, base: int, position: int) -> int:
    """The token that the drafter draws; `base` is where its present run of drafting began."""
    race = exponentials(
        _rekeyed(seed, base), Purpose.DRAFT, position, _offsets(distribution.token_ids)
    )
    return int(distribution.token_ids[int((race / distribution.weights).argmin())])


def _offsets(token_ids: Tensor) -> Tensor:
    return (token_ids + 1) * token_offsets(1, token_ids.device)


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """The first `num_accepted` draft tokens stand, then comes `next_token_id`."""

    num_accepted: int
    next_token_id: int


def verify_block(
    target_probs: Tensor,  # float64 [num_draft_tokens + 1, vocab_size]: row i follows token i - 1
    draft_token_ids: Sequence[int],
    distributions: Sequence[DraftDistribution],  # one per draft token
    seed: int,
    base: int,
) -> BlockVerdict:
    """Block verification; an empty block is plain decoding. `base`: position of the first token."""
    round_seed = _rekeyed(seed, base)
    weights = prefix_weights(target_probs, draft_token_ids, distributions)
    num_accepted = 0
    for index, threshold in enumerate(thresholds(target_probs, weights, distributions), start=1):
        # Not the first failure but the last success decides; strict, so that a threshold of 0
        # never accepts.
        if uniform(round_seed, Purpose.ACCEPT, base + index - 1) < threshold:
            num_accepted = index
    row = target_probs[num_accepted]
    if num_accepted < len(draft_token_ids):
        row = residual_distribution(row, weights[num_accepted], distributions[num_accepted])
    offsets = token_offsets(row.numel(), row.device)
    race = exponentials(round_seed, Purpose.RESIDUAL, base + num_accepted, offsets)
    return BlockVerdict(num_accepted, int((race / row).argmin()))


def prefix_weights(
    target_probs: Tensor, draft_token_ids: Sequence[int], distributions: Sequence[DraftDistribution]
) -> list[float]:
    """P_0 to P_K: how much of the target's mass each prefix of the block carries, at most 1."""
    weights = [1.0]
    for row, token_id, distribution in zip(
        target_probs, draft_token_ids, distributions, strict=False
    ):
        q = _probability(distribution, token_id)
        weights.append(min(1.0, weights[-1] * float(row[token_id]) / q) if q > 0 else 0.0)
    return weights


def thresholds(
    target_probs: Tensor, weights: Sequence[float], distributions: Sequence[DraftDistribution]
) -> list[float]:
    """h_1 to h_K: the probability that a prefix of that length is a success."""
    count = len(distributions)
    found = []
    for index in range(1, count):
        residual = _residual_mass(target_probs[index], weights[index], distributions[index])
        denominator = residual + 1.0 - weights[index]
        found.append(residual / denominator if denominator > 0 else 1.0)
    return [*found, weights[count]] if count else []


def residual_distribution(
    target_probs: Tensor,  # float64 [vocab_size]
    weight: float,
    distribution: DraftDistribution,
) -> Tensor:  # float64 [vocab_size]
    """max(weight * p - q, 0), normalised; p itself where nothing but rounding is left."""
    residual = weight * target_probs
    ids = distribution.token_ids
    residual[ids] = (residual[ids] - distribution.probs).clamp_min(0.0)
    mass = residual.sum()
    return residual / mass if float(mass) > _NO_RESIDUAL else target_probs


def _residual_mass(target_probs: Tensor, weight: float, distribution: DraftDistribution) -> float:
    """Sum over y of max(weight * p(y) - q(y), 0), on q's support alone (research.md 2.2)."""
    overlap = torch.minimum(weight * target_probs[distribution.token_ids], distribution.probs)
    return max(weight * float(target_probs.sum()) - float(overlap.sum()), 0.0)


def _probability(distribution: DraftDistribution, token_id: int) -> float:
    index = int(torch.searchsorted(distribution.token_ids, token_id))
    if index == len(distribution.token_ids) or int(distribution.token_ids[index]) != token_id:
        return 0.0
    return float(distribution.probs[index])
