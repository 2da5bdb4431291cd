"""The production pacing under a virtual clock: never slower, and near the best fixed policy."""

import itertools
import statistics
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
    """Fifteen long answers make rows dear until the first one's drafter is told to rest; when they
    have gone, as many of its draft tokens are accepted as before. That no choice of lengths changes
    the output is what test_lossless.py is for."""
    quiet = Cell("burst", constant(0.9), 1_000.0, 200.0, num_tokens=400)
    cell = replace(
        quiet,
        row_us=9_000.0,
        base_us=20_000.0,
        num_sequences=16,
        arrivals_us=(0.0, *[4e6] * 15),
        lengths=(900, *[200] * 15),
    )
    result = simulate(cell)
    end_us = max(now for now, sequence, *_ in result.rounds if sequence)
    first = [(now, accepted) for now, sequence, _, accepted in result.rounds if sequence == 0]
    before = [accepted for now, accepted in first if 3e6 < now < 4e6]
    late = [accepted for now, accepted in first if end_us - 5e6 < now < end_us]
    after = [accepted for now, accepted in first if now > end_us + 3e6]
    assert statistics.fmean(before) > 0.5
    assert statistics.fmean(late) < 0.2 * statistics.fmean(before)
    assert statistics.fmean(after) > 0.8 * statistics.fmean(before)
    switches = result.switched_us[0]
    assert [now for now in switches if 4e6 < now < end_us], "it was turned off mid-answer"
    assert all(b - a >= 1e6 for a, b in itertools.pairwise(switches))


def test_what_is_simulated_plainly_is_plain():
    cell = replace(STEADY[0], noise=0.0)
    result = simulate(cell, PLAIN)
    assert len(result.rounds) == cell.num_tokens
    assert all(drafted == 0 for _, _, drafted, _ in result.rounds)
