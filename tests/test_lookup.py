"""Prompt lookup against a reference that reads the whole sequence each time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline.lookup.prompt_lookup import MAX_NGRAM, MIN_NGRAM, PromptLookup

# Few different ids, so that n-grams return often.
token_ids = st.lists(st.integers(0, 3), max_size=12)


def reference(known: list[int], max_tokens: int) -> list[int]:
    for size in range(MAX_NGRAM, MIN_NGRAM - 1, -1):
        for end in range(len(known) - 1, size - 1, -1):
            if known[end - size : end] == known[len(known) - size :]:
                continued = list(known)
                for offset in range(max_tokens):
                    continued.append(continued[end + offset])
                return continued[len(known) :]
    return []


class LookupFollowsTheReference(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lookup = PromptLookup()
        self.known: list[int] = []

    @rule(added=token_ids)
    def append(self, added: list[int]) -> None:
        self.lookup.append(added)
        self.known += added

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.known)))
        self.lookup.rollback(length)
        del self.known[length:]

    @rule(max_tokens=st.integers(1, 10))
    def draft_on(self, max_tokens: int) -> None:
        """A drafter appends its own proposal before it knows whether it stands."""
        proposed = self.lookup.propose(max_tokens)
        self.lookup.append(proposed)
        self.known += proposed

    @invariant()
    def proposes_what_the_reference_proposes(self) -> None:
        assert len(self.lookup) == len(self.known)
        for max_tokens in (0, 1, 5, 20):
            assert self.lookup.propose(max_tokens) == reference(self.known, max_tokens)


TestLookupFollowsTheReference = LookupFollowsTheReference.TestCase
TestLookupFollowsTheReference.settings = settings(max_examples=60, deadline=None)


@settings(deadline=None)
@given(kept=token_ids, dropped=token_ids)
def test_a_rolled_back_index_equals_one_that_never_saw_the_tokens(
    kept: list[int], dropped: list[int]
) -> None:
    lookup, fresh = PromptLookup(), PromptLookup()
    lookup.append(kept + dropped)
    lookup.rollback(len(kept))
    fresh.append(kept)
    assert vars(lookup) == vars(fresh)


def test_the_most_recent_of_equally_long_matches_is_copied() -> None:
    lookup = PromptLookup()
    lookup.append([1, 2, 7, 7, 1, 2, 8, 8, 1, 2])
    assert lookup.propose(2) == [8, 8]


def test_a_longer_match_is_preferred_to_a_more_recent_one() -> None:
    lookup = PromptLookup()
    lookup.append([3, 1, 2, 7, 9, 1, 2, 8, 3, 1, 2])
    assert lookup.propose(1) == [7]


def test_repeating_text_drafts_as_long_as_wanted() -> None:
    lookup = PromptLookup()
    lookup.append([9, 1, 2, 3, 1, 2, 3])
    assert lookup.propose(7) == [1, 2, 3, 1, 2, 3, 1]


def test_a_single_repeated_token_is_no_match() -> None:
    lookup = PromptLookup()
    lookup.append([5, 1, 6, 2, 5])
    assert lookup.propose(4) == []


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="n-grams from 3 to 2"):
        PromptLookup(max_ngram=2, min_ngram=3)
    lookup = PromptLookup()
    lookup.append([1, 2])
    with pytest.raises(ValueError, match="cannot roll back 2 tokens to 3"):
        lookup.rollback(3)
