"""Exact numerics: find the shapes in which a token's logits never depend on what shares a forward.

bf16 and fp32 kernels choose their blocking by the number of rows, so bits may change with batch
mates, block lengths or prefill chunks (design.md 4). `make_exact` searches the cheapest canonical
shapes for this model, dtype, thread count and machine, and proves them end to end, or refuses.
What it cannot know: a difference so rare that its random inputs never show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.model.cache import BLOCK_TOKENS
from paceline.model.engine import LanguageModel, Rows
from paceline.model.gathered import Shape
from paceline.model.linear import CanonicalLinear

_ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128)
_MAXIMA = (128, 64, 32, 16)
_MINIMA = (1, 2, 4, 8, 16, 32)
_TAIL = 12
_SHAPES = (
    Shape(key_multiple=32, min_query_rows=2),
    Shape(key_multiple=512, min_query_rows=2),
    Shape(key_multiple=512, min_query_rows=16),
    Shape(key_multiple=512, min_query_rows=32),
)


class NotExact(RuntimeError):
    """No canonical shape keeps this model's bits on this machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the self-check found."""

    linear_min_rows: int
    linear_max_rows: int
    attention: Shape
    num_comparisons: int


def make_exact(model: LanguageModel) -> Finding:
    """Sets the model's canonical shapes and marks it exact. Raises NotExact."""
    minimum, maximum = _row_range(model.linears, model.dtype)
    model.linear_rows.minimum, model.linear_rows.maximum = minimum, maximum
    for shape in _SHAPES:
        model.attention.shape = shape
        compared = _end_to_end(model)
        if compared:
            finding = Finding(minimum, maximum, shape, compared)
            adopt(model, finding)
            return finding
    raise NotExact(
        "the self-check found no shape in which this model's logits are independent of the batch; "
        "run with numerics fast, which promises the distribution only"
    )


def adopt(model: LanguageModel, finding: Finding) -> None:
    """Make a model exact by what a self-check found before."""
    model.linear_rows.minimum = finding.linear_min_rows
    model.linear_rows.maximum = finding.linear_max_rows
    model.attention.shape = finding.attention
    model.numerics = "exact"


@torch.inference_mode()
def _row_range(linears: Sequence[CanonicalLinear], dtype: torch.dtype) -> tuple[int, int]:
    """The widest (minimum, maximum) of row counts in which every layer gives equal rows."""
    shapes = {(layer.in_features, layer.out_features): layer for layer in linears}
    generator = torch.Generator().manual_seed(0)
    maximum, minimum = _MAXIMA[0], _MINIMA[0]
    for (in_features, _), layer in shapes.items():
        x = torch.randn(_MAXIMA[0], in_features, generator=generator).to(dtype)
        outputs = {count: layer.call(x[:count]) for count in _ROW_COUNTS}
        while not _equal_rows(outputs, minimum, maximum):
            if minimum < _MINIMA[-1] and minimum < maximum // 2:
                minimum = _MINIMA[_MINIMA.index(minimum) + 1]
            elif maximum > _MAXIMA[-1]:
                maximum, minimum = _MAXIMA[_MAXIMA.index(maximum) + 1], _MINIMA[0]
            else:
                raise NotExact(
                    f"a linear layer of {in_features} inputs gives other bits for every row count"
                )
    return minimum, maximum


def _equal_rows(outputs: dict[int, Tensor], minimum: int, maximum: int) -> bool:
    reference = outputs[maximum]
    return all(
        torch.equal(rows, reference[:count])
        for count, rows in outputs.items()
        if minimum <= count <= maximum
    )


def _end_to_end(model: LanguageModel) -> int:
    """Number of logit rows that were equal in every way of computing them; 0 if any was not."""
    generator = torch.Generator().manual_seed(1)
    length = min(190, model.max_context - 1)
    cuts = (0, length // 3, length // 2)[: model.store.max_sequences]
    sequences = [
        torch.randint(model.vocab_size, (length - cut,), generator=generator).tolist()
        for cut in cuts
    ]
    # One token at a time, alone, after a prefill in one piece: plain decoding.
    plain = [_tail_logits(model, [sequence], length, [1] * _TAIL)[0] for sequence in sequences]
    compared = 0
    for way in ([_TAIL], [2, 3, 7], [9, 3]):
        together = _tail_logits(model, sequences, length // 5 + 1, way)
        for logits, reference in zip(together, plain, strict=True):
            if not torch.equal(logits, reference):
                return 0
            compared += len(reference)
    for sequence, reference in zip(sequences, plain, strict=True):
        branch = _branch_logits(model, sequence)
        if not torch.equal(branch, reference[: len(branch)]):
            return 0
        compared += len(branch)
    return compared


def _branch_logits(model: LanguageModel, sequence: Sequence[int]) -> Tensor:
    """Logits of the tail's first tokens as the side branch of a tree of draft tokens."""
    cache = model.new_cache()
    try:
        start = len(sequence) - _TAIL
        model.forward([Rows(cache, sequence[:start], 0)])
        # A side branch ends with the block in which it begins.
        count = min(_TAIL - 1, max(BLOCK_TOKENS - (start + 1) % BLOCK_TOKENS, 1))
        branch = sequence[start + 1 : start + 1 + count]
        decoy = (branch[0] + 1) % model.vocab_size
        parents = [-1, -1, *range(1, count)]
        rows = [Rows(cache, [sequence[start], decoy, *branch], count + 2, parents)]
        logits = model.forward(rows)
        return torch.cat((logits[:1], logits[2:]))
    finally:
        cache.free()


def _tail_logits(
    model: LanguageModel,
    sequences: Sequence[Sequence[int]],
    chunk: int,  # rows of a prefill forward
    way: Sequence[int],  # rows of each forward of the tail; they add up to _TAIL
) -> list[Tensor]:
    """Logits of each sequence's last _TAIL tokens, all sequences sharing the tail's forwards."""
    caches = [model.new_cache() for _ in sequences]
    try:
        for sequence, cache in zip(sequences, caches, strict=True):
            body = sequence[:-_TAIL]
            for start in range(0, len(body), chunk):
                model.forward([Rows(cache, body[start : start + chunk], 0)])
        parts: list[list[Tensor]] = [[] for _ in sequences]
        for size in way:
            rows = [
                Rows(cache, sequence[cache.length : cache.length + size], size)
                for sequence, cache in zip(sequences, caches, strict=True)
            ]
            for part, logits in zip(parts, torch.split(model.forward(rows), size), strict=True):
                part.append(logits)
        return [torch.cat(part) for part in parts]
    finally:
        for cache in caches:
            cache.free()
