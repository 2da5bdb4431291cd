"""The learning rate over a training run, and the order of its examples: pure functions."""

import math
import random
from collections.abc import Iterator, Sequence

_WARM_UP = 0.05
_FLOOR = 0.05
# Examples of like length share a batch; within a window, so that the order stays random.
_WINDOW = 16


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up, then a cosine to 5 % of the peak. progress: from 0 to 1."""
    if progress < _WARM_UP:
        return peak * (progress + 0.1 * _WARM_UP) / (1.1 * _WARM_UP)
    fraction = min(1.0, (progress - _WARM_UP) / (1.0 - _WARM_UP))
    return peak * (_FLOOR + (1.0 - _FLOOR) * 0.5 * (1.0 + math.cos(math.pi * fraction)))


def batches(lengths: Sequence[int], size: int, seed: int, start: int = 0) -> Iterator[list[int]]:
    """Indices of examples, batch by batch without end, from batch `start` on.

    Batch number n is the same whatever `start`: a resumed run sees what it would have seen.
    """
    per_epoch = -(-len(lengths) // size)
    epoch, skipped = divmod(start, per_epoch)
    while True:
        yield from _epoch(lengths, size, random.Random(f"{seed} {epoch}"))[skipped:]
        epoch, skipped = epoch + 1, 0


def _epoch(lengths: Sequence[int], size: int, rng: random.Random) -> list[list[int]]:
    order = list(range(len(lengths)))
    rng.shuffle(order)
    made: list[list[int]] = []
    for start in range(0, len(order), size * _WINDOW):
        window = sorted(order[start : start + size * _WINDOW], key=lambda i: (lengths[i], i))
        made += [window[i : i + size] for i in range(0, len(window), size)]
    rng.shuffle(made)
    return made
