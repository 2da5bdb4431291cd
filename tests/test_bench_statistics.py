"""The figures of `paceline bench` against answers that are known beforehand. Pure."""

import dataclasses
import random

import pytest
from bench_records import ALONE, CATEGORIES, DRAFTED, ROUND_STEPS, answer, records

from paceline.bench import economics, verdict
from paceline.bench.analysis import analyse
from paceline.bench.economics import RoundCost
from paceline.bench.plan import Plan, Question
from paceline.bench.result import ALL
from paceline.bench.sample import Arm, Load, LoadKind, Trial
from paceline.bench.statistics import MIN_UNITS, Cost, Ratio, fit_line, quantile, speed_up
from paceline.bench.verdict import Finding, finding
from paceline.events import ChatMessage
from paceline.params import Speculation
from paceline.rounds import TokenSource


def plan(**changes: object) -> Plan:
    questions = [
        Question((ChatMessage("user", f"{name} {number}"),), name)
        for name in ("coding", "qa")
        for number in range(6)
    ]
    return dataclasses.replace(Plan(questions, (0.0, 0.8), (ALONE,)), **changes)


# Statistics


def test_a_quantile_lies_between_the_nearest_ranks():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([10.0, 20.0], 0.95) == pytest.approx(19.5)
    assert quantile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_speed_up_is_a_ratio_of_sums_and_not_a_mean_of_ratios():
    units = [Cost(100.0, 10, 50.0, 10), Cost(900.0, 10, 900.0, 10)]
    ratio = speed_up(units)
    assert ratio == Ratio(pytest.approx(1000 / 950))
    assert speed_up([Cost(100.0, 10, 0.0, 0)]) is None
    assert speed_up([]) is None


def test_the_interval_holds_the_ratio_and_is_the_same_every_time():
    units = [Cost(100.0, 10, 40.0 + 10 * index, 10) for index in range(8)]
    ratio = speed_up(units)
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    assert ratio.value == pytest.approx(800 / 600)
    assert ratio.low < ratio.value < ratio.high
    assert ratio == speed_up(units)
    # Prompts alike leave no doubt; few of them allow no statement at all.
    alike = speed_up([Cost(100.0, 10, 50.0, 10)] * MIN_UNITS)
    assert alike == Ratio(2.0, 2.0, 2.0)
    assert speed_up([Cost(100.0, 10, 50.0, 10)] * (MIN_UNITS - 1)) == Ratio(2.0)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says():
    # 60 runs of 12 prompts whose true ratio is 1.25: at 95 %, 3 misses are expected.
    draws = random.Random(1)
    covered = 0
    for _ in range(60):
        ratio = speed_up([Cost(100.0, 10, draws.uniform(56.0, 104.0), 10) for _ in range(12)])
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        covered += ratio.low <= 1.25 <= ratio.high
    assert covered >= 50


