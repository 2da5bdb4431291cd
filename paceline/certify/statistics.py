"""Whether two samples come from one distribution: by their counts, or by their means. Pure.

Both know the law of their statistic for large samples only, so rare things are not judged alone:
the G-test pools cells of few, and means are for what happens MIN_OCCURRENCES times at least.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

MIN_EXPECTED = 5.0
# Occurrences in both samples together, from which on their means may be compared.
MIN_OCCURRENCES = 20


@dataclass(frozen=True, slots=True)
class GTest:
    """Its p-value, and the cells that were compared after pooling; one cell compares nothing."""

    p_value: float
    num_cells: int


def g_test(first: Sequence[Hashable], second: Sequence[Hashable]) -> GTest:
    """How likely samples of one distribution differ as much as these, with Williams' correction.

    Raises ValueError when a sample is empty.
    """
    if not first or not second:
        raise ValueError("an empty sample compares with nothing")
    cells = pooled(Counter(first), Counter(second))
    if len(cells) == 1:
        return GTest(1.0, 1)
    rows = [sum(cell[0] for cell in cells), sum(cell[1] for cell in cells)]
    total = sum(rows)
    g = 2.0 * sum(
        observed * math.log(observed * total / (row * sum(cell)))
        for cell in cells
        for observed, row in zip(cell, rows, strict=True)
        if observed
    )
    freedom = len(cells) - 1
    spread_of_rows = sum(total / row for row in rows) - 1.0
    spread_of_cells = sum(total / sum(cell) for cell in cells) - 1.0
    correction = 1.0 + spread_of_rows * spread_of_cells / (6.0 * total * freedom)
    return GTest(chi_square_survival(g / correction, freedom), len(cells))


def mean_test(first: Sequence[int], second: Sequence[int]) -> float:
    """How likely samples of one distribution have means that differ as much: a p-value.

    The numbers count occurrences, at least two numbers on each side.
    """
    error = math.sqrt(variance(first) / len(first) + variance(second) / len(second))
    difference = abs(fmean(first) - fmean(second))
    if error == 0.0:
        return 0.0 if difference else 1.0
    return math.erfc(difference / error / math.sqrt(2.0))


def pooled(first: Mapping[Hashable, int], second: Mapping[Hashable, int]) -> list[tuple[int, int]]:
    """Counts of each cell in both samples, rare cells together, so that none expects few.

    The rarest cells are pooled first: which cells are does not depend on which sample they are in.
    """
    num_first, num_second = sum(first.values()), sum(second.values())
    # The smaller sample expects the fewer.
    share = min(num_first, num_second) / (num_first + num_second)
    counts = [(first.get(key, 0), second.get(key, 0)) for key in first.keys() | second.keys()]
    counts.sort(key=sum)
    rest = (0, 0)
    while counts and (
        sum(counts[0]) * share < MIN_EXPECTED or 0 < sum(rest) * share < MIN_EXPECTED
    ):
        cell = counts.pop(0)
        rest = (rest[0] + cell[0], rest[1] + cell[1])
    return [rest, *counts] if sum(rest) else counts


def chi_square_survival(value: float, freedom: int) -> float:
    """P(a chi-square number with `freedom` degrees, at least 1, exceeds `value`).

    The regularised incomplete gamma function at half-integers is a finite sum:
    Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1), from Q(1/2, x) = erfc(sqrt(x)), Q(1, x) = e^-x.
    """
    x = max(value, 0.0) / 2.0
    if x == 0.0:
        return 1.0
    a = 1.0 if freedom % 2 == 0 else 0.5
    tail = math.exp(-x) if a == 1.0 else math.erfc(math.sqrt(x))
    while a < freedom / 2.0:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1.0))
        a += 1.0
    return min(tail, 1.0)
