"""Lookahead: the same tokens in fewer rounds, from nothing but the target's own rows."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TableModel

from paceline.lookup.lookahead import WINDOW, Lookahead
from paceline.lookup.luck import Luck
from paceline.lookup.recycling import Top
from paceline.lookup.thoughts import Thoughts
from paceline.lookup.trie import Tree
from paceline.model.attention import Layout
from paceline.model.cache import BLOCK_TOKENS, BlockStore, KvShape
from paceline.params import SamplingParams
from paceline.rounds import TokenSource
from paceline.sampling import Chooser, SamplingState, top_tokens, verify
from verifier_service.sources import LOOKAHEAD, Chain, Sources, Stores

MODEL = TableModel()
CHOOSER = Chooser(MODEL.vocab_size)
PROMPT = [0, 3, 1]
LENGTH = 60
ROWS = 12


def logits_after(last):
    return MODEL.next_probs(last).clamp_min(1e-9).log().float()


def thought(rows):
    return [Top(*top) for top in top_tokens(rows, MODEL.vocab_size)]


def decoded(temperature, seed, max_rows=ROWS):
    """(tokens, rounds) of an answer of the table model, drafted by lookahead alone."""
    params = SamplingParams(temperature=temperature)
    state = SamplingState(params, seed, PROMPT, vocab_size=MODEL.vocab_size)
    token_ids = list(PROMPT)
    sources = Sources(
        [LOOKAHEAD],
        Stores(),
        prompt=PROMPT,
        token_ids=token_ids,
        params=params,
        seed=seed,
        branch_block=BLOCK_TOKENS,
    )
    rounds = 0
    while (left := LENGTH - len(state.output)) > 0:
        tree = sources.draft(Chain(), left - 1, max_rows - 1)
        assert len(tree) < max_rows
        rows = torch.stack([logits_after(i) for i in (token_ids[-1], *tree.token_ids)])
        verdict = verify(CHOOSER, rows, tree.token_ids, state, parents=tree.parents)
        token_ids += verdict.token_ids
        thoughts = Thoughts(tree.token_ids, tree.parents, tree.sources, thought(rows))
        sources.committed(verdict.token_ids, thoughts)
        rounds += 1
    return token_ids, rounds


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_the_window_gives_the_text_of_plain_decoding_in_fewer_rounds(temperature):
    total = 0
    for seed in range(6):
        plain, num_plain = decoded(temperature, seed, max_rows=1)
        assert num_plain == LENGTH
        token_ids, rounds = decoded(temperature, seed)
        assert token_ids == plain
        assert decoded(temperature, seed) == (token_ids, rounds)
        total += rounds
    assert total < 6 * LENGTH / 1.25


def random_tree(rng, size):
    """As a trie lays it out: distinct children, depth first."""
    tree = Tree()
    stack = [(-1, 0)]
    while stack and len(tree) < size:
        parent, depth = stack.pop()
        for token_id in rng.sample(range(4), rng.randint(0, 2)):
            if len(tree) == size or depth > 4:
                break
            tree.token_ids.append(token_id)
            tree.parents.append(parent)
            tree.sources.append(TokenSource.RECYCLED)
            tree.probabilities.append(0.5)
            stack.append((len(tree) - 1, depth + 1))
    return tree


def edges(tree):
    return set(zip(tree.parents, tree.token_ids, strict=True))


@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 3 * BLOCK_TOKENS),
    size=st.integers(0, 12),
    max_rows=st.integers(0, 12),
    max_depth=st.integers(0, 10),
)
def test_a_grafted_window_keeps_the_tree_and_fits_the_attention(
    seed, length, size, max_rows, max_depth
):
    rng = random.Random(seed)
    token_ids = [rng.randrange(4) for _ in range(length)]
    lookahead = Lookahead(token_ids, None, seed)
    tree = random_tree(rng, size if rng.random() < 0.5 else 0)
    if not tree.token_ids:
        # A chain, which shares some of the window.
        same = lookahead.window[: rng.randint(0, WINDOW)]
        tree = Tree(same, list(range(-1, len(same) - 1)), [TokenSource.RECYCLED] * len(same))
        tree.probabilities.extend([0.5] * len(same))
    grafted = lookahead.graft(tree, max_rows, max_depth, BLOCK_TOKENS)
    assert grafted.token_ids[: len(tree)] == tree.token_ids
    assert grafted.parents[: len(tree)] == tree.parents
    assert len(grafted) - len(tree) <= max_rows
    assert len(edges(grafted)) == len(grafted)
    assert {len(grafted.sources), len(grafted.probabilities)} == {len(grafted)}
    # What was added is the window's path, as deep as is allowed.
    node, depth = -1, 0
    while depth < WINDOW and (node, lookahead.window[depth]) in edges(grafted):
        node = index_of(grafted, node, lookahead.window[depth])
        depth += 1
    if len(grafted) > len(tree):
        assert node == len(grafted) - 1
        assert depth <= max_depth
    if fits(tree, length):
        assert fits(grafted, length)


def index_of(tree, parent, token_id):
    return list(zip(tree.parents, tree.token_ids, strict=True)).index((parent, token_id))


def fits(tree, length):
    """Whether the attention takes it: it refuses side branches that go on beyond their block."""
    store = BlockStore(
        KvShape(num_layers=1, num_heads=1, key_dim=1, value_dim=1),
        num_blocks=8,
        max_sequences=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cache = store.open()
    cache.reserve(length - 1)
    cache.length = length - 1
    try:
        Layout().add(cache, 1 + len(tree), tree.parents)
    except ValueError:
        return False
    return True


def round_of_window(lookahead, token_ids, tops, new):
    """One round in which the whole window ran, and `new` was committed."""
    size = len(lookahead.window)
    thoughts = Thoughts(
        list(lookahead.window), range(-1, size - 1), [TokenSource.LOOKAHEAD] * size, tops
    )
    token_ids += new
    lookahead.learn(len(new), thoughts)


def test_what_a_row_chose_is_the_next_guess_at_the_position_after():
    token_ids = [5, 6]
    lookahead = Lookahead(token_ids, None, 0, window=4)
    tops = [Top([100 + row, 9], [-0.1, -3.0]) for row in range(5)]
    round_of_window(lookahead, token_ids, tops, [100])
    assert lookahead.window == [101, 102, 103, 104]


def test_above_temperature_0_the_noise_of_the_position_chooses():
    token_ids, luck = [5, 6], Luck(3, 0.8)
    lookahead = Lookahead(token_ids, luck, 0, window=4)
    tops = [Top([100, 101], [-0.7, -0.7]) for _ in range(5)]
    round_of_window(lookahead, token_ids, tops, [100])
    lucky = [min((100, 101), key=lambda i: luck.exponential(p, i)) for p in range(3, 7)]
    assert lookahead.window == lucky
    assert len(set(lucky)) == 2


def test_guesses_that_were_not_computed_stay():
    token_ids = [5, 6]
    lookahead = Lookahead(token_ids, None, 0, window=4)
    before = list(lookahead.window)
    token_ids.append(7)
    lookahead.learn(1, Thoughts([], [], [], [Top([7], [0.0])]))
    assert lookahead.window[:3] == before[1:]


def test_the_pool_remembers_every_row_of_a_tree():
    token_ids = [5, 6]
    lookahead = Lookahead(token_ids, None, 0)
    sources = [TokenSource.LOOKAHEAD] * 3
    tops = [Top([100 + row], [0.0]) for row in range(4)]
    token_ids.append(100)
    lookahead.learn(1, Thoughts([7, 8, 9], [-1, 0, -1], sources, tops))
    for row, path in enumerate([(5, 6), (6, 7), (7, 8), (6, 9)]):
        (guess,) = lookahead.guesses.guesses(path, 3)
        assert (guess.token_id, guess.source) == (100 + row, TokenSource.LOOKAHEAD)


def test_rows_that_are_not_finite_are_not_remembered():
    token_ids, nan = [5, 6], float("nan")
    lookahead = Lookahead(token_ids, Luck(1, 1.0), 0, window=3)
    window = list(lookahead.window)
    round_of_window(lookahead, token_ids, [Top([8, 9], [nan, nan])] * 4, [8])
    assert lookahead.guesses.guesses((6, window[0]), 3) == []
    assert len(lookahead.window) == 3


def test_a_window_that_gives_nothing_loses_its_credit():
    token_ids = [5, 6]
    lookahead = Lookahead(token_ids, None, 0)
    first = lookahead.credit
    for _ in range(200):
        size = len(lookahead.window)
        round_of_window(lookahead, token_ids, [Top([9], [0.0])] * (size + 1), [1])
    assert lookahead.credit < first / 3
