"""The draft vocabulary: the ids that a target is likeliest to say."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paceline.distill.corpus import Record


def expected_counts(records: Iterable[Record], vocab_size: int) -> Tensor:
    """How often the target would say each id at the positions of its answers: float64 [vocab_size].

    Sums of probabilities, which tell more than counts of the tokens that happened to be sampled.
    """
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for record in records:
        probs = record.top_logprobs.double().exp().flatten()
        counts.index_add_(0, record.top_ids.flatten().long(), probs)
    return counts


def ranked(counts: Tensor, size: int, always: Iterable[int] = ()) -> list[int]:
    """The `size` likeliest ids, ascending, `always` among them.

    Equal counts: the lowest ids, which are the earliest merges of most tokenizers.
    """
    forced = set(always)
    order = torch.sort(counts, descending=True, stable=True).indices.tolist()
    rest = [token_id for token_id in order if token_id not in forced]
    return sorted([*forced, *rest[: max(0, size - len(forced))]])


def coverage(records: Sequence[Record], token_ids: Iterable[int]) -> float:
    """Share of the target's tokens that are in the vocabulary."""
    known = set(token_ids)
    said = [token_id for record in records for token_id in record.output]
    return sum(token_id in known for token_id in said) / max(1, len(said))
