"""The statistics behind `paceline certify`: against scipy, and against samples of known laws."""

import random
from collections import Counter

import pytest
from scipy import stats

from paceline.certify.statistics import (
    MIN_EXPECTED,
    chi_square_survival,
    g_test,
    mean_test,
    pooled,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 26, 63, 200])
def test_the_survival_function_is_scipys(freedom: int):
    for quantile in (1e-300, 1e-12, 1e-4, 0.01, 0.3, 0.5, 0.9, 0.9999):
        value = float(stats.chi2.isf(quantile, freedom))
        assert chi_square_survival(value, freedom) == pytest.approx(quantile, rel=1e-8)
    assert chi_square_survival(0.0, freedom) == 1.0
    assert chi_square_survival(-1e-15, freedom) == 1.0
    assert chi_square_survival(1e5, freedom) == 0.0


def williams(table: list[list[int]]) -> float:
    """The factor by which the correction makes G smaller (Sokal and Rohlf, Biometry, 17.4)."""
    rows = [sum(row) for row in table]
    columns = [sum(column) for column in zip(*table, strict=True)]
    n = sum(rows)
    sums = (n * sum(1 / r for r in rows) - 1) * (n * sum(1 / c for c in columns) - 1)
    return 1 + sums / (6 * n * (len(rows) - 1) * (len(columns) - 1))


def test_g_and_its_p_value_are_scipys_after_the_correction():
    table = [[40, 25, 30, 5], [55, 20, 12, 13]]
    samples = [[c for c, count in enumerate(row) for _ in range(count)] for row in table]
    found = g_test(*samples)
    g, _, freedom, _ = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood")
    assert found.num_cells == 4
    assert found.p_value == pytest.approx(stats.chi2.sf(g / williams(table), freedom), rel=1e-10)


def test_samples_of_different_sizes_and_absent_cells_are_compared():
    found = g_test(["a"] * 50 + ["b"] * 50, ["a"] * 300)
    table = [[50, 50], [300, 0]]
    g, _, freedom, _ = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood")
    assert found.p_value == pytest.approx(stats.chi2.sf(g / williams(table), freedom), rel=1e-8)
    assert found.p_value < 1e-30


def test_no_cell_expects_few_and_nothing_is_lost():
    rng = random.Random(0)
    for _ in range(200):
        sizes = rng.randrange(5, 400), rng.randrange(5, 400)
        first, second = (
            Counter(int(rng.paretovariate(0.7)) for _ in range(size)) for size in sizes
        )
        cells = pooled(first, second)
        assert tuple(map(sum, zip(*cells, strict=True))) == sizes
        share = min(sizes) / sum(sizes)
        assert len(cells) == 1 or all(sum(cell) * share >= MIN_EXPECTED for cell in cells)


def test_samples_without_variety_compare_nothing():
    assert g_test([1] * 50, [1] * 50).num_cells == 1
    with pytest.raises(ValueError, match="empty"):
        g_test([], [1])


def test_the_test_of_means_is_scipys_for_large_samples():
    rng = random.Random(3)
    first = [rng.randrange(5) for _ in range(300)]
    second = [rng.randrange(5) + (rng.random() < 0.2) for _ in range(400)]
    welch = stats.ttest_ind(first, second, equal_var=False)
    assert mean_test(first, second) == pytest.approx(2 * stats.norm.sf(abs(welch.statistic)))
    assert mean_test(first, second) == pytest.approx(welch.pvalue, rel=0.05)
    assert mean_test([1, 1, 1], [1, 1, 1]) == 1.0
    assert mean_test([1, 1, 1], [2, 2, 2]) == 0.0


def test_equal_laws_are_rarely_told_apart_and_p_is_spread_evenly():
    rng = random.Random(7)
    weights = [0.4, 0.3, 0.15, 0.1, 0.03, 0.01, 0.005, 0.005]
    values = [
        g_test(rng.choices(range(8), weights, k=150), rng.choices(range(8), weights, k=150)).p_value
        for _ in range(3000)
    ]
    assert min(values) > 1e-5
    assert sum(value < 0.05 for value in values) / 3000 == pytest.approx(0.05, abs=0.015)
    assert sum(value < 0.5 for value in values) / 3000 == pytest.approx(0.5, abs=0.05)


def test_laws_that_differ_as_a_skipped_residual_makes_them_are_told_apart():
    """One draft token x, certain; after a rejection sampling from p instead of p without x."""
    rng = random.Random(8)
    target = [0.5, 0.3, 0.2]
    biased = [0.5 + 0.5 * 0.5, 0.5 * 0.3, 0.5 * 0.2]
    found = g_test(rng.choices("xyz", target, k=300), rng.choices("xyz", biased, k=300))
    assert found.p_value < 1e-6
