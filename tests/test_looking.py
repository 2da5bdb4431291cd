"""Whose own sources a step asks, and what that may cost: looking.py, fortune.py, the ledger."""

import math

import pytest

from paceline.params import SamplingParams
from paceline.sampling import SamplingState
from verifier_service.config import VerifierSettings
from verifier_service.fortune import Fortune, Pool
from verifier_service.ledger import Ledger
from verifier_service.looking import Interest, Looking
from verifier_service.opening import new_sequence
from verifier_service.pacer import Pacer
from verifier_service.sequence import Request, VerifierSequence
from verifier_service.sources import DEFAULT_SOURCES, Sources, Stores
from verifier_service.step_time import StepShape
from verifier_service.turns import take_turns

STEP_US, LOOK_US = 40_000.0, 600.0


def play(looking: Looking, interests: list[Interest], accepted: list[int]) -> list[bool]:
    """One step; `accepted`: what each would bring if it were asked."""
    asks = looking.choose(interests, math.inf)
    num_tried = sum(asked and not one.pays for asked, one in zip(asks, interests, strict=True))
    looking.measured(100.0 + LOOK_US * sum(asks), sum(asks), num_tried, STEP_US)
    cost = len(interests) / STEP_US * LOOK_US
    for asked, interest, count in zip(asks, interests, accepted, strict=True):
        if asked:
            interest.asked(count, cost)
        else:
            interest.rested()
    return asks


def test_those_that_bring_nothing_are_asked_in_turn_within_a_hundredth_of_the_time():
    looking, interests = Looking(), [Interest() for _ in range(8)]
    asked = [play(looking, interests, [0] * 8) for _ in range(400)]
    assert all(map(all, asked[:2])), "each has a few chances"
    late = asked[100:]
    assert sum(map(sum, late)) * LOOK_US <= 0.0105 * STEP_US * len(late)
    counts = [sum(step[index] for step in late) for index in range(8)]
    assert min(counts) > 0 and max(counts) - min(counts) <= 1


def test_one_that_brings_something_is_asked_at_every_step():
    looking, interests = Looking(), [Interest() for _ in range(8)]
    asked = [play(looking, interests, [2, *[0] * 7]) for _ in range(100)]
    assert all(step[0] for step in asked)
    assert sum(map(sum, asked[20:])) < 80 * 2


def test_a_text_that_has_changed_is_found():
    looking, interests = Looking(), [Interest() for _ in range(8)]
    for _ in range(100):
        play(looking, interests, [0] * 8)
    asked = [play(looking, interests, [4, *[0] * 7])[0] for _ in range(40)]
    first = asked.index(True)
    assert all(asked[first:])


def test_no_more_are_asked_than_one_can_bear():
    looking, interests = Looking(cost_us=LOOK_US), [Interest(net) for net in (0.1, 0.4, 0.2, -1.0)]
    assert looking.choose(interests, math.inf) == [True, True, True, False]
    assert looking.choose(interests, 2.5 * LOOK_US) == [False, True, True, False]
    assert looking.choose(interests, 0.0) == [False] * 4


def test_a_hiccup_is_not_what_looking_costs():
    looking = Looking()
    for _ in range(20):
        looking.measured(100.0, 0, 0, STEP_US)
        looking.measured(100.0 + LOOK_US, 1, 0, STEP_US)
    for _ in range(3):
        looking.measured(50_000.0, 1, 0, STEP_US)
    assert looking.cost_us < 1.4 * LOOK_US


def test_bad_luck_is_no_reason_to_stop_what_pays_and_a_text_that_nobody_can_guess_is():
    pool = Pool()
    lucky, unlucky, new = (Fortune(pool) for _ in range(3))
    for _ in range(60):
        lucky.add(20_000.0)
        unlucky.add(-5_000.0)
    assert lucky.mean_us > 0.0 > unlucky.mean_us
    new.add(-5_000.0)
    assert new.mean_us > 0.0


