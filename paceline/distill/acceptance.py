"""How often a draft token would be accepted under the shared noise."""

import torch
from torch import Tensor


def match_probability(
    target_probs: Tensor,  # [..., num_ids]
    draft_probs: Tensor,  # [..., num_ids]
) -> Tensor:  # [...]
    """P(both choose the same id) = sum_y 1 / sum_z max(p_z / p_y, q_z / q_y).

    Daliri, Musco, Suresh (arXiv 2408.07978). An id that either side excludes matches never. Where
    the rows sum to less than 1, the rest is taken for ids that only one side knows: a lower bound.
    """
    p, q = target_probs.double(), draft_probs.double()
    possible = (p > 0) & (q > 0)
    # 1 is divided by what stands outside for an id that cannot match; the result is masked.
    p_y, q_y = p.where(possible, torch.ones(())), q.where(possible, torch.ones(()))
    ratios = torch.maximum(p.unsqueeze(-2) / p_y.unsqueeze(-1), q.unsqueeze(-2) / q_y.unsqueeze(-1))
    unknown = (1.0 - p.sum(-1, keepdim=True)).clamp(min=0.0) / p_y
    unknown = unknown + (1.0 - q.sum(-1, keepdim=True)).clamp(min=0.0) / q_y
    matches = 1.0 / (ratios.sum(-1) + unknown)
    return matches.where(possible, torch.zeros((), dtype=matches.dtype)).sum(-1)
