"""The drafter's state machine: against a naive model, and in conversation with a verifier."""

import copy
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from drafter_service.state import DraftState, open_state
from drafter_service.updates import Attach, Block, Commit, Limits, Lost, LostReason
from paceline.params import SamplingMode, SamplingParams
from paceline.rounds import TokenSource

STOP = 9
LIMITS = Limits(
    vocab_size=10, max_length=1000, max_context=60, max_draft_tokens=6, eos_token_ids=frozenset()
)
ids = st.lists(st.integers(0, 2), max_size=4)


def attach(
    token_ids: list[int],
    *,
    max_draft_tokens: int = 4,
    limits: Limits = LIMITS,
    params: SamplingParams | None = None,
    num_prompt_tokens: int | None = None,
) -> DraftState | Lost:
    return open_state(
        Attach(
            sequence=1,
            epoch=1,
            token_ids=token_ids,
            num_prompt_tokens=num_prompt_tokens or len(token_ids),
            params=params or SamplingParams(stop_token_ids=[STOP]),
            seed=0,
            max_draft_tokens=max_draft_tokens,
            round=1,
        ),
        limits,
    )


def attached(token_ids: list[int], **options: object) -> DraftState:
    state = attach(token_ids, **options)  # type: ignore[arg-type]
    assert isinstance(state, DraftState)
    return state


def commit(
    base_position: int, num_agreed: int, token_ids: list[int], *, epoch: int = 1, credit: int = 4
) -> Commit:
    return Commit(1, epoch, base_position, num_agreed, token_ids, credit, round=2)


def send(state: DraftState) -> Block | None:
    return state.take_block(TokenSource.RANDOM, 0)


