"""How far a student's distribution is from the target's, whose likeliest ids alone are kept."""

import torch
from torch import Tensor

# Of the student's probability for all other ids: keeps its logarithm finite.
_LEAST = 1e-6


def divergence(
    draft_logits: Tensor,  # [num_rows, num_ids], of the draft vocabulary
    columns: Tensor,  # int64 [num_rows, num_top]: the target's ids there, -1 for nowhere
    logprobs: Tensor,  # [num_rows, num_top], the target's
) -> tuple[Tensor, Tensor]:
    """(KL sum, weight sum) over rows: their quotient is the mean KL of the target from the student.

    The ids that were not kept count as one. Those kept but outside the draft vocabulary cannot be
    proposed: they are left out, and a row weighs what is left of the target's probability.
    """
    is_inside = columns >= 0
    draft = torch.log_softmax(draft_logits.float(), -1)
    q_log = draft.gather(-1, columns.clamp(min=0))
    p_log = logprobs.float()
    p = p_log.exp() * is_inside
    p_rest = (1.0 - p_log.exp().sum(-1)).clamp(min=0.0)
    q_rest = (1.0 - (q_log.exp() * is_inside).sum(-1)).clamp(min=_LEAST)
    weight = p.sum(-1) + p_rest
    kept = torch.where(is_inside, p * (p_log - q_log), torch.zeros_like(p)).sum(-1)
    rest = torch.special.xlogy(p_rest, p_rest) - p_rest * q_rest.log()
    # Of the distribution that is left, normalised, times its weight.
    return (kept + rest - torch.special.xlogy(weight, weight)).sum(), weight.sum()
