"""The scheduler: which rows of which sequences share the next forward. Pure.

Order of claims on the rows of a step: one row per decoding sequence, then prefill chunks in order
of arrival, then draft tokens. Speculation is the first to yield. Knows no tensors and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Want:
    """What one sequence could use: tokens without KV entries, and draft tokens at hand."""

    num_pending: int
    num_draft: int


@dataclass(frozen=True, slots=True)
class Share:
    """What it gets. `num_draft` is above 0 only when all its pending tokens are in the step."""

    num_tokens: int
    num_draft: int


def share_rows(
    wants: Sequence[Want], *, step_rows: int, prefill_rows: int, busy_prefill_rows: int
) -> list[Share]:
    """Divide a step's rows among sequences in order of arrival.

    A sequence with one pending token is decoding and always gets its row; others are in prefill
    and get at most `prefill_rows` each, beside decoding ones `busy_prefill_rows` in all, so that a
    long prompt does not hold up running streams. At least one of them always moves on.
    """
    num_decoding = sum(want.num_pending == 1 for want in wants)
    left = step_rows - num_decoding
    prefill_left = busy_prefill_rows if num_decoding else step_rows
    tokens = []
    prefilling = False
    for want in wants:
        if want.num_pending == 1:
            tokens.append(1)
            continue
        least = 0 if prefilling else min(want.num_pending, 16)
        count = max(min(want.num_pending, prefill_rows, prefill_left, left), least)
        prefilling = prefilling or count > 0
        tokens.append(count)
        left -= count
        prefill_left = max(prefill_left - count, 0)
    shares = []
    for want, count in zip(wants, tokens, strict=True):
        num_draft = min(want.num_draft, max(left, 0)) if count == want.num_pending else 0
        left -= num_draft
        shares.append(Share(count, num_draft))
    return shares
