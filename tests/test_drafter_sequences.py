"""The sequences of all streams: the order within a message, re-attaching, room, and no leaks."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from drafter_service.drafter import NoRoomError
from drafter_service.random import RandomDrafter, random_token_id
from drafter_service.sequences import Sequences, Stream
from drafter_service.state import DraftState
from drafter_service.updates import (
    Attach,
    Block,
    Commit,
    Detach,
    Limits,
    Lost,
    LostReason,
    Updates,
)
from paceline.params import SamplingParams

LIMITS = Limits(
    vocab_size=10, max_length=1000, max_context=20, max_draft_tokens=6, eos_token_ids=frozenset()
)


class CountingDrafter(RandomDrafter):
    """Knows which states it holds, and fails on one that it should not be asked about."""

    def __init__(self, num_slots: int = 100) -> None:
        self.held: set[DraftState] = set()
        self.num_slots = num_slots

    def attach(self, state: DraftState) -> None:
        if len(self.held) == self.num_slots:
            raise NoRoomError
        self.held.add(state)

    def rollback(self, state: DraftState, length: int) -> None:
        assert state in self.held

    def detach(self, state: DraftState) -> None:
        self.held.remove(state)


def stream() -> Stream:
    def deliver(blocks: Sequence[Block], lost: Sequence[Lost]) -> None:
        raise AssertionError("only the engine delivers")

    return Stream(LIMITS, deliver)


def attach(number: int, epoch: int = 1, token_ids: Sequence[int] = (1, 2)) -> Attach:
    return Attach(number, epoch, token_ids, 1, SamplingParams(), 0, 4, 1)


def commit(number: int, base_position: int = 2, epoch: int = 1) -> Commit:
    return Commit(number, epoch, base_position, 0, [3], 4, 2)


class SequencesLeakNothing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.drafter = CountingDrafter(num_slots=5)
        self.sequences = Sequences(self.drafter, max_sequences=4)
        self.streams = [stream(), stream()]

    numbers = st.integers(0, 3)

    @rule(
        which=st.integers(0, 1),
        detaches=st.lists(st.builds(Detach, numbers, st.booleans()), max_size=2),
        attaches=st.lists(st.tuples(numbers, st.integers(1, 3), st.integers(1, 22)), max_size=3),
        commits=st.lists(st.tuples(numbers, st.integers(0, 5), st.integers(1, 3)), max_size=3),
    )
    def apply(self, which: int, detaches: list[Detach], attaches: Any, commits: Any) -> None:
        changed, other = self.streams[which], self.streams[1 - which]
        before = dict(other.sequences)
        changed.lost.clear()
        self.sequences.apply(
            changed,
            Updates(
                detaches,
                [attach(number, epoch, [1] * length) for number, epoch, length in attaches],
                [commit(*numbers) for numbers in commits],
            ),
        )
        assert other.sequences == before
        # Whatever was asked for is either there or named.
        named = {lost.sequence for lost in changed.lost}
        asked = {number for number, _, _ in [*attaches, *commits]}
        assert asked <= named | set(changed.sequences)

    @rule(which=st.integers(0, 1))
    def forget(self, which: int) -> None:
        self.sequences.forget(self.streams[which])
        assert not self.streams[which].sequences
        assert self.streams[which] not in self.sequences.streams

    @rule()
    def lose_all(self) -> None:
        self.sequences.lose_all()
        assert self.sequences.count == 0

    @invariant()
    def the_drafter_holds_what_the_streams_have(self) -> None:
        states = [t.state for one in self.streams for t in one.sequences.values()]
        assert self.drafter.held == set(states)
        assert self.sequences.count == len(states) <= 4


TestSequencesLeakNothing = SequencesLeakNothing.TestCase
TestSequencesLeakNothing.settings = settings(max_examples=50, deadline=None)


def test_detaches_apply_before_attaches_and_attaches_before_commits() -> None:
    sequences, one = Sequences(CountingDrafter(), 1), stream()
    sequences.apply(one, Updates(attaches=[attach(1)]))
    sequences.apply(one, Updates(detaches=[Detach(1)], attaches=[attach(2)], commits=[commit(2)]))
    assert one.lost == []
    assert one.sequences[2].state.token_ids == [1, 2, 3]


def test_a_higher_epoch_attaches_again() -> None:
    sequences, one = Sequences(CountingDrafter(), 1), stream()
    sequences.apply(one, Updates(attaches=[attach(1), attach(1, epoch=2, token_ids=[5])]))
    assert one.lost == []
    assert one.sequences[1].state.token_ids == [5]


def test_no_free_slot_in_the_drafter_is_no_capacity() -> None:
    sequences, one = Sequences(CountingDrafter(num_slots=1), 5), stream()
    sequences.apply(one, Updates(attaches=[attach(1), attach(2)]))
    assert one.lost == [Lost(2, 1, LostReason.CAPACITY)]


def test_detaching_what_is_not_attached_is_no_error() -> None:
    sequences, one = Sequences(CountingDrafter(), 1), stream()
    sequences.apply(one, Updates(detaches=[Detach(1)]))
    assert one.lost == []


def test_random_tokens_depend_on_seed_and_position_and_fit_the_vocabulary() -> None:
    drawn = [random_token_id(7, position, 100) for position in range(200)]
    assert drawn == [random_token_id(7, position, 100) for position in range(200)]
    assert drawn != [random_token_id(8, position, 100) for position in range(200)]
    assert set(drawn) <= set(range(100))
    assert len(set(drawn)) > 50
