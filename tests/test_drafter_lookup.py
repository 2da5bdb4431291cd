"""The prompt lookup as a drafter follows its sequence through every commit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.lookup import PromptLookupDrafter
from drafter_service.state import DraftState, open_state
from drafter_service.updates import Attach, Commit, Limits
from paceline.lookup.prompt_lookup import PromptLookup
from paceline.params import SamplingParams
from paceline.rounds import TokenSource

LIMITS = Limits(
    vocab_size=10, max_length=1000, max_context=1000, max_draft_tokens=8, eos_token_ids=frozenset()
)
ids = st.lists(st.integers(0, 1), max_size=4)


@settings(deadline=None)
@given(
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=8),
    commits=st.lists(
        st.tuples(st.integers(0, 8), ids, st.booleans(), st.integers(1, 8)), max_size=8
    ),
)
def test_it_proposes_what_a_fresh_index_of_the_same_tokens_would(
    prompt: list[int], commits: list[tuple[int, list[int], bool, int]]
) -> None:
    drafter = PromptLookupDrafter()
    state = open_state(Attach(1, 1, prompt, 1, SamplingParams(), 0, 8, 1), LIMITS)
    assert isinstance(state, DraftState)
    drafter.attach(state)
    for num_agreed, token_ids, raises_epoch, credit in commits:
        if state.num_wanted:
            fresh = PromptLookup()
            fresh.append(state.token_ids)
            [proposed] = drafter.extend([state])
            assert (proposed or []) == fresh.propose(state.num_wanted)
            state.extend(proposed or [])
        state.take_block(TokenSource.PROMPT_LOOKUP, 0)
        agreed = min(num_agreed, state.num_sent)
        epoch = state.epoch + raises_epoch
        kept = state.commit(
            Commit(1, epoch, state.num_committed, agreed, token_ids, credit, round=2)
        )
        assert isinstance(kept, int)
        drafter.rollback(state, kept)
