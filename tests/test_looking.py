"""Whose own sources a step asks, and what that may cost: looking.py, shrunk.py, the ledger."""

import math
import random

import pytest

from paceline.params import SamplingParams
from paceline.rounds import PlainReason, TokenSource
from paceline.sampling import SamplingState
from verifier_service.config import VerifierSettings
from verifier_service.exposure import Exposure
from verifier_service.ledger import Ledger
from verifier_service.looking import Interest, Looking, new_hope
from verifier_service.opening import new_sequence
from verifier_service.pacer import Pacer
from verifier_service.pacing import RoundCost
from verifier_service.rule import ANY_STAKE
from verifier_service.sequence import Request, VerifierSequence
from verifier_service.shadow import Shadow
from verifier_service.shrunk import Pool, Shrunk
from verifier_service.sources import DEFAULT_SOURCES, Sources, Stores
from verifier_service.step_time import StepShape
from verifier_service.turns import take_turns
from verifier_service.workloads import Workloads

STEP_US, LOOK_US = 40_000.0, 600.0
SHAPE = StepShape(1, 100, 1, False)


def play(looking: Looking, interests: list[Interest], brought: list[float]) -> list[bool]:
    """One step; `brought`: what each would bring if it were asked."""
    asks = looking.choose(interests, math.inf)
    for asked, interest, count in zip(asks, interests, brought, strict=True):
        if asked:
            looking.asked(LOOK_US, 0.0, pays=interest.pays)
            interest.asked(count, looking.tokens_in(LOOK_US, len(interests), STEP_US))
        else:
            interest.rested()
    looking.measured(STEP_US, STEP_US, 1.0)
    return asks


def strangers(count: int) -> list[Interest]:
    """Each of a workload of its own."""
    return [Interest(new_hope()) for _ in range(count)]


def test_those_that_bring_nothing_are_asked_in_turn_within_a_hundredth_of_the_time():
    looking, interests = Looking(), strangers(8)
    asked = [play(looking, interests, [0] * 8) for _ in range(400)]
    assert all(map(all, asked[:5])), "each has a few chances"
    late = asked[100:]
    assert sum(map(sum, late)) * LOOK_US <= 0.0105 * STEP_US * len(late)
    counts = [sum(step[index] for step in late) for index in range(8)]
    assert min(counts) > 0 and max(counts) - min(counts) <= 1


def test_rows_of_those_tried_in_vain_count_against_the_hundredth():
    looking, interests = Looking(), strangers(1)
    tried = 0
    for step in range(2_000):
        (asked,) = looking.choose(interests, math.inf)
        if asked:
            looking.asked(LOOK_US, 9 * LOOK_US, pays=interests[0].pays)
            interests[0].asked(0.0, 0.2)
            tried += step >= 1_000
        looking.measured(STEP_US, STEP_US, 1.0)
    assert tried * 10 * LOOK_US <= 0.0105 * STEP_US * 1_000


def test_one_that_brings_something_is_asked_at_every_step():
    looking, interests = Looking(), strangers(8)
    asked = [play(looking, interests, [2, *[0] * 7]) for _ in range(200)]
    assert all(step[0] for step in asked)
    assert sum(map(sum, asked[100:])) < 100 * 2


def test_a_text_that_has_changed_is_found():
    looking, interests = Looking(), strangers(8)
    for _ in range(100):
        play(looking, interests, [0] * 8)
    asked = [play(looking, interests, [4, *[0] * 7])[0] for _ in range(40)]
    first = asked.index(True)
    assert all(asked[first:])


def test_what_others_of_a_workload_found_in_vain_a_new_one_does_not_hope_for():
    hope, looking = new_hope(), Looking()
    for _ in range(20):
        play(looking, [Interest(hope)], [0])
    assert Interest(new_hope()).pays
    before = [play(looking, [Interest(hope)], [0]) for _ in range(200)]
    assert sum(map(sum, before[100:])) < 100


def test_no_more_are_asked_than_one_can_bear():
    looking, interests = Looking(cost_us=LOOK_US), strangers(4)
    for interest, value in zip(interests, (0.1, 0.4, 0.2, -1.0), strict=True):
        for _ in range(50):
            interest.asked(value, 0.0)
    assert looking.choose(interests, math.inf) == [True, True, True, False]
    assert looking.choose(interests, 2.5 * LOOK_US) == [False] * 4
    for interest in interests[:3]:
        interest.rested()
    looking.measured(1.1 * 100 * LOOK_US, STEP_US, 1.0)
    assert looking.choose(interests, 2.5 * LOOK_US) == [True, False, False, False]