def test_a_line_is_fitted_and_never_falls():
    assert fit_line([(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]) == pytest.approx((1.0, 2.0))
    assert fit_line([(1.0, 3.0), (2.0, 1.0)]) == (2.0, 0.0)
    assert fit_line([(4.0, 3.0), (4.0, 1.0)]) == (2.0, 0.0)


# Economics


def test_expected_length_is_the_formula_of_the_papers():
    assert economics.expected_length(0.5, {2: 1}) == pytest.approx(1.75)
    assert economics.expected_length(0.8, {4: 3}) == pytest.approx((1 - 0.8**5) / 0.2)
    assert economics.expected_length(1.0, {2: 1, 4: 1}) == 4.0
    assert economics.expected_length(0.0, {7: 1}) == 1.0


def test_break_even_is_where_a_round_earns_its_time():
    # One draft token: 1 + a tokens, so a round of 1.3 steps needs a = 0.3.
    assert economics.break_even(1.3, {1: 5}) == pytest.approx(0.3, abs=1e-6)
    assert economics.break_even(1.0, {4: 1}) == pytest.approx(0.0, abs=1e-6)
    assert economics.break_even(2.1, {1: 1}) is None


def test_the_best_length_is_where_one_more_token_no_longer_pays():
    # Survival 0.8, 0.64, 0.512 ... at 0.2 steps a token: K = 3 is best, by hand.
    cost = RoundCost(base=1.0, per_token=0.2, undrafted=1.0)
    gains = [
        sum(0.8**i for i in range(length + 1)) / (1.0 + 0.2 * length) for length in range(1, 9)
    ]
    best = economics.best_length([100] * 8, [80] * 8, cost)
    assert best is not None
    assert best.num_draft_tokens == gains.index(max(gains)) + 1
    assert best.gain == pytest.approx(max(gains))
    # Nothing accepted: no draft. Nothing tested often enough: nothing to say.
    assert economics.best_length([100], [0], cost) == economics.BestLength(0, 1.0)
    assert economics.best_length([3], [3], cost) is None


def test_a_predicted_gain_is_exact_where_its_assumptions_hold():
    # Every round drafts 1 token, accepted always, at the price of 1.5 steps: 2 tokens for 1.5.
    gain = economics.predicted_gain(
        acceptance=1.0,
        lengths={1: 1},
        drafted_share=1.0,
        cost=RoundCost(1.4, 0.1, 1.0),
        ttft_us=0.0,
        plain_step=10.0,
        num_tokens=101.0,
    )
    assert gain == pytest.approx(2 / 1.5)


# From samples to rows


def test_rows_hold_what_the_samples_were_made_from():
    result = analyse(records(prompts=8))
    assert [row.category for row in result.rows] == [*sorted(CATEGORIES), ALL]
    assert (result.num_pairs, result.num_identical) == (32, 32)
    for row in result.at(0.0):
        chance, source = CATEGORIES[row.category]
        assert row.totals.acceptance_rate == pytest.approx(chance, abs=0.1)
        assert row.economics is not None
        assert row.economics.drafted_round == pytest.approx(ROUND_STEPS, abs=0.05)
        assert row.economics.mean_draft_length == DRAFTED
        assert row.speed_up is not None
        assert row.economics.predicted == pytest.approx(row.speed_up.value, rel=0.1)
        assert set(verdict.shares(row)) <= {source}
    overall = result.overall(0.0)
    sums = [sum(row.totals.num_accepted for row in result.at(0.0)), overall.totals.num_accepted]
    assert sums[0] == sums[1]
    assert sum(overall.sources.values()) == overall.speculative.num_tokens
    assert overall.accepted_by_position == tuple(overall.totals.accepted_by_position)
    assert overall.tested_by_position[0] == overall.totals.num_drafted_rounds


def test_round_times_of_all_prompts_are_in_steps_of_their_own_category():
    """Slow steps of one category and many accepted tokens in another do not bend the sum."""
    samples = []
    for number in range(12):
        category, slowness = (("summarisation", 5.0), ("creative", 1.0))[number % 2]
        trial = Trial(number, category, 0.0, 0, ALONE, number)
        samples += [answer(trial, arm, num_tokens=96, slowness=slowness) for arm in Arm]
    overall = analyse(samples).overall(0.0)
    assert overall.economics is not None
    assert overall.economics.drafted_round == pytest.approx(ROUND_STEPS, abs=0.03)


def test_latencies_are_those_of_the_deliveries():
    trial = Trial(0, "qa", 0.0, 0, ALONE, 0)
    sample = answer(trial, Arm.PLAIN, num_tokens=3, ttft_us=7_000)
    gaps = [gap for gap, _ in sample.gaps_us()]
    assert sample.ttft_us == 7_000 and len(gaps) == 2
    assert sample.time_per_output_token_us == sum(gaps) / 2
    lone = answer(trial, Arm.PLAIN, num_tokens=1)
    assert lone.time_per_output_token_us is None and list(lone.gaps_us()) == []


def test_a_failed_request_is_counted_and_its_pair_left_out():
    samples = records(categories=("coding",), prompts=6)
    whole = analyse(samples)
    trial = samples[0].trial
    samples[0] = answer(trial, Arm.PLAIN, error="RESOURCE_EXHAUSTED")
    result = analyse(samples)
    assert result.errors == {(Arm.PLAIN, "RESOURCE_EXHAUSTED"): 1}
    assert result.num_pairs == whole.num_pairs - 1
    assert "1 plain RESOURCE_EXHAUSTED" in " ".join(verdict.trust(result))
    assert analyse([]).rows == () and analyse(samples[:1]).num_pairs == 0


def test_a_pair_that_differs_is_found_and_said():
    samples = records(categories=("qa",), prompts=5)
    samples[1] = answer(samples[1].trial, Arm.SPECULATIVE, token_offset=9)
    result = analyse(samples)
    assert not result.identical and result.num_identical == 4
    assert "1 of 5 pairs DIFFER" in " ".join(verdict.trust(result))


def test_a_closed_load_is_judged_by_its_throughput_and_an_open_one_by_its_latency():
    four, rate = Load(LoadKind.CLOSED, 4), Load(LoadKind.OPEN, 2.5)
    samples = []
    for load in (four, rate):
        for number in range(8):
            trial = Trial(number, "qa", 0.0, 0, load, number // 4)
            # Four at a time from the same moment: the block lasts as long as the slowest.
            plain = answer(trial, Arm.PLAIN, num_tokens=10)
            fast = dataclasses.replace(plain, arm=Arm.SPECULATIVE, duration_us=50_000)
            samples += [dataclasses.replace(plain, duration_us=100_000), fast]
    closed, opened = analyse(samples).loads
    assert closed.plain.tokens_per_s == pytest.approx(4 * 10 / 0.1)
    assert closed.speculative.tokens_per_s == pytest.approx(4 * 10 / 0.05)
    assert closed.speed_up == Ratio(2.0) and opened.speed_up == Ratio(2.0)
    assert (closed.load.label, opened.load.label) == ("4 at a time", "2.5 per second")


# Verdicts


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (Ratio(1.6, 1.4, 1.9), Finding.PAYS),
        (Ratio(1.6, 1.0, 2.2), Finding.NOT_SHOWN),
        (Ratio(1.6), Finding.NOT_SHOWN),
        (Ratio(0.9, 0.85, 0.95), Finding.COSTS),
        (Ratio(0.9, 0.8, 1.01), Finding.NOT_SHOWN),
        (None, Finding.NOT_SHOWN),
    ],
)
def test_pays_is_said_only_when_the_whole_interval_says_so(ratio: Ratio | None, expected: Finding):
    assert finding(ratio) is expected


