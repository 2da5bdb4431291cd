"""Past answers and recycling: against brute force, bounded, and never across tenants."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lookup.past_answers import PastAnswers, PastGuesses
from paceline.lookup.recycling import RecycledGuesses, RecyclingTable, Top
from paceline.lookup.suffix_automaton import NO_MATCH, SuffixAutomaton
from paceline.lookup.tenants import Tenants
from paceline.lookup.thoughts import Thoughts
from paceline.params import SamplingParams
from paceline.rounds import TokenSource
from verifier_service.sources import SOURCES, Chain, Sources, Stores

# Few different ids, so that everything repeats.
texts = st.lists(st.lists(st.integers(0, 2), max_size=10), max_size=6)
running = st.lists(st.integers(0, 3), max_size=12)


def occurs(text, part):
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def longest_match(known, read):
    """Length of the longest end of `read` that occurs in some text."""
    return next(
        n for n in range(len(read), -1, -1) if any(occurs(t, read[len(read) - n :]) for t in known)
    )


@settings(deadline=None, max_examples=100)
@given(texts, running, st.data())
def test_the_automaton_matches_what_brute_force_matches(known, read, data):
    """Also while texts are added under a match."""
    automaton, added = SuffixAutomaton(), []
    waiting = list(known)
    match, so_far = NO_MATCH, []
    for token_id in read:
        while waiting and data.draw(st.booleans()):
            added.append(waiting.pop(0))
            automaton.add(added[-1])
        before = longest_match(added, so_far) if added else 0
        so_far.append(token_id)
        match = automaton.step(match, token_id)
        if not waiting or before == match.length - 1:
            # A text that came under the match may hold more of what was read than was matched.
            assert match.length <= longest_match(added, so_far) if added else match.length == 0
        if len(added) == len(known) and not waiting:
            part = so_far[len(so_far) - match.length :]
            expected = Counter()
            for text in added:
                expected.update({t for t in range(4) if occurs(text, [*part, t])})
            found = dict(automaton.continuations(match, 9))
            assert found == dict(expected)


@settings(deadline=None)
@given(texts, running)
def test_a_match_from_the_start_is_the_longest(known, read):
    automaton = SuffixAutomaton()
    for text in known:
        automaton.add(text)
    match = NO_MATCH
    for end, token_id in enumerate(read, start=1):
        match = automaton.step(match, token_id)
        assert match.length == (longest_match(known, read[:end]) if known else 0)


@settings(deadline=None)
@given(texts)
def test_an_automaton_has_at_most_two_states_per_token(known):
    automaton = SuffixAutomaton()
    for text in known:
        automaton.add(text)
    assert len(automaton) <= 1 + 2 * sum(map(len, known))


def test_what_followed_in_more_answers_comes_first():
    automaton = SuffixAutomaton()
    for text in ([1, 2, 3], [1, 2, 4], [1, 2, 4, 4]):
        automaton.add(text)
    match = automaton.step(automaton.step(NO_MATCH, 1), 2)
    assert automaton.continuations(match, 9) == [(4, 2), (3, 1)]
    assert automaton.continuations(match, 1) == [(4, 2)]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=40))
def test_a_store_never_outgrows_its_bound_and_keeps_the_latest(answers):
    past = PastAnswers(max_states=200)
    for answer in answers:
        past.add([], answer)
        assert len(past) <= 200
    if answers:
        match = NO_MATCH
        for token_id in answers[-1]:
            match = past.recent.step(match, token_id)
        assert match.length == len(answers[-1])


def test_the_oldest_answers_are_forgotten():
    past = PastAnswers(max_states=200)
    for number in range(20):
        past.add([], [100 + number] * 10)
    first = [a.step(NO_MATCH, 100) for a in (past.recent, past.older)]
    assert first == [NO_MATCH, NO_MATCH]


def test_an_answer_that_is_larger_than_the_store_is_not_kept():
    past = PastAnswers(max_states=50)
    past.add([], list(range(40)))
    assert len(past) == 2


def chain_of(guesses, length):
    """The likeliest path of a source."""
    state, path = guesses.root(), []
    for _ in range(length):
        found = guesses.guesses(state, 0)
        if not found:
            break
        path.append(found[0].token_id)
        state = guesses.step(state, path[-1])
    return path


def test_a_second_answer_is_drafted_from_the_first_even_after_the_store_turned_over():
    past, token_ids = PastAnswers(max_states=120), [1, 2, 3, 4]
    past.add([1, 2, 3, 4], [5, 6, 7, 8, 9])
    guesses = PastGuesses(past, token_ids, None)
    assert chain_of(guesses, 5) == [5, 6, 7, 8, 9]
    past.add([], list(range(50, 70)))
    token_ids += [5, 6]
    past.add([], list(range(80, 90)))
    assert past.older is not None
    assert chain_of(guesses, 3) == [7, 8, 9]


def sources(stores, token_ids, *, prompt=(1, 2, 3, 4), **scope):
    return Sources(
        SOURCES,
        stores,
        prompt=list(prompt),
        token_ids=token_ids,
        params=SamplingParams(temperature=0.0),
        seed=1,
        branch_block=32,
        **scope,
    )


def answered(stores, **scope):
    """One answer, as the verifier tells of it; then what a second request would be drafted."""
    token_ids = [1, 2, 3, 4]
    first = sources(stores, token_ids, **scope)
    for token_id in (50, 51, 52, 53):
        token_ids.append(token_id)
        first.committed([token_id], Thoughts([], [], [], [Top([token_id, 60], [-0.1, -3.0])]))
    first.finished()


def drafted(stores, **scope):
    again = sources(stores, [1, 2, 3, 4], **scope).trie(Chain(), 8).pick(8)
    return set(again.token_ids)


def test_a_tenant_drafts_from_its_own_answers():
    stores = Stores()
    answered(stores, tenant="a")
    assert {50, 51, 52, 53} <= drafted(stores, tenant="a")


def test_nothing_crosses_tenants():
    stores = Stores()
    answered(stores, tenant="a")
    assert drafted(stores, tenant="b") == set()
    assert drafted(stores) == set()


def test_nothing_is_kept_when_the_request_says_so():
    stores = Stores()
    answered(stores, tenant="a", keep=False)
    assert drafted(stores, tenant="a") == set()


def test_an_answer_that_did_not_finish_is_not_kept():
    stores = Stores()
    token_ids = [1, 2, 3, 4]
    first = sources(stores, token_ids, tenant="a")
    token_ids.append(50)
    first.committed([50])
    assert drafted(stores, tenant="a") == set()


def test_tenants_beyond_the_bound_are_forgotten_longest_unseen_first():
    tenants = Tenants(list, max_tenants=2)
    tenants.of("a").append(1)
    tenants.of("b").append(2)
    tenants.of("a")
    tenants.of("c")
    assert len(tenants) == 2
    assert tenants.of("a") == [1]
    assert tenants.of("b") == []


def test_a_recycling_table_forgets_what_was_not_seen_for_longest():
    table = RecyclingTable(max_contexts=4)
    for last in range(10):
        table.put(0, last, Top([last], [0.0]))
        assert len(table) <= 4
    assert table.after_one(0) is None
    assert list(table.after_two(0, 9).token_ids) == [9]


def test_two_tokens_of_context_are_better_than_one():
    table = RecyclingTable()
    table.put(1, 5, Top([10, 11], [-0.1, -2.0]))
    table.put(2, 5, Top([20, 11], [-0.1, -2.0]))
    guesses = RecycledGuesses(table, [1, 5], None)
    found = guesses.guesses(guesses.root(), 2)
    assert [guess.token_id for guess in found] == [10, 11, 20]
    assert all(guess.source is TokenSource.RECYCLED for guess in found)
    assert found[2].bucket[1] == 2


def test_a_drafters_chain_is_followed_as_far_as_it_agrees():
    chain = Chain([7, 8], [TokenSource.DRAFT_MODEL] * 2)
    state = chain.root()
    assert [guess.token_id for guess in chain.guesses(state, 0)] == [7]
    assert [guess.token_id for guess in chain.guesses(chain.step(state, 7), 1)] == [8]
    assert not chain.guesses(chain.step(state, 9), 1)
    assert not chain.guesses(chain.step(chain.step(chain.step(state, 7), 9), 8), 3)