def test_a_hiccup_is_not_what_looking_costs():
    looking = Looking()
    for _ in range(20):
        looking.asked(LOOK_US, 0.0, pays=True)
    for _ in range(3):
        looking.asked(50_000.0, 0.0, pays=True)
    assert looking.cost_us < 1.4 * LOOK_US


def test_time_is_worth_what_was_lately_made_of_it_and_never_less_than_plain_decoding():
    looking = Looking()
    assert looking.tokens_in(STEP_US / 10, 4, STEP_US) == pytest.approx(0.4)
    for _ in range(200):
        looking.measured(STEP_US, STEP_US, 2.0)
    assert looking.tokens_in(STEP_US / 10, 4, STEP_US) == pytest.approx(0.8, rel=0.01)
    for _ in range(200):
        looking.measured(2 * STEP_US, STEP_US, 1.0)
    assert looking.tokens_in(STEP_US / 10, 4, STEP_US) == pytest.approx(0.4)


def test_bad_luck_is_no_reason_to_stop_what_pays_and_a_text_that_nobody_can_guess_is():
    pool = Pool()
    lucky, unlucky, new = (Shrunk(pool) for _ in range(3))
    for _ in range(60):
        lucky.add(20_000.0)
        unlucky.add(-5_000.0)
    assert lucky.mean > 0.0 > unlucky.mean
    new.add(-5_000.0)
    assert new.mean > 0.0


def test_speculation_is_judged_by_what_was_expected_not_by_luck():
    """Nothing three times, then eight tokens: as expected in the mean, whatever came first."""
    lucky, unlucky = Pacer().pacing(""), Pacer().pacing("")
    for pacing, accepted in ((lucky, (8, 0, 0, 0)), (unlucky, (0, 0, 0, 8))):
        for count in accepted:
            pacing.learn(
                RoundCost(
                    TokenSource.UNSPECIFIED, 0, 0, count, 0.0, 20_000.0, 0.0, STEP_US,
                    has_own=True, hoped=2.0, wished_us=20_000.0,
                )
            )  # fmt: skip
    assert lucky.gain.mean == unlucky.gain.mean == pytest.approx(2 * STEP_US)


def test_a_step_bets_a_part_of_what_may_be_lost():
    pacing = Pacer().pacing("")
    stakes = []
    for _ in range(20):
        stakes.append(pacing.stake(has_own=True, is_drafting=False).us)
        pacing.ledger.add(stakes[-1], 0.0, STEP_US)
    assert stakes[0] == pytest.approx(5_000.0)
    assert stakes[10] > 500.0
    assert sum(stakes) < 30_000.0


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
    ("has_own", "is_drafting", "share"),
    [(True, False, 0.15), (True, True, 0.15), (False, False, 0.0)],
)
def test_a_spent_budget_shields_but_for_what_the_workload_has_shown_to_be_harmless(
    has_own, is_drafting, share
):
    pacing = Pacer().pacing("")
    pacing.ledger.add(0.0, 31_000.0, 40_000.0)
    pacing.gain.add(9_000.0)
    stake = pacing.stake(has_own=has_own, is_drafting=is_drafting)
    assert (stake.us, stake.share) == (0.0, pytest.approx(share))
    assert stake.allows_us(0.0) == pytest.approx(share * 9_000.0)
    assert stake.allows_us(20_000.0) == pytest.approx(share * 20_000.0)


def test_with_a_drafter_alone_anything_may_be_staked():
    pacing = Pacer().pacing("")
    pacing.ledger.add(0.0, 31_000.0, 40_000.0)
    assert pacing.stake(has_own=False, is_drafting=True) == ANY_STAKE


def test_exposure_leaves_one_answer_in_twenty_with_more_than_its_budget_lost():
    """Answers lose too much the more often, the more they are exposed."""
    coin = random.Random(1)
    exposure = Exposure()
    lost = []
    for _ in range(4_000):
        lost.append(coin.random() < exposure.value)
        exposure.ended(lost_too_much=lost[-1])
    assert sum(lost[400:]) / len(lost[400:]) == pytest.approx(0.05, abs=0.01)
    for _ in range(100):
        exposure.ended(lost_too_much=False)
    assert exposure.value == pytest.approx(0.7)


def test_an_answer_that_lost_more_than_its_budget_lowers_the_exposure_of_its_workload():
    pacer = Pacer()
    lucky, unlucky = pacer.pacing("chat"), pacer.pacing("chat")
    before = lucky.exposure.value
    lucky.ended()
    assert lucky.exposure.value > before
    unlucky.ledger.add(0.0, 100_000.0, 2e6)
    unlucky.ended()
    assert pacer.pacing("chat").exposure.value == 0.0
    assert pacer.pacing("other").exposure.value == before


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