class StateFollowsNaiveModel(RuleBasedStateMachine):
    """Whole lists compared instead of positions, on commits that agree, disagree, are shorter or
    longer than the draft, or make no sense."""

    @initialize(token_ids=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def open(self, token_ids: list[int]) -> None:
        self.state = attached(token_ids)
        self.committed = list(token_ids)
        self.draft: list[int] = []
        self.sent: list[int] = []
        self.epoch, self.credit = 1, 4
        self.is_alive, self.is_muted = True, False

    @rule(token_ids=st.lists(st.integers(0, 2), min_size=1, max_size=4), sends=st.booleans())
    def draft_tokens(self, token_ids: list[int], sends: bool) -> None:
        if self.is_alive:
            room = min(self.credit, LIMITS.max_context - len(self.committed))
            wanted = max(room - len(self.draft), 0)
            assert self.state.num_wanted == wanted
            self.state.extend(token_ids)
            self.draft += token_ids[:wanted]
            if sends:
                self.send()

    def send(self) -> None:
        if self.is_alive:
            block = send(self.state)
            unsent = [] if self.is_muted else self.draft[len(self.sent) : self.credit]
            assert (list(block.token_ids) if block else []) == unsent
            if block:
                assert block.base_position == len(self.committed) + len(self.sent)
                assert block.epoch == self.epoch
            self.sent += unsent

    @rule(
        data=st.data(),
        others=st.just([]) | ids,
        raises_epoch=st.booleans(),
        credit=st.sampled_from([0, 1, 2, 4, 9]),
        sends=st.booleans(),
    )
    def commit(
        self,
        data: st.DataObject,
        others: list[int],
        raises_epoch: bool,
        credit: int,
        sends: bool,
    ) -> None:
        if not self.is_alive:
            return
        agreed = data.draw(st.integers(0, len(self.sent)))
        # What the verifier chose may be what we drafted, sent or not.
        same = data.draw(st.integers(0, len(self.draft) - agreed))
        token_ids = self.draft[agreed : agreed + same] + others
        epoch = self.epoch + raises_epoch
        event = commit(len(self.committed), agreed, token_ids, epoch=epoch, credit=credit)
        before = list(self.state.token_ids)
        kept = self.state.commit(event)
        now = self.committed + self.draft[:agreed] + token_ids
        if len(now) > LIMITS.max_context:
            assert kept == Lost(1, epoch, LostReason.CONTEXT)
            self.is_alive = False
            return
        ours, ours_sent = self.committed + self.draft, self.committed + self.sent
        stands = ours[: len(now)] == now
        overlap = min(len(now), len(ours_sent))
        self.is_muted = not raises_epoch and now[:overlap] != ours_sent[:overlap]
        self.committed = now
        self.draft = ours[len(now) :] if stands else []
        self.sent = ours_sent[len(now) :] if stands and not raises_epoch else []
        self.epoch, self.credit = epoch, min(credit, LIMITS.max_draft_tokens)
        assert isinstance(kept, int)
        assert before[:kept] == self.state.token_ids[:kept]
        assert kept == len(before) or before[kept] != self.state.token_ids[kept]
        if sends:
            self.send()

    @rule(
        token_ids=ids,
        # Tokens that were never sent, a gap, an overlap, an epoch that is over.
        wrong=st.sampled_from([(0, 1, 0), (1, 0, 0), (-1, 0, 0), (0, 0, -1)]),
    )
    def commit_out_of_step(self, token_ids: list[int], wrong: tuple[int, int, int]) -> None:
        if self.is_alive:
            shift, claimed, epochs = wrong
            event = commit(
                len(self.committed) + shift,
                len(self.sent) + claimed if claimed else 0,
                token_ids,
                epoch=self.epoch + epochs,
            )
            lost = copy.deepcopy(self.state).commit(event)
            assert lost == Lost(1, event.epoch, LostReason.OUT_OF_STEP)

    @invariant()
    def tokens_are_the_committed_and_the_draft(self) -> None:
        if self.is_alive:
            assert self.state.token_ids == self.committed + self.draft
            assert self.state.num_committed == len(self.committed)


class ConversationStaysInStep(RuleBasedStateMachine):
    """A drafter that is right or wrong as it pleases and a verifier that follows the protocol,
    with messages of any delay, in order."""

    CREDIT = 4

    @initialize()
    def open(self) -> None:
        self.state = attached([0], limits=Limits(10, 10**6, 10**6, 6, frozenset()))
        self.state.max_length = 10**6
        self.blocks: deque[Block] = deque()
        self.commits: deque[Commit] = deque()
        # The verifier.
        self.tokens = [0]
        self.mailbox: list[int] = []
        self.epoch = 1
        self.has_diverged = False

    @staticmethod
    def truth(position: int) -> int:
        return position * position % 7 % 3

    @rule(mistakes=st.lists(st.booleans(), min_size=1, max_size=4))
    def draft_tokens(self, mistakes: list[bool]) -> None:
        start = len(self.state.token_ids)
        self.state.extend([(self.truth(start + i) + m) % 3 for i, m in enumerate(mistakes)])
        block = send(self.state)
        if block:
            self.blocks.append(block)

    @rule()
    def receive_block(self) -> None:
        if not self.blocks:
            return
        block = self.blocks.popleft()
        assert len(block.token_ids) <= self.CREDIT
        if block.epoch != self.epoch or self.has_diverged:
            return
        for position, token_id in enumerate(block.token_ids, block.base_position):
            if position < len(self.tokens):
                if self.tokens[position] != token_id:
                    self.has_diverged = True
                    return
            else:
                assert position == len(self.tokens) + len(self.mailbox), "a gap in the stream"
                self.mailbox.append(token_id)
        assert len(self.mailbox) <= self.CREDIT

    @rule(num_rows=st.integers(0, 4))
    def step(self, num_rows: int) -> None:
        base = len(self.tokens)
        chosen = []
        block = self.mailbox[:num_rows]
        for token_id in [*block, None]:
            chosen.append(self.truth(base + len(chosen)))
            if token_id != chosen[-1]:
                break
        num_agreed = 0
        while (
            num_agreed < min(len(chosen), len(self.mailbox))
            and self.mailbox[num_agreed] == chosen[num_agreed]
        ):
            num_agreed += 1
        if self.has_diverged or num_agreed < min(len(chosen), len(self.mailbox)):
            self.epoch += 1
            self.has_diverged = False
            self.mailbox = []
        self.mailbox = self.mailbox[len(chosen) :]
        self.tokens += chosen
        self.commits.append(
            commit(base, num_agreed, chosen[num_agreed:], epoch=self.epoch, credit=self.CREDIT)
        )

    @rule()
    def receive_commit(self) -> None:
        if self.commits:
            kept = self.state.commit(self.commits.popleft())
            assert isinstance(kept, int), "a verifier in step loses no sequence"

    @invariant()
    def the_drafter_holds_a_prefix_of_the_verifiers_tokens(self) -> None:
        committed = self.state.token_ids[: self.state.num_committed]
        assert committed == self.tokens[: len(committed)]

    @invariant()
    def no_more_is_under_way_than_credit(self) -> None:
        assert self.state.num_sent <= self.CREDIT

    def teardown(self) -> None:
        """Once messages flow again a good drafter's tokens are accepted again."""
        if not hasattr(self, "state"):
            return
        for _ in range(3):
            while self.blocks:
                self.receive_block()
            self.step(4)
            while self.commits:
                self.receive_commit()
            self.draft_tokens([False] * 4)
        while self.blocks:
            self.receive_block()
        assert self.mailbox == [self.truth(len(self.tokens) + i) for i in range(self.CREDIT)]


TestStateFollowsNaiveModel = StateFollowsNaiveModel.TestCase
TestConversationStaysInStep = ConversationStaysInStep.TestCase
TestStateFollowsNaiveModel.settings = TestConversationStaysInStep.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)


def test_drafting_stops_at_a_stop_token() -> None:
    state = attached([1, 2])
    state.extend([3, STOP, 4])
    assert state.token_ids == [1, 2, 3, STOP]
    assert state.num_wanted == 0


