"""The trie: merged, prefix-closed, within its budget, likeliest first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lookup.confidence import Confidences
from paceline.lookup.guesses import Guess
from paceline.lookup.trie import Trie
from paceline.rounds import TokenSource

POSITION = 90
BLOCK = 32


class Table:
    """Guesses by path, written down."""

    def __init__(self, source, guesses):
        self.source, self.by_path = source, guesses

    def root(self):
        return ()

    def step(self, state, token_id):
        return (*state, token_id)

    def guesses(self, state, position):
        assert position == POSITION + len(state)
        return [
            Guess(token_id, self.source, (self.source.name, level))
            for token_id, level in self.by_path.get(state, {}).items()
        ]


LEVELS = {
    (source.name, level): level / 10
    for source in (TokenSource.RECYCLED, TokenSource.PROMPT_LOOKUP)
    for level in range(1, 10)
}


def trie(*tables, max_depth=4, position=POSITION):
    return Trie(
        tables, Confidences(LEVELS), position=position, max_depth=max_depth, branch_block=BLOCK
    )


def edges(tree):
    """{path: (source, probability)}, and every parent comes before its children."""
    paths = {-1: ()}
    found = {}
    for index, parent in enumerate(tree.parents):
        assert parent < index
        paths[index] = (*paths[parent], tree.token_ids[index])
        assert paths[index] not in found, "a path stands in the tree once"
        found[paths[index]] = (tree.sources[index], tree.probabilities[index])
    return found


tables = st.dictionaries(
    st.lists(st.integers(0, 2), max_size=3).map(tuple),
    st.dictionaries(st.integers(0, 2), st.integers(1, 9), max_size=3),
    max_size=12,
)


def all_paths(first, second, max_depth):
    """Every path that some source guesses, with its probability, by brute force."""
    found = {(): 1.0}
    for depth in range(max_depth):
        for path in [p for p in found if len(p) == depth]:
            for token_id in range(3):
                levels = [t[path][token_id] for t in (first, second) if token_id in t.get(path, {})]
                if levels:
                    found[(*path, token_id)] = found[path] * max(levels) / 10
    del found[()]
    return found


@settings(deadline=None)
@given(tables, tables, st.integers(0, 20), st.sampled_from([0.0, 0.05, 0.3]))
def test_the_likeliest_nodes_are_picked_with_their_parents(first, second, budget, bound):
    # Far from the end of a block, so that no side branch is cut.
    lookups = [Table(TokenSource.RECYCLED, first), Table(TokenSource.PROMPT_LOOKUP, second)]
    picked = edges(trie(*lookups, position=POSITION).pick(budget, bound))
    truth = {p: q for p, q in all_paths(first, second, 4).items() if q > bound}
    assert len(picked) == min(budget, len(truth))
    for path, (_, probability) in picked.items():
        assert probability == pytest.approx(truth[path])
        assert len(path) == 1 or path[:-1] in picked
    least = min((q for _, q in picked.values()), default=1.0)
    left_out = [q for p, q in truth.items() if p not in picked]
    assert all(q <= least + 1e-12 for q in left_out)


@settings(deadline=None)
@given(tables, st.integers(0, 20), st.integers(0, 20))
def test_a_smaller_pick_is_the_beginning_of_a_larger_one(table, few, many):
    grown = trie(Table(TokenSource.RECYCLED, table))
    large = edges(grown.pick(max(few, many)))
    small = edges(grown.pick(min(few, many)))
    fresh = edges(trie(Table(TokenSource.RECYCLED, table)).pick(min(few, many)))
    assert small == fresh
    assert small.items() <= large.items()


def test_a_token_that_two_sources_guess_is_one_node_of_the_surer_one():
    tree = trie(
        Table(TokenSource.RECYCLED, {(): {7: 3, 8: 2}}),
        Table(TokenSource.PROMPT_LOOKUP, {(): {7: 6}}),
    ).pick(9)
    assert tree.token_ids == [7, 8]
    assert tree.sources == [TokenSource.PROMPT_LOOKUP, TokenSource.RECYCLED]
    assert tree.probabilities == pytest.approx([0.6, 0.2])
    assert tree.expected == pytest.approx(0.8)


def test_the_likeliest_chain_stands_first():
    table = {(): {1: 9, 2: 5}, (1,): {3: 8}, (1, 3): {4: 7}, (2,): {5: 4}}
    tree = trie(Table(TokenSource.RECYCLED, table)).pick(9)
    assert tree.token_ids == [1, 3, 4, 2, 5]
    assert tree.parents == [-1, 0, 1, -1, 3]


@settings(deadline=None)
@given(tables, st.integers(0, 40), st.integers(1, 20))
def test_no_side_branch_goes_on_beyond_the_block_it_began_in(table, shift, budget):
    class Anywhere(Table):
        def guesses(self, state, position):
            return super().guesses(state, POSITION + len(state))

    position = POSITION + shift
    source = Anywhere(TokenSource.RECYCLED, table)
    tree = trie(source, position=position).pick(budget)
    main = next((i for i, p in enumerate(tree.parents) if p != i - 1), len(tree))
    depths, left = {-1: 0}, {-1: None}
    for index, parent in enumerate(tree.parents):
        depths[index] = depths[parent] + 1
        at = position + depths[parent]
        left[index] = left[parent]
        if index >= main and left[index] is None:
            left[index] = at
        assert left[index] is None or left[index] // BLOCK == at // BLOCK


@settings(deadline=None)
@given(tables, st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_every_guess_along_the_text_is_learnt_from_once(table, text):
    known = Confidences(LEVELS)
    source = Table(TokenSource.RECYCLED, table)
    grown = Trie([source], known, position=POSITION, max_depth=4, branch_block=BLOCK)
    grown.pick(99)
    expected = Confidences(LEVELS)
    for depth, token_id in enumerate(text):
        path = tuple(text[:depth])
        if depth and path not in edges(grown.pick(99)):
            break
        for guessed, level in (table.get(path, {}) if depth < 4 else {}).items():
            expected.learn(("RECYCLED", level), right=guessed == token_id)
    grown.learn(text)
    for level in range(1, 10):
        assert known["RECYCLED", level] == pytest.approx(expected["RECYCLED", level])


def test_confidence_starts_at_its_prior_and_follows_what_happens():
    known = Confidences({("a", 1): 0.8})
    assert known["a", 1] == 0.8
    for _ in range(200):
        known.learn(("a", 1), right=False)
    assert known["a", 1] < 0.05
    for _ in range(200):
        known.learn(("a", 1), right=True)
    assert known["a", 1] > 0.95
    assert known["never", 0] == pytest.approx(0.1)


def test_an_answer_starts_at_what_others_like_it_have_seen_and_goes_its_own_way():
    shared = Confidences({("a", 1): 0.8})
    for _ in range(400):
        shared.of_one().learn(("a", 1), right=False)
    lucky, other = shared.of_one(), shared.of_one()
    assert lucky["a", 1] == shared["a", 1] < 0.05
    for _ in range(20):
        lucky.learn(("a", 1), right=True)
    assert lucky["a", 1] > 0.4
    assert other["a", 1] == shared["a", 1] < lucky["a", 1]


def test_guesses_that_look_better_than_they_are_are_trusted_less_by_all_that_share():
    shared = Confidences(LEVELS)
    vain, new = shared.of_one(), shared.of_one()
    assert vain.trust == 1.0
    for _ in range(40):
        vain.tested(0.5, right=False)
    assert vain.trust < new.trust < 0.5
    for _ in range(200):
        new.tested(0.5, right=True)
    assert new.trust == pytest.approx(1.2), "and none is trusted much more than it says"


def test_trust_scales_every_step_of_a_path_and_is_learnt_from_guesses_taken():
    chain = Table(TokenSource.RECYCLED, {(): {1: 5}, (1,): {2: 5}})
    known = Confidences(LEVELS)
    before = grown(chain, known).pick(2).probabilities
    known.tested(10.0, right=False)
    trust = known.trust
    assert trust == pytest.approx(0.5)
    after = grown(chain, known).pick(2).probabilities
    assert after == pytest.approx([before[0] * trust, before[1] * trust**2])
    # The root's guess was taken and right; what may follow it was not taken.
    learning = grown(chain, known)
    learning.pick(1)
    learning.learn([1, 0])
    assert known.trust > trust


def grown(source: Table, known: Confidences) -> Trie:
    return Trie([source], known, position=POSITION, max_depth=4, branch_block=BLOCK)


def test_nothing_guessed_is_an_empty_tree():
    nothing = trie(Table(TokenSource.RECYCLED, {}))
    assert not nothing.has_guesses
    assert len(nothing.pick(9)) == 0
