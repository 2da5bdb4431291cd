"""What a student learns from: answers as tensors over the draft vocabulary, in padded batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distill.corpus import Record


@dataclass(frozen=True, eq=False, slots=True)
class Example:
    """One answer behind its prompt, the prompt's beginning cut off where it is too long."""

    input_ids: list[int]
    # The row of `input_ids` whose logits the first kept token of the answer is chosen from.
    first: int
    output: list[int]
    columns: Tensor  # int64 [len(output), num_top]: of the draft vocabulary, -1 for outside
    logprobs: Tensor  # [len(output), num_top]
    temperature: float
    seed: int
    # Of the first token in the sequence that the target answered.
    position: int


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Examples padded on the right: a causal model never sees the padding."""

    input_ids: Tensor  # int64 [num_examples, num_positions]
    rows: Tensor  # int64 [num_rows], of the flattened positions
    columns: Tensor  # int64 [num_rows, num_top]
    logprobs: Tensor  # [num_rows, num_top]


def column_of(token_ids: Sequence[int], vocab_size: int) -> Tensor:
    """int64 [vocab_size]: where an id stands in the draft vocabulary, -1 for nowhere."""
    columns = torch.full((vocab_size,), -1, dtype=torch.int64)
    columns[torch.tensor(list(token_ids))] = torch.arange(len(token_ids))
    return columns


def make_example(record: Record, columns: Tensor, max_length: int) -> Example:
    """max_length: of the input. Answers are shorter than that."""
    sequence = [*record.prompt, *record.output[:-1]]
    cut = max(0, len(sequence) - max_length)
    first = len(record.prompt) - 1 - cut
    assert first >= 0
    return Example(
        input_ids=sequence[cut:],
        first=first,
        output=record.output,
        columns=columns[record.top_ids.long()],
        logprobs=record.top_logprobs,
        temperature=record.temperature,
        seed=record.seed,
        position=len(record.prompt),
    )


def collate(examples: Sequence[Example], device: str) -> Batch:
    width = max(len(example.input_ids) for example in examples)
    padded = [e.input_ids + [0] * (width - len(e.input_ids)) for e in examples]
    rows = [
        torch.arange(len(e.output)) + (index * width + e.first) for index, e in enumerate(examples)
    ]
    return Batch(
        input_ids=torch.tensor(padded).to(device),
        rows=torch.cat(rows).to(device),
        columns=torch.cat([e.columns for e in examples]).to(device),
        logprobs=torch.cat([e.logprobs for e in examples]).float().to(device),
    )
