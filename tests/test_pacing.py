"""Pacing: what the rule does at its ends, and that the ledger bounds what speculation may cost."""

import pytest

from paceline.params import SamplingParams, Speculation
from paceline.rounds import PlainReason
from paceline.sampling import SamplingState
from verifier_service.mailbox import Mailbox
from verifier_service.pacing import BUDGET_SHARE, BUDGET_US, Pacing, StepTime
from verifier_service.sequence import Request, VerifierSequence, plain_reason


def test_step_time_finds_base_and_slope():
    fit = StepTime()
    for rows in (1, 9, 1, 4, 16, 1, 9):
        fit.add(rows, 20_000 + 150 * rows)
    assert fit.row_us == pytest.approx(150, rel=1e-6)
    assert fit.predict(8) == pytest.approx(21_200, rel=1e-6)


def test_step_time_of_equal_steps_has_no_slope():
    fit = StepTime()
    for _ in range(5):
        fit.add(1, 20_000)
    assert fit.row_us == 0.0
    assert fit.predict(9) == pytest.approx(20_000)


def test_free_rows_take_the_whole_draft_and_dear_rows_take_none():
    pacing = Pacing(acceptance=0.5)
    assert pacing.draft_length(8, rho=1 / 20_000, row_us=0.0) == 8
    assert pacing.draft_length(8, rho=1 / 20_000, row_us=20_000) == 0
    # survival 0.5, 0.25, 0.125 against a price of 0.2 tokens a row
    assert pacing.draft_length(8, rho=1 / 20_000, row_us=4_000) == 2


def test_waiting_pays_for_a_quick_drafter_only():
    pacing = Pacing(acceptance=0.7, latency_us=800.0)
    assert pacing.wait_us(8, rho=1 / 20_000) > 800
    pacing.latency_us = 200_000.0
    assert pacing.wait_us(8, rho=1 / 20_000) == 0.0


def test_a_lookup_that_seldom_finds_anything_is_soon_not_waited_for():
    pacing, waited_us, rounds = Pacing(latency_us=2_000.0), 0.0, 0
    while pacing.wait_us(8, rho=1 / 40_000):
        waited_us += 2_000.0
        rounds += 1
        pacing.answered(2_000.0, num_tokens=0)
    assert rounds > 3
    assert waited_us < 50_000.0
    for _ in range(3):
        pacing.answered(2_000.0, num_tokens=8)
    assert pacing.wait_us(8, rho=1 / 40_000) > 0.0


def test_a_drafter_that_never_answers_is_soon_not_waited_for():
    pacing, waits = Pacing(), []
    for _ in range(50):
        wait = pacing.wait_us(8, rho=1 / 20_000)
        waits.append(wait)
        if wait:
            pacing.missed(wait)
    assert sum(waits) < 60_000
    assert waits[-1] == 0.0


@pytest.mark.parametrize("time_us", [25_000.0, 100_000.0])
def test_useless_speculation_costs_no_more_than_its_budget(time_us):
    """A drafter whose every token is rejected while its rounds are slower than plain ones."""
    plain_us, pacing, lost, probes = 20_000.0, Pacing(), 0.0, 0
    for round_number in range(3_000):
        speculates = pacing.draft_length(8, rho=1 / plain_us, row_us=0.0) > 0
        took = time_us if speculates else plain_us
        lost += took - plain_us
        probes += speculates and round_number > 40
        pacing.learn(
            tested=1 if speculates else 0, accepted=0, output=1, time_us=took, plain_us=plain_us
        )
    assert probes >= 3
    assert lost <= BUDGET_US + BUDGET_SHARE * pacing.elapsed_us + time_us - plain_us


def test_a_drafter_that_becomes_good_is_used_again():
    plain_us, pacing = 20_000.0, Pacing()
    for _ in range(100):
        used = pacing.draft_length(8, rho=1 / plain_us, row_us=0.0) > 0
        pacing.learn(tested=int(used), accepted=0, output=1, time_us=60_000.0, plain_us=plain_us)
    assert pacing.is_paused
    speculated = 0
    for _ in range(1_000):
        used = pacing.draft_length(8, rho=1 / plain_us, row_us=0.0) > 0
        speculated += used
        pacing.learn(
            tested=4 * used,
            accepted=4 * used,
            output=5 if used else 1,
            time_us=22_000.0,
            plain_us=plain_us,
        )
    assert speculated > 500


@pytest.mark.parametrize(
    ("speculation", "reason"),
    [(Speculation.AUTO, PlainReason.BUDGET), (Speculation.FIXED, PlainReason.NO_DRAFTER)],
)
def test_a_spent_budget_stops_auto_and_never_fixed(speculation, reason):
    params = SamplingParams(max_tokens=20)
    request = Request([1], [], params, seed=1, speculation=speculation, max_draft_tokens=8)
    sequence = VerifierSequence(request, Mailbox(1, 5, 8), lambda _: None, 0, 0)
    sequence.state = SamplingState(params, 1, [1], vocab_size=5)
    sequence.pacing.learn(tested=1, accepted=0, output=1, time_us=1e6, plain_us=2e4)
    assert sequence.pacing.is_paused
    assert plain_reason(sequence) is reason
    assert sequence.is_over_budget == (speculation is Speculation.AUTO)
