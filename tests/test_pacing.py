"""Pacing: what each part of the rule does at its ends."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.params import SamplingParams, Speculation
from paceline.rounds import PlainReason, TokenSource
from paceline.sampling import SamplingState
from verifier_service.acceptance import Acceptance, Priors
from verifier_service.arrival import Arrival
from verifier_service.draft_clock import judge
from verifier_service.ledger import Ledger
from verifier_service.mailbox import Mailbox
from verifier_service.pacer import Pacer, View
from verifier_service.pacing import Mode, Pacing, RoundCost
from verifier_service.rule import Hand, Prospect, Stake, best_wait, plan_rows
from verifier_service.sequence import Request, VerifierSequence, plain_reason
from verifier_service.step_time import StepShape, StepTime
from verifier_service.tenants import REST, Tenants

MODEL = TokenSource.DRAFT_MODEL
LOOKUP = TokenSource.PROMPT_LOOKUP


def shape(rows: int, sequences: int = 1, *, drafting: bool = True) -> StepShape:
    return StepShape(rows, 100 * sequences, sequences, drafting)


def fitted(row_us: float, base_us: float = 20_000.0, sequences: int = 1) -> StepTime:
    fit, rng = StepTime(), random.Random(1)
    for _ in range(200):
        rows = sequences + rng.randrange(9)
        fit.add(shape(rows, sequences), base_us + row_us * rows)
    return fit


def exact(row_us: float) -> StepTime:
    fit = StepTime()
    fit._unit_us, fit._theta = 20_000.0, [1.0, row_us / 20_000, 0.0, 0.0, 0.0, 0.0]
    return fit


def test_step_time_finds_base_and_slope():
    fit = fitted(row_us=150.0)
    assert fit.row_us(4) == pytest.approx(150, rel=0.1)
    assert fit.predict(shape(8)) == pytest.approx(21_200, rel=0.01)
    assert fit.relative_error(shape(1)) < 0.05


def test_step_time_shrugs_off_a_hiccup_and_follows_a_change_of_pace():
    fit = fitted(row_us=150.0)
    fit.add(shape(1), 500_000.0)
    assert fit.predict(shape(1)) == pytest.approx(20_150, rel=0.05)
    for _ in range(8):
        fit.add(shape(5), 2 * 20_750.0)
    assert fit.predict(shape(1)) == pytest.approx(2 * 20_150, rel=0.1)


def test_step_time_tells_a_drafter_at_work_from_its_rows():
    fit, rng = StepTime(), random.Random(2)
    for number in range(300):
        drafting = number % 50 > 5
        rows = 1 + (rng.randrange(9) if drafting else 0)
        fit.add(shape(rows, drafting=drafting), 20_000 + 100 * rows + 4_000 * drafting)
    assert fit.drafting_us == pytest.approx(4_000, rel=0.15)


def test_what_is_not_observed_grows_uncertain():
    fit = fitted(row_us=150.0)
    before = fit.relative_error(shape(1))
    for _ in range(500):
        fit.add(shape(9), 21_350.0)
    assert fit.relative_error(shape(1)) > before


def test_free_rows_take_the_whole_draft_and_dear_rows_take_none():
    hand = [Hand([0.5**n for n in range(1, 9)])]
    assert plan_rows(hand, shape(1), exact(0.0), 64).num_draft == [8]
    assert plan_rows(hand, shape(1), exact(20_000.0), 64).num_draft == [0]
    assert plan_rows(hand, shape(1), exact(0.0), 3).num_draft == [3]


@given(
    st.lists(st.lists(st.floats(0.05, 0.99), min_size=1, max_size=4), min_size=1, max_size=3),
    st.floats(0, 8_000),
)
def test_the_plan_is_within_the_margin_of_the_best_of_all_plans(chances, row_us):
    """Exhaustively: no other choice of lengths is better by more than the margin."""
    survivals = []
    for chain in chances:
        alive, survival = 1.0, []
        for p in chain:
            alive *= p
            survival.append(alive)
        survivals.append(survival)
    fit = exact(row_us)
    hands = [Hand(survival) for survival in survivals]
    plain = StepShape(len(hands), 0, len(hands), True)

    def rate(lengths):
        tokens = sum(1 + sum(s[:n]) for s, n in zip(survivals, lengths, strict=True))
        return tokens / fit.predict(plain.with_rows(len(hands) + sum(lengths)))

    choices = [[]]
    for survival in survivals:
        choices = [[*c, n] for c in choices for n in range(len(survival) + 1)]
    plan = plan_rows(hands, plain, fit, 64)
    assert rate(plan.num_draft) >= max(map(rate, choices)) / 1.05 - 1e-12


def test_a_row_costs_all_sequences_of_a_step():
    """The same draft at the same price is worth its rows alone and not among sixteen."""
    draft = [0.4, 0.16, 0.064]
    alone = plan_rows([Hand(draft)], shape(1), fitted(3_000.0), 64)
    crowd = [Hand(draft)] + [Hand()] * 15
    among = plan_rows(crowd, shape(16, 16), fitted(3_000.0, sequences=16), 256)
    assert alone.num_draft[0] > 0
    assert sum(among.num_draft) == 0


def test_who_has_lost_its_budget_is_not_slowed_by_others():
    hands = [Hand([0.9] * 8), Hand(stake=Stake(0.0))]
    plan = plan_rows(hands, shape(2, 2), fitted(500.0, sequences=2), 64)
    assert plan.num_draft == [0, 0]
    # Nor by more than is left of it.
    hands = [Hand([0.9] * 8), Hand(stake=Stake(1_600.0))]
    plan = plan_rows(hands, shape(2, 2), fitted(500.0, sequences=2), 64)
    assert plan.num_draft == [3, 0]
    # Nor by more than a share of what it gains itself.
    hands = [Hand([0.9] * 8), Hand([0.3], Stake(0.0, share=0.3))]
    plan = plan_rows(hands, shape(2, 2), fitted(500.0, sequences=2), 64)
    assert plan.num_draft == [2, 1]
    assert plan.wish.num_draft == [8, 1]
    assert plan.wish.tokens == pytest.approx([7.2, 0.3])
    calm = plan_rows([hands[0], Hand()], shape(2, 2), fitted(500.0, sequences=2), 64)
    assert calm.num_draft == [8, 0]


def prospect(latency_us: float, pace_us: float, acceptance: float, num_in_step: int = 0):
    survival = [acceptance**n for n in range(1, 9)]
    arrivals = [latency_us + n * pace_us for n in range(8)]
    return Prospect(survival, arrivals, 1.0, num_in_step)


def test_waiting_pays_for_a_quick_drafter_only():
    fit = fitted(100.0)
    quick = best_wait([prospect(1_000, 500, 0.8)], shape(1), fit, 64, 100_000)
    assert 1_000 <= quick.wait_us <= 4_500
    assert quick.num_wanted[0] >= 4
    late = best_wait([prospect(60_000, 5_000, 0.5)], shape(1), fit, 64, 100_000)
    assert late.wait_us == 0.0
    assert best_wait([prospect(1_000, 500, 0.05)], shape(1), fit, 64, 100_000).wait_us == 0.0


def test_no_wait_for_what_comes_during_the_step_anyway():
    fit = fitted(100.0)
    assert best_wait([prospect(12_000, 2_000, 0.9)], shape(1), fit, 64, 100_000).wait_us > 0
    running_ahead = prospect(12_000, 2_000, 0.9, num_in_step=5)
    assert best_wait([running_ahead], shape(1), fit, 64, 100_000).wait_us == 0.0


def test_a_drafter_that_never_answers_is_soon_not_waited_for():
    arrival, waited_us = Arrival(), 0.0
    for _ in range(50):
        expected_us = arrival.expected_us(0, 1, 0.0)
        wait = best_wait(
            [Prospect([0.7], [expected_us], arrival.chance)], shape(1), fitted(100.0), 64, 60_000
        )
        if not wait.wait_us:
            break
        waited_us += wait.wait_us
        arrival.missed(wait.wait_us)
    assert wait.wait_us == 0.0
    assert waited_us < 60_000


def test_arrival_learns_latency_pace_and_how_often_there_is_anything():
    arrival = Arrival()
    for _ in range(30):
        arrival.answered(5_000.0, 2)
        arrival.followed(1_000.0, 1)
    assert arrival.expected_us(0, 4, 0.0) == pytest.approx(7_000, rel=0.05)
    assert arrival.expected_us(3, 4, 0.0) == pytest.approx(1_000, rel=0.05)
    assert arrival.num_within(9_000.0, 8) == 6
    for _ in range(30):
        arrival.answered(100.0, 0)
    assert arrival.hit_rate < 0.1
    assert Arrival().expected_us(1, 2, 0.0) == math.inf


def test_acceptance_is_by_position_and_source_and_others_learn_from_it():
    priors = Priors()
    acceptance = Acceptance(priors, "coding")
    for _ in range(60):
        acceptance.learn(MODEL, 3, 2)
        acceptance.learn(LOOKUP, 1, 0)
    [first, second, third] = acceptance.survival(3, MODEL)
    assert second > 0.8
    assert third < 0.3 * first
    assert acceptance.survival(1, LOOKUP)[0] < 0.1
    newcomer = Acceptance(priors, "coding")
    assert newcomer.survival(1, LOOKUP)[0] < 0.1
    assert Acceptance(priors, "qa").survival(1, LOOKUP)[0] > 0.5


def test_labels_of_clients_are_bounded():
    priors, tenants = Priors(), Tenants()
    for number in range(1_000):
        priors.counts(f"label {number}", MODEL)
        tenants.add(f"tenant {number}", draft_us=1, wait_us=0, num_drafted=1, num_accepted=0)
    assert len(priors._counts) == 64
    assert len(tenants.drafting) <= 257
    assert sum(sums.draft_us for sums in tenants.drafting.values()) == 1_000
    assert tenants.drafting[REST].num_drafted > 700


def test_late_tokens_are_judged_by_what_was_committed():
    assert judge([5, 6, 7, 8], [5, 6, 9]) == (3, 2)
    assert judge([5, 6], [5, 6, 9]) == (2, 2)
    assert judge([5], []) == (0, 0)


def test_a_gain_pays_for_one_budget_only():
    ledger = Ledger(budget_us=30_000, budget_share=0.0)
    ledger.add(-1_000_000, 0.0, 20_000)
    ledger.add(59_000, 0.0, 20_000)
    assert not ledger.is_spent
    ledger.add(2_000, 0.0, 20_000)
    assert ledger.is_spent
    assert ledger.total_us == -939_000


def test_a_drafter_with_dear_blocks_may_fail_now_and_then_once_it_has_gained():
    """Each round stakes 25 ms and wins twice that or nothing: two losses in a row are luck."""
    ledger = Ledger(budget_us=30_000, budget_share=0.0)
    for _ in range(30):
        ledger.add(-25_000, 0.0, 20_000, staked_us=25_000)
    for _ in range(4):
        ledger.add(25_000, 0.0, 20_000, staked_us=25_000)
    assert not ledger.is_spent
    ledger.add(40_000, 0.0, 20_000, staked_us=40_000)
    assert ledger.is_spent


def test_what_others_cost_is_not_a_sequence_s_own_debt():
    ledger = Ledger()
    ledger.add(0.0, 40_000, 20_000)
    assert ledger.left_us == 0.0
    assert not ledger.is_spent
    assert ledger.allowance_us == 0.0


def cost(accepted: int, *, tested: int = 1, rows_us: float = 500.0, drafting_us: float = 0.0):
    return RoundCost(MODEL, tested, accepted, accepted, 0.0, rows_us, drafting_us, 20_000.0)


def drive(pacing: Pacing, seconds: float, accepted: int, start_us: float, drafting_us: float = 0.0):
    """Rounds of 20 ms, whose draft tokens are accepted or not; the time at the end."""
    now_us = start_us
    while now_us < start_us + seconds * 1e6:
        now_us += 20_000.0
        used = pacing.drafts and pacing.usable(1) > 0
        busy_us = drafting_us if pacing.drafts else 0.0
        pacing.learn(cost(accepted if used else 0, tested=int(used), drafting_us=busy_us))
        pacing.consider(now_us, 5_000.0, drafting_us, 20_000.0)
    return now_us


def test_useless_speculation_is_given_up_and_looked_at_again():
    pacing = Pacing()
    now_us = drive(pacing, 10.0, 0, 0.0, drafting_us=2_000.0)
    assert not pacing.drafts or pacing.mode is Mode.PROBE
    ledger = pacing.ledger
    assert ledger.total_us <= 30_000 + 0.03 * ledger.elapsed_us
    drive(pacing, 3.0, 3, now_us)
    assert pacing.mode is Mode.ON


def test_a_burst_is_over_when_a_prospect_is_better_again():
    pacing = Pacing()
    now_us = 0.0
    for _ in range(300):
        now_us += 20_000.0
        pacing.learn(cost(0, tested=0, rows_us=0.0))
        pacing.consider(now_us, 0.0, 0.0, 20_000.0)
    assert pacing.mode is not Mode.ON
    assert pacing.reason is PlainReason.NOT_WORTH
    waited = 0
    while pacing.mode is not Mode.ON:
        now_us += 20_000.0
        waited += 1
        pacing.learn(cost(0, tested=0, rows_us=0.0))
        pacing.consider(now_us, 15_000.0, 0.0, 20_000.0)
    assert waited * 0.02 < 3.0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 40_000)), min_size=50, max_size=400))
def test_between_two_switches_lies_a_second(rounds):
    pacing, now_us, switched_us, seen = Pacing(), 0.0, [], 0
    for accepted, lost_us in rounds:
        now_us += 20_000.0
        pacing.learn(cost(accepted, tested=4, rows_us=lost_us))
        pacing.consider(now_us, lost_us, 100.0, 20_000.0)
        if pacing.num_switches > seen:
            seen = pacing.num_switches
            switched_us.append(now_us)
    assert all(b - a >= 1e6 for a, b in itertools.pairwise(switched_us))


def test_a_drafter_is_told_to_rest_and_how_far_to_run_ahead():
    pacer = Pacer()
    pacing = pacer.pacing("")
    for _ in range(50):
        pacing.acceptance.learn(MODEL, 8, 8)
    assert pacer.credit(pacing, 8, 0.0) == 16
    for _ in range(50):
        pacing.acceptance.learn(MODEL, 1, 0)
    assert pacer.credit(pacing, 8, 0.0) < 8
    pacing.mode = Mode.OFF
    assert pacer.credit(pacing, 8, 0.0) == 0


def test_a_fixed_length_is_left_alone():
    pacer = Pacer()
    pacing = pacer.pacing("")
    pacing.ledger.add(1e9, 0.0, 20_000)
    pacer.step_time.add(shape(1), 20_000.0)
    views = [View(pacing, num_ready=8, limit=5, source=MODEL, fixed=True)]
    assert pacer.plan(views, shape(1), 64).num_draft == [5]


@pytest.mark.parametrize(
    ("speculation", "reason"),
    [(Speculation.AUTO, PlainReason.BUDGET), (Speculation.FIXED, PlainReason.NO_DRAFTER)],
)
def test_a_spent_budget_stops_auto_and_never_fixed(speculation, reason):
    params = SamplingParams(max_tokens=20)
    request = Request([1], [], params, seed=1, speculation=speculation, max_draft_tokens=8)
    sequence = VerifierSequence(request, Mailbox(1, 5, 8), lambda _: None, 0, 0)
    sequence.state = SamplingState(params, 1, [1], vocab_size=5)
    sequence.pacing.learn(cost(0, rows_us=1e6))
    sequence.pacing.consider(1e6, 0.0, 0.0, 20_000.0)
    assert plain_reason(sequence) is reason
    assert sequence.is_resting == (speculation is Speculation.AUTO)
