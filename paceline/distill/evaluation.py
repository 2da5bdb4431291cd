"""What a student's proposals would be worth: measured on answers it has not learnt from."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distill.acceptance import match_probability
from paceline.distill.examples import Batch, Example, collate
from paceline.distill.losses import divergence
from paceline.distill.student import Student
from paceline.noise import Purpose
from paceline.races import exponentials, token_offsets


@dataclass(frozen=True, slots=True)
class Measured:
    """As in `curve.Point`. Rates are over tokens: sums are pooled."""

    held_out_loss: float
    match_t0: float
    match_t1: float
    expected_t1: float


@torch.no_grad()
def evaluate(
    student: Student,
    examples: Sequence[Example],
    *,
    batch_size: int,
    device: str,
    precision: AbstractContextManager[None],
) -> Measured:
    """A rate without tokens to measure it on is 0."""
    offsets = token_offsets(int(student.token_ids[-1]) + 1)[student.token_ids]
    loss = weight = expected = 0.0
    matches = {True: 0, False: 0}  # by whether the temperature is 0
    totals = {True: 0, False: 0}
    for start in range(0, len(examples), batch_size):
        part = examples[start : start + batch_size]
        batch = collate(part, device)
        with precision:
            logits = student.logits(batch.input_ids, batch.rows).float()
        kl, rows = divergence(logits, batch.columns, batch.logprobs)
        loss, weight = loss + float(kl), weight + float(rows)
        likelihoods = _expected(logits, batch).cpu()
        logits = logits.cpu()
        end = 0
        for example in part:
            start_row, end = end, end + len(example.output)
            is_greedy = example.temperature == 0.0
            proposed = _proposals(example, logits[start_row:end], student.token_ids, offsets)
            matches[is_greedy] += int((proposed == torch.tensor(example.output)).sum())
            totals[is_greedy] += len(example.output)
            if not is_greedy:
                expected += float(likelihoods[start_row:end].sum())
    return Measured(
        held_out_loss=loss / max(weight, 1e-9),
        match_t0=matches[True] / max(1, totals[True]),
        match_t1=matches[False] / max(1, totals[False]),
        expected_t1=expected / max(1, totals[False]),
    )


def _proposals(
    example: Example,
    logits: Tensor,  # [len(output), num_ids]
    token_ids: Tensor,
    offsets: Tensor,  # of token_offsets, [num_ids]
) -> Tensor:  # int64 [len(output)]
    """What the drafter would propose behind each of the target's own tokens."""
    if example.temperature == 0.0:
        return token_ids[logits.argmax(-1)]
    winners = []
    for index, row in enumerate(logits):
        noise = exponentials(example.seed, Purpose.CHOOSE, example.position + index, offsets)
        winners.append(int((row / example.temperature - noise.log_()).argmax()))
    return token_ids[torch.tensor(winners)]


def _expected(logits: Tensor, batch: Batch) -> Tensor:  # [num_rows]
    """A lower bound of the chance of a match at temperature 1."""
    draft = torch.log_softmax(logits, -1).gather(-1, batch.columns.clamp(min=0)).exp()
    return match_probability(batch.logprobs.exp(), draft * (batch.columns >= 0))
