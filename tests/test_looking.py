"""Own sources are not asked where asking them costs more than their draft tokens bring."""

from verifier_service.ledger import Ledger
from verifier_service.looking import Looking
from verifier_service.pacer import Pacer, View
from verifier_service.step_time import StepShape

STEP_US = 40_000.0


def looks(looking: Looking, num_steps: int, *, num_sequences: int = 8, found: bool = True):
    """Whether each of so many steps looked, none with a draft token worth its row."""
    seen = []
    for _ in range(num_steps):
        seen.append(looking.is_on)
        outside_us = 800.0 * num_sequences if looking.is_on else 200.0 * num_sequences
        looking.measured(num_sequences, outside_us, found=found, num_drafted=0)
    return seen


def test_steps_in_vain_are_followed_by_longer_and_longer_rests():
    seen = looks(Looking(), 80)
    turns = [number for number, looked in enumerate(seen) if looked]
    assert turns[:5] == [0, 1, 4, 9, 18]
    assert turns[-1] - turns[-2] == 17


def test_a_text_without_guesses_is_no_reason_to_rest():
    assert all(looks(Looking(), 40, found=False))


def test_a_draft_token_worth_its_row_ends_the_rests():
    looking = Looking()
    looks(looking, 5)
    while not looking.is_on:
        looks(looking, 1)
    looking.measured(8, 6400.0, found=True, num_drafted=3)
    assert looks(looking, 2) == [True, True]


def test_an_answer_that_ends_makes_rows_cheaper_and_is_a_reason_to_look():
    looking = Looking()
    looks(looking, 3)
    assert not looking.is_on
    looking.measured(7, 1400.0, found=True, num_drafted=0)
    assert looking.is_on


def test_a_hiccup_is_not_what_looking_costs():
    looking = Looking()
    for outside_us in (800.0, 800.0, 80_000.0):
        looking.measured(1, outside_us, found=False, num_drafted=0)
    looks(looking, 3, num_sequences=1)
    assert looking.cost_us < 1_200.0


def test_an_answer_that_comes_alone_does_not_rest_for_the_one_before():
    looking = Looking()
    looks(looking, 30, num_sequences=1)
    looking.restart()
    assert looks(looking, 2, num_sequences=1) == [True, True]


def test_draft_tokens_must_be_worth_looking_for_them():
    pacer = Pacer()
    shape = StepShape(8, 800, 8, False)
    for rows in (8, 12, 16, 24) * 20:
        pacer.step_time.add(shape.with_rows(rows), STEP_US + 200.0 * rows)
    views = [View(pacer.pacing(""), 0, 0, survival=[0.3])]
    views += [View(pacer.pacing(""), 0, 0, survival=[]) for _ in range(7)]
    assert sum(pacer.plan(views, shape, 64).num_draft) == 1
    looks(pacer.looking, 3)
    assert pacer.looking.cost_us == 600.0
    assert not pacer.looking.is_on
    assert sum(pacer.plan(views, shape, 64).num_draft) == 1, "nobody looked for what is at hand"
    pacer.looking.restart()
    assert sum(pacer.plan(views, shape, 64).num_draft) == 0


def test_gains_long_past_still_count_before_others_may_cost_no_more():
    ledger = Ledger(30_000.0, 0.02)
    ledger.add(-200_000.0, 0.0, 40_000.0)
    for _ in range(5):
        ledger.add(0.0, 20_000.0, 60_000.0)
    assert not ledger.is_harmed()
    for _ in range(10):
        ledger.add(0.0, 20_000.0, 60_000.0)
    assert ledger.is_harmed() and not ledger.is_harmed(4.0)
