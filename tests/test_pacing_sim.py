"""The production pacing under a virtual clock: never slower, and near the best fixed policy."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from pacing_grid import burst, constant, flapping, run
from simulation import PLAIN, Cell, simulate

SLOW_TEXT = constant(0.02)
STEADY = [
    Cell("good and near", constant(0.8), 1_000.0, 200.0, num_tokens=250),
    Cell("middling and near", constant(0.4), 1_000.0, 200.0, num_tokens=250),
    Cell("good and far", constant(0.95), 1_000.0, 25_000.0, num_tokens=250),
    Cell("useless", SLOW_TEXT, 1_000.0, 200.0, num_tokens=250),
]
CHANGING = [
    Cell("200 ms a block", constant(0.8), 200_000.0, at_once=True, num_tokens=200),
    Cell("asleep by turns", constant(0.9), is_asleep=flapping(2e6), num_tokens=400),
    Cell("useless on the same cores", SLOW_TEXT, 20_000.0, interference=0.3, num_tokens=200),
    Cell("a machine that slows", constant(0.6), slowdown=burst(2e6, 4e6, 2.0), num_tokens=250),
]


@pytest.mark.parametrize("cell", STEADY, ids=lambda cell: cell.name)
def test_a_steady_cell_is_near_the_best_fixed_policy(cell):
    outcome = run(cell, is_steady=True)
    # The whole grid's bound is 5 %; half an answer of 250 tokens is a noisier judge.
    assert outcome.regret < 0.08
    assert outcome.over_us <= 0.0


@pytest.mark.parametrize("cell", CHANGING, ids=lambda cell: cell.name)
def test_no_drafter_makes_an_answer_slower_than_its_budget(cell):
    outcome = run(cell, is_steady=False)
    assert outcome.over_us <= 0.0
    assert outcome.most_switches_per_s <= 1.0


def test_after_a_burst_speculation_is_back_within_three_seconds():
    """Fifteen more answers make rows dear; when they have gone, the first one's drafts are used."""
    quiet = Cell("burst", constant(0.9), 1_000.0, 200.0, num_tokens=400)
    cell = replace(
        quiet,
        row_us=9_000.0,
        base_us=20_000.0,
        num_sequences=16,
        arrivals_us=(0.0, *[2e6] * 15),
        lengths=(600, *[12] * 15),
    )
    result = simulate(cell)
    end_us = max(now for now, sequence, *_ in result.rounds if sequence)
    during = [n for now, sequence, n, _ in result.rounds if sequence == 0 and 2e6 < now < end_us]
    after = [n for now, sequence, n, _ in result.rounds if sequence == 0 and now > end_us + 3e6]
    before = [n for now, sequence, n, _ in result.rounds if sequence == 0 and 1e6 < now < 2e6]
    assert sum(before) / len(before) > 0.5
    assert sum(during) / len(during) < 0.5 * sum(before) / len(before)
    assert sum(after) / len(after) > 0.8 * sum(before) / len(before)


def test_what_is_simulated_plainly_is_plain():
    cell = replace(STEADY[0], noise=0.0)
    result = simulate(cell, PLAIN)
    assert len(result.rounds) == cell.num_tokens
    assert all(drafted == 0 for _, _, drafted, _ in result.rounds)
