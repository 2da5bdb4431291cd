"""Past answers as a drafter: of the tenant's own answers, whole, and of nothing else."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.past_answers import PastAnswersDrafter
from drafter_service.sequences import Sequences, Stream
from drafter_service.state import DraftState
from drafter_service.updates import Attach, Block, Commit, Detach, Limits, Lost, Updates
from paceline.lookup.tenants import MAX_TENANTS
from paceline.params import SamplingParams
from paceline.rounds import TokenSource

LIMITS = Limits(
    vocab_size=1000,
    max_length=1000,
    max_context=1000,
    max_draft_tokens=8,
    eos_token_ids=frozenset(),
)
PROMPT = list(range(1, 21))
ANSWER = list(range(50, 60))


def discard(blocks: Sequence[Block], lost: Sequence[Lost]) -> None:
    assert not lost


class Verifiers:
    """Two verifiers of one drafter."""

    def __init__(self) -> None:
        self.drafter = PastAnswersDrafter()
        self._sequences = Sequences(self.drafter, max_sequences=50)
        self._streams = [Stream(LIMITS, discard), Stream(LIMITS, discard)]
        self._number = 0

    def attach(
        self,
        token_ids: Sequence[int] = PROMPT,
        *,
        tenant: str = "a",
        temperature: float = 0.0,
        seed: int = 7,
    ) -> int:
        """The number of the sequence, at the verifier whose turn it is."""
        self._number += 1
        params = SamplingParams(temperature=temperature)
        event = Attach(self._number, 1, token_ids, len(PROMPT), params, seed, 8, 1, tenant=tenant)
        self._apply(self._number, Updates(attaches=[event]))
        return self._number

    def _apply(self, number: int, updates: Updates) -> None:
        stream = self._streams[number % 2]
        self._sequences.apply(stream, updates)
        assert not stream.lost

    def commit(self, number: int, base: int, num_agreed: int, token_ids: Sequence[int]) -> None:
        state = self._state(number)
        epoch = state.epoch + bool(token_ids)
        commit = Commit(number, epoch, base, num_agreed, token_ids, 8, 2)
        self._apply(number, Updates(commits=[commit]))

    def detach(self, number: int, token_ids: Sequence[int] = (), *, finished: bool) -> None:
        self._apply(number, Updates(detaches=[Detach(number, finished, token_ids)]))

    def _state(self, number: int) -> DraftState:
        return self._streams[number % 2].sequences[number].state

    def draft(self, number: int) -> list[int]:
        """What stands of a sequence's draft, and what is added."""
        state = self._state(number)
        [proposed] = self.drafter.extend([state])
        state.extend(proposed or [])
        state.take_block(TokenSource.PAST_ANSWERS, 0)
        return state.token_ids[state.num_committed :]

    def answer(self, token_ids: Sequence[int], *, finished: bool = True, tenant: str = "a") -> None:
        """An answer of two rounds: the last one comes with the detach."""
        number = self.attach(tenant=tenant)
        self.commit(number, len(PROMPT), 0, token_ids[:6])
        self.detach(number, token_ids[6:], finished=finished)


def test_an_answer_is_drafted_from_when_it_is_asked_for_again_at_any_verifier() -> None:
    verifiers = Verifiers()
    verifiers.answer(ANSWER)
    for _ in range(2):
        number = verifiers.attach()
        assert verifiers.draft(number) == ANSWER[:8]
        verifiers.commit(number, len(PROMPT), 8, ())
        # What the last round said is part of it.
        assert verifiers.draft(number) == ANSWER[8:]


def test_a_draft_begins_again_where_a_commit_disagreed() -> None:
    verifiers = Verifiers()
    verifiers.answer(ANSWER)
    number = verifiers.attach()
    assert verifiers.draft(number) == ANSWER[:8]
    verifiers.commit(number, len(PROMPT), 2, [99, *ANSWER[4:7]])
    # Three tokens are matched again: enough for less than all that is left.
    assert verifiers.draft(number) == ANSWER[7:9]


def test_nothing_crosses_tenants() -> None:
    verifiers = Verifiers()
    verifiers.answer(ANSWER)
    assert verifiers.draft(verifiers.attach(tenant="b")) == []
    assert verifiers.draft(verifiers.attach(tenant="")) == []


def test_an_answer_that_may_not_be_kept_is_not() -> None:
    verifiers = Verifiers()
    verifiers.answer(ANSWER, finished=False)
    assert verifiers.draft(verifiers.attach()) == []


def test_a_draft_that_never_stood_is_not_kept() -> None:
    verifiers = Verifiers()
    verifiers.answer(ANSWER)
    number = verifiers.attach()
    assert verifiers.draft(number) == ANSWER[:8]
    verifiers.detach(number, [70, 71, 72, 73], finished=True)
    assert verifiers.draft(verifiers.attach([*PROMPT, 70, 71])) == [72, 73]
    # An answer that had begun with the draft would go on with it here.
    assert verifiers.draft(verifiers.attach([*PROMPT, *ANSWER, 70])) == []


def test_tenants_beyond_the_bound_are_forgotten() -> None:
    verifiers = Verifiers()
    verifiers.answer(ANSWER)
    for number in range(MAX_TENANTS):
        verifiers.answer([200 + number] * 10, tenant=f"other {number}")
    assert verifiers.draft(verifiers.attach()) == []


def test_above_temperature_0_the_noise_has_a_say_among_what_followed() -> None:
    verifiers = Verifiers()
    for first in range(60, 63):
        verifiers.answer([first, *ANSWER])
    # That 20 seeds give one and the same of three is out of the question.
    numbers = [verifiers.attach(temperature=1.0, seed=seed) for seed in range(20)]
    assert len({tuple(verifiers.draft(number)[:1]) for number in numbers}) > 1


@settings(deadline=None, max_examples=50)
@given(
    answers=st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=4),
    commits=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=6),
)
def test_what_it_drafts_depends_on_the_committed_tokens_alone(
    answers: list[list[int]], commits: list[list[int]]
) -> None:
    verifiers = Verifiers()
    for answer in answers:
        verifiers.answer(answer)
    number, token_ids = verifiers.attach(), list(PROMPT)
    for committed in commits:
        verifiers.draft(number)
        verifiers.commit(number, len(token_ids), 0, committed)
        token_ids += committed
    assert verifiers.draft(number) == verifiers.draft(verifiers.attach(token_ids))
