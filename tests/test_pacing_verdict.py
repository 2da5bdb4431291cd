"""What sequences learn from those before them, and who may not be slowed by whom."""

import math

import pytest

from paceline.rounds import TokenSource
from verifier_service.pacer import Pacer, View
from verifier_service.pacing import Mode, Pacing, RoundCost
from verifier_service.rule import Stake
from verifier_service.step_time import StepShape, StepTime

MODEL = TokenSource.DRAFT_MODEL
STEP_US = 20_000.0


def drive(pacing: Pacing, now_us: float, rounds: int, accepted: int) -> float:
    """Rounds whose draft tokens are accepted or not, 5 ms of rows each; the time at the end."""
    for _ in range(rounds):
        now_us += STEP_US
        used = pacing.drafts and pacing.usable(1) > 0
        gained = accepted if used else 0
        rows_us = 5_000.0 * used
        pacing.learn(RoundCost(MODEL, int(used), gained, gained, 0.0, rows_us, 0.0, STEP_US))
        pacing.consider(now_us, 5_000.0, 0.0, STEP_US)
    return now_us


def after_three_that_gave_up(pacer: Pacer) -> float:
    now_us = 0.0
    for _ in range(3):
        pacing = pacer.pacing("chat")
        assert pacing.mode is Mode.ON
        now_us = drive(pacing, now_us, 40, accepted=0)
        assert not pacing.drafts
    return now_us


def test_who_begins_after_three_that_gave_up_begins_without_a_drafter():
    pacer = Pacer()
    after_three_that_gave_up(pacer)
    pacing = pacer.pacing("chat")
    assert not pacing.drafts
    assert pacer.credit(pacing, 8, 0.0) == 0
    assert pacer.pacing("another workload").mode is Mode.ON


def test_one_at_a_time_probes_for_all_and_a_probe_that_gains_is_heard_by_all():
    pacer = Pacer()
    now_us = after_three_that_gave_up(pacer)
    running = [pacer.pacing("chat") for _ in range(4)]
    while not any(pacing.mode is Mode.PROBE for pacing in running):
        now_us += STEP_US
        for pacing in running:
            drive(pacing, now_us - STEP_US, 1, accepted=0)
    [probing] = [pacing for pacing in running if pacing.mode is Mode.PROBE]
    now_us = drive(probing, now_us, 60, accepted=3)
    assert probing.mode is Mode.ON
    assert pacer.pacing("chat").mode is Mode.ON


def test_a_probe_that_loses_keeps_all_waiting():
    pacer = Pacer()
    now_us = after_three_that_gave_up(pacer)
    pacing = pacer.pacing("chat")
    while pacing.mode is not Mode.PROBE:
        now_us = drive(pacing, now_us, 1, accepted=0)
    now_us = drive(pacing, now_us, 10, accepted=0)
    assert pacing.mode is Mode.OFF
    other = pacer.pacing("chat")
    drive(other, now_us, 40, accepted=0)
    assert other.mode is Mode.OFF


def test_another_drafter_gets_a_chance_of_its_own():
    pacer = Pacer()
    after_three_that_gave_up(pacer)
    for number in range(40):
        pacer.step_time.add(StepShape(1, 100, 1, number % 2 == 0), STEP_US * (1 + number % 2))
    pacer.new_drafter()
    assert pacer.pacing("chat").mode is Mode.ON
    assert pacer.step_time.drafting_us == 0.0


def test_a_drafter_on_the_same_cores_is_found_out_by_the_first_step_beside_it():
    pacer = Pacer()
    shape = StepShape(1, 100, 1, False)
    for _ in range(20):
        pacer.measured(shape, shape, STEP_US, prefill=False)
    pacer.new_drafter()
    beside = shape._replace(drafting=True)
    pacer.measured(beside, beside, 4 * STEP_US, prefill=False)
    assert pacer.step_time.drafting_us > STEP_US
    assert pacer.step_time.predict(shape) == pytest.approx(STEP_US, rel=0.1)


def test_a_prior_is_that_of_the_source_that_proposed_last():
    pacer = Pacer()
    for _ in range(100):
        pacer.pacing("chat").acceptance.learn(TokenSource.PROMPT_LOOKUP, 4, 0)
    assert pacer.pacing("chat").acceptance.survival(1)[0] < 0.1


@pytest.mark.parametrize(("stake_us", "num_draft"), [(math.inf, 8), (0.0, 0)])
def test_draft_rows_cost_others_no_more_than_they_may_lose(stake_us, num_draft):
    pacer = Pacer()
    shape = StepShape(2, 100, 2, True)
    for rows in (1, 5, 9, 13) * 20:
        pacer.step_time.add(shape.with_rows(rows), STEP_US + 300.0 * rows)
    drafting = View(pacer.pacing(""), num_ready=8, limit=8, source=MODEL, survival=[0.9] * 8)
    other = View(pacer.pacing(""), num_ready=0, limit=8, survival=[], stake=Stake(stake_us))
    assert pacer.plan([drafting, other], shape, 64).num_draft == [num_draft, 0]


def test_a_drafter_that_is_dear_is_not_a_machine_that_is_slow():
    fit = StepTime()
    alone, beside = StepShape(1, 100, 1, False), StepShape(1, 100, 1, True)
    for _ in range(40):
        fit.add(alone, STEP_US)
    for _ in range(12):
        fit.add(beside, 6 * STEP_US)
    for _ in range(4):
        fit.add(alone, STEP_US)
    assert fit.predict(alone) == pytest.approx(STEP_US, rel=0.15)
    assert fit.drafting_us == pytest.approx(5 * STEP_US, rel=0.3)