def test_a_prompt_may_end_with_a_stop_token() -> None:
    assert attached([1, STOP]).num_wanted == 4


def test_end_of_sequence_tokens_are_drafted_past_when_the_request_ignores_them() -> None:
    limits = Limits(10, 1000, 1000, 6, frozenset({7}))
    heeding = attached([1], limits=limits)
    ignoring = attached([1], limits=limits, params=SamplingParams(ignore_eos=True))
    for state in (heeding, ignoring):
        state.extend([7, 1])
    assert heeding.token_ids == [1, 7]
    assert ignoring.token_ids == [1, 7, 1]


def test_nothing_is_drafted_beyond_the_last_token_of_the_answer() -> None:
    state = attached([1, 2, 3], num_prompt_tokens=2, params=SamplingParams(max_tokens=3))
    assert state.num_wanted == 2


def test_nothing_is_drafted_beyond_either_context() -> None:
    assert attached([1, 2], limits=Limits(10, 3, 100, 6, frozenset())).num_wanted == 1
    assert attached([1, 2], limits=Limits(10, 100, 4, 6, frozenset())).num_wanted == 2


def test_no_credit_is_rest_until_there_is_some() -> None:
    state = attached([1], max_draft_tokens=0)
    assert state.num_wanted == 0
    state.commit(commit(1, 0, [2], credit=3))
    assert state.num_wanted == 3


def test_a_drafter_with_nothing_to_add_is_asked_again_after_a_commit() -> None:
    state = attached([1])
    state.rest()
    assert state.num_wanted == 0
    state.commit(commit(1, 0, [2]))
    assert state.num_wanted == 4


def test_credit_is_bounded_by_what_the_drafter_may_run_ahead() -> None:
    state = attached([1], max_draft_tokens=100)
    assert state.num_wanted == LIMITS.max_draft_tokens


def test_a_draft_that_a_new_epoch_bears_out_is_sent_again() -> None:
    state = attached([1])
    state.extend([2, 3, 4])
    send(state)
    state.commit(commit(1, 1, [3], epoch=2))
    block = send(state)
    assert block is not None
    assert (block.epoch, block.base_position, list(block.token_ids)) == (2, 3, [4])


def test_after_a_contradiction_unseen_by_the_verifier_blocks_wait_for_its_word() -> None:
    state = attached([1])
    state.extend([2, 3])
    send(state)
    state.commit(commit(1, 0, [5]))
    state.extend([6])
    assert send(state) is None
    state.commit(commit(2, 0, [], epoch=2))
    block = send(state)
    assert block is not None
    assert (block.epoch, block.base_position, list(block.token_ids)) == (2, 2, [6])


def test_a_sequence_longer_than_the_context_is_lost() -> None:
    lost = attach([1] * 61)
    assert lost == Lost(1, 1, LostReason.CONTEXT)


def test_under_rejection_nothing_drawn_before_a_new_epoch_goes_out_again() -> None:
    state = attached([1], params=SamplingParams(mode=SamplingMode.REJECTION))
    state.extend([2, 3, 4])
    assert send(state)
    # The same token as ours, but from another draw: what followed it met other coins.
    assert state.commit(commit(1, 0, [2], epoch=2)) == 2
    assert (state.num_drafted, state.run_start) == (0, 2)
    assert send(state) is None


def test_an_empty_block_says_once_that_there_is_nothing_until_the_next_commit() -> None:
    state = attached([1])
    assert send(state) is None
    state.rest()
    block = send(state)
    assert block is not None
    assert (list(block.token_ids), block.base_position, block.epoch) == ([], 1, 1)
    assert send(state) is None
    state.commit(commit(1, 0, [5], epoch=2))
    assert send(state) is None
    state.rest()
    assert send(state) is not None


def test_a_draft_that_ran_out_is_no_empty_hand() -> None:
    state = attached([1])
    state.extend([2])
    assert send(state)
    state.rest()
    assert send(state) is None


def test_under_rejection_an_agreeing_commit_goes_on_with_the_run_of_draws() -> None:
    state = attached([1], params=SamplingParams(mode=SamplingMode.REJECTION))
    state.extend([2, 3, 4])
    send(state)
    state.commit(commit(1, 2, []))
    assert (state.token_ids, state.run_start) == ([1, 2, 3, 4], 1)
    state.commit(commit(3, 0, [9], epoch=2))
    assert state.run_start == 4


def test_a_block_carries_what_its_own_tokens_were_sampled_from() -> None:
    state = attached([1])
    state.extend([2, 3])
    send(state)
    state.extend([4, 5])
    block = state.take_block(
        TokenSource.RANDOM, 0, lambda start, end: [([i], [1]) for i in range(start, end)]
    )
    assert block is not None
    assert block.distributions == [([3], [1]), ([4], [1])]