def test_who_has_nothing_left_to_lose_is_slowed_by_glances_only_and_may_still_hope():
    pacer = pacer_that_knows()
    sequences = [running(pacer) for _ in range(3)]
    assert looked(pacer, sequences) == [True] * 3
    sequences[1].pacing.ledger.add(0.0, 31_000.0, 40_000.0)
    sequences[1].pacing.exposure.ended(lost_too_much=True)
    turns = take_turns(sequences, pacer, VerifierSettings(), 0).turns
    assert all(turn.looked for turn in turns)
    assert sum(len(turn.draft.token_ids) for turn in turns) <= 1
    assert all(turn.num_wished > 0 and turn.hoped > 0.5 for turn in turns)
    # Where they take longer than it may lose, in turn within a hundredth of the time.
    pacer.looking.cost_us = STEP_US / 50
    assert looked(pacer, sequences) == [False] * 3
    for _ in range(2):
        pacer.looking.measured(STEP_US, STEP_US, 1.0)
    assert sum(looked(pacer, sequences)) == 1


def test_a_prompt_that_is_read_comes_before_the_drafts_of_others():
    pacer = pacer_that_knows()
    sequences = [running(pacer), running(pacer, is_reading=True)]
    assert looked(pacer, sequences) == [False, True]
    views = [turn.view for turn in take_turns(sequences, pacer, VerifierSettings(), 0).turns]
    assert [view.stake.us > 0.0 for view in views] == [True, False]


def test_a_prompt_that_is_not_read_to_its_end_asks_for_nothing():
    pacer = pacer_that_knows()
    sequences = [running(pacer, is_reading=True)]
    sequences[0].token_ids += [5] * 600
    assert looked(pacer, sequences) == [False]


def test_a_sequence_that_rests_is_not_asked():
    pacer = pacer_that_knows()
    pacer.looking.cost_us = LOOK_US
    sequences = [running(pacer), running(pacer)]
    sequences[0].pacing.interest.asked(0.0, 9.0)
    sequences[1].pacing.interest.asked(9.0, 0.0)
    assert looked(pacer, sequences) == [False, True]


def test_a_drafter_that_comes_clears_verdicts_and_nothing_else():
    workloads = Workloads()
    chat = workloads.of("chat")
    for _ in range(3):
        chat.verdict.gave_up(PlainReason.NOT_WORTH, 1e6)
    chat.hope.add(5.0)
    hoped = chat.hope.mean
    workloads.new_drafter()
    assert not workloads.of("chat").verdict.is_off
    assert workloads.of("chat").hope.mean == hoped


def test_labels_of_clients_do_not_pile_up():
    workloads = Workloads()
    first = workloads.of("0")
    for number in range(1, 100):
        workloads.of(str(number))
    assert workloads.of("0") is not first
    assert workloads.of("99") is workloads.of("99")


def test_a_shadow_sees_what_a_tree_would_have_brought():
    shadow = Shadow()
    # 5 -> 6 -> 7, or 5 -> 8.
    shadow.watch([5, 6, 7, 8], [-1, 0, 1, 0], STEP_US / 2)
    assert not shadow.committed([5], STEP_US)
    assert not shadow.committed([6], STEP_US)
    # Another tree waits until this one's path is left.
    shadow.watch([1], [-1], STEP_US)
    assert shadow.committed([9], STEP_US), "two tokens for half a step"
    assert shadow.account_us == 0.0


def test_a_shadow_of_vain_trees_proves_nothing_and_forgets_what_is_long_past():
    shadow = Shadow()
    for _ in range(50):
        shadow.watch([5], [-1], STEP_US / 4)
        assert not shadow.committed([6], STEP_US)
    assert shadow.account_us == -2 * STEP_US
    for _ in range(10):
        shadow.watch([5, 6], [-1, 0], STEP_US / 4)
        if shadow.committed([5, 6, 7], STEP_US):
            return
    raise AssertionError("a text that has changed is found")


def test_who_has_spent_its_budget_speculates_again_once_its_shadow_has_gained():
    pacer = pacer_that_knows()
    sequence = running(pacer)
    sequence.pacing.ledger.add(31_000.0, 0.0, STEP_US)
    (turn,) = take_turns([sequence], pacer, VerifierSettings(), 0).turns
    assert not turn.draft.token_ids
    assert len(turn.shadow.token_ids) > 2
    for token_id in (*turn.shadow.token_ids[:3], 99):
        assert sequence.pacing.is_spent
        pacer.learn_of_shadow(sequence.pacing, turn.shadow, [token_id], SHAPE, 0.0)
    assert not sequence.pacing.is_spent
    (turn,) = take_turns([sequence], pacer, VerifierSettings(), 0).turns
    assert turn.draft.token_ids and not turn.shadow.token_ids