def test_the_summary_gives_every_category_its_advice():
    text = verdict.summary(analyse(records(prompts=8)), 0.0)
    assert text.startswith("Speculation pays for coding (")
    assert "lookup is enough for summarisation (" in text
    assert "leave it off for creative (" in text
    few = verdict.summary(analyse(records(categories=("coding",), prompts=2)), 0.0)
    assert few.startswith("Too few prompts to judge coding (")


def test_a_difference_without_a_draft_is_no_finding():
    samples = []
    for number in range(6):
        plain = answer(Trial(number, "qa", 0.0, 0, ALONE, number), Arm.PLAIN)
        # As fast again, but every round was plain.
        fast = dataclasses.replace(plain, arm=Arm.SPECULATIVE, duration_us=plain.duration_us // 2)
        samples += [plain, fast]
    result = analyse(samples)
    assert verdict.summary(result, 0.0) == "No difference shown for qa (2.00x)."
    assert "nothing was drafted" in verdict.category_verdict(result.overall(0.0))


def test_past_answers_are_named_as_what_flatters_a_benchmark():
    samples = records(categories=("qa",), prompts=5)
    delivery = dataclasses.replace(
        samples[1].deliveries[0], sources=(TokenSource.PAST_ANSWERS,) * 2
    )
    samples[1] = dataclasses.replace(samples[1], deliveries=(delivery, *samples[1].deliveries[1:]))
    assert any("past answers" in line for line in verdict.trust(analyse(samples)))


# The plan


def test_both_arms_meet_every_trial_once_and_take_turns_in_going_first():
    blocks = list(plan(pairs=2).blocks())
    assert len(blocks) == 12 * 2 * 2 and all(len(block.trials) == 1 for block in blocks)
    assert len({block.trials for block in blocks}) == len(blocks)
    for temperature in (0.0, 0.8):
        for pair in (0, 1):
            first = [
                block.arms[0]
                for block in blocks
                if (block.trials[0].temperature, block.trials[0].pair) == (temperature, pair)
            ]
            assert first.count(Arm.PLAIN) == first.count(Arm.SPECULATIVE) == 6
    assert plan(pairs=2).num_answers == 2 * len(blocks)
    assert blocks == list(plan(pairs=2).blocks())


def test_a_block_of_a_load_is_short_and_mixed_and_an_open_one_has_one_arrival_trace():
    loads = (Load(LoadKind.CLOSED, 2), Load(LoadKind.OPEN, 4.0))
    blocks = list(plan(loads=loads, temperatures=(0.0,)).blocks())
    closed = [block for block in blocks if block.load == loads[0]]
    assert [len(block.trials) for block in closed] == [6, 6]
    assert {trial.category for trial in closed[0].trials} == {"coding", "qa"}
    (opened,) = [block for block in blocks if block.load == loads[1]]
    arrivals = opened.arrivals_s
    assert len(arrivals) == 12 and list(arrivals) == sorted(arrivals) and arrivals[0] == 0.0
    assert arrivals[-1] == pytest.approx(11 / 4.0, rel=0.6)


def test_the_arms_of_a_pair_differ_in_speculation_alone():
    made = plan(seed=2**64 - 1)
    trial = dataclasses.replace(next(made.blocks()).trials[0], pair=1)
    plain, fast = (made.request(trial, arm) for arm in Arm)
    assert plain.draft.speculation is Speculation.OFF
    assert dataclasses.replace(plain, draft=fast.draft) == fast
    assert plain.seed == 0
    assert made.warming(trial).params.max_tokens == 1