def test_gains_long_past_still_count_before_others_may_cost_no_more():
    ledger = Ledger(30_000.0, 0.02)
    ledger.add(-200_000.0, 0.0, 40_000.0)
    for _ in range(5):
        ledger.add(0.0, 20_000.0, 60_000.0)
    assert ledger.left_us > 100_000.0
    for _ in range(10):
        ledger.add(0.0, 20_000.0, 60_000.0)
    assert ledger.left_us == 0.0


@pytest.mark.parametrize(
    ("has_own", "is_drafting", "net_us", "allowance_us"),
    [
        (True, False, -1_000.0, 0.0),
        (True, True, -1_000.0, 0.0),
        (True, False, 1_000.0, math.inf),
        # A linked drafter may win it back.
        (False, True, -1_000.0, math.inf),
        (False, False, 1_000.0, 0.0),
    ],
)
def test_a_spent_budget_shields_whoever_does_not_win_it_back(
    has_own, is_drafting, net_us, allowance_us
):
    pacing = Pacer().pacing("")
    pacing.ledger.add(0.0, 31_000.0, 40_000.0)
    pacing.fortune.add(net_us)
    assert pacing.allowance_us(has_own=has_own, is_drafting=is_drafting) == allowance_us


def running(pacer: Pacer, *, is_reading: bool = False) -> VerifierSequence:
    """A sequence that repeats itself: its lookup always has something."""
    token_ids = [1, 2, 3, 4] * 6
    params = SamplingParams(temperature=0.0, max_tokens=64)
    request = Request(token_ids, [], params, seed=1, max_tree_tokens=8)
    sequence = new_sequence(request, lambda event: None, 100)
    sequence.state = SamplingState(params, 1, token_ids, vocab_size=100)
    sequence.sources = Sources(
        DEFAULT_SOURCES,
        Stores(),
        prompt=token_ids,
        token_ids=sequence.token_ids,
        params=params,
        seed=1,
        branch_block=16,
    )
    sequence.pacing = pacer.pacing("")
    sequence.cache = Cache(len(token_ids) - 1)
    if not is_reading:
        sequence.prefill = object()
    return sequence


class Cache:
    """How much of a sequence was read."""

    def __init__(self, length: int) -> None:
        self.length = length


def pacer_that_knows() -> Pacer:
    pacer = Pacer()
    for rows in (1, 4, 8, 12, 16, 24) * 20:
        pacer.step_time.add(StepShape(rows, 100, 1, False), STEP_US + 300.0 * rows)
    return pacer


def looked(pacer: Pacer, sequences: list[VerifierSequence]) -> list[bool]:
    step = take_turns(sequences, pacer, VerifierSettings(), 0)
    assert [turn.asked_own for turn in step.turns] == [
        turn.view.survival is not None for turn in step.turns
    ]
    return [turn.looked for turn in step.turns]


def test_a_step_asks_nobody_where_one_has_nothing_left_to_lose():
    pacer = pacer_that_knows()
    sequences = [running(pacer) for _ in range(3)]
    assert looked(pacer, sequences) == [True] * 3
    sequences[1].pacing.ledger.add(0.0, 31_000.0, 40_000.0)
    sequences[1].pacing.fortune.add(-1_000.0)
    assert looked(pacer, sequences) == [False] * 3


def test_a_prompt_that_is_read_comes_before_the_drafts_of_others():
    pacer = pacer_that_knows()
    sequences = [running(pacer), running(pacer, is_reading=True)]
    assert looked(pacer, sequences) == [False, True]
    views = [turn.view for turn in take_turns(sequences, pacer, VerifierSettings(), 0).turns]
    assert [view.allowance_us > 0.0 for view in views] == [True, False]


def test_a_prompt_that_is_not_read_to_its_end_asks_for_nothing():
    pacer = pacer_that_knows()
    sequences = [running(pacer, is_reading=True)]
    sequences[0].token_ids += [5] * 600
    assert looked(pacer, sequences) == [False]


def test_a_sequence_that_rests_is_not_asked():
    pacer = pacer_that_knows()
    pacer.looking.cost_us = LOOK_US
    sequences = [running(pacer), running(pacer)]
    sequences[0].interest.net = -0.1
    assert looked(pacer, sequences) == [False, True]
