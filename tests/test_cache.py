"""The block store: exact accounting, shared prefixes, tenants apart, the longest unused first."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.model.cache import BLOCK_TOKENS, BlockStore, CapacityError, KvShape


def small_store(num_blocks=8, max_sequences=4):
    return BlockStore(
        KvShape(num_layers=1, num_heads=1, key_dim=2, value_dim=2),
        num_blocks=num_blocks,
        max_sequences=max_sequences,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def filled(store, token_ids, *, salt=""):
    """A sequence that has computed all its tokens and offered them."""
    cache = store.open()
    cache.adopt(token_ids, salt=salt)
    cache.reserve(len(token_ids))
    cache.length = len(token_ids)
    cache.register(token_ids)
    return cache


def ids(num_blocks, seed=0):
    return random.Random(seed).choices(range(100), k=num_blocks * BLOCK_TOKENS + 5)


def test_a_prefix_is_taken_over_while_its_first_owner_still_runs():
    store = small_store()
    first = filled(store, ids(2))
    second = filled(store, [*ids(2)[: BLOCK_TOKENS * 2], 1, 2])
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    first.free()
    assert store.blocks_used == 3
    second.free()
    assert (store.blocks_used, store.blocks_free) == (0, 8)


def test_the_last_token_always_stays_to_be_computed():
    store = small_store()
    exact = ids(2)[: 2 * BLOCK_TOKENS]
    filled(store, exact).free()
    assert store.open().adopt(exact) == BLOCK_TOKENS


def test_tenants_never_share_a_block():
    store = small_store()
    filled(store, ids(2), salt="a").free()
    assert store.open().adopt(ids(2), salt="b") == 0
    assert store.open().adopt(ids(2), salt="a") == 2 * BLOCK_TOKENS


def test_equal_blocks_behind_other_beginnings_are_not_confused():
    store = small_store()
    one, two = ids(1, seed=1)[:BLOCK_TOKENS], ids(1, seed=2)[:BLOCK_TOKENS]
    common = ids(1, seed=3)[:BLOCK_TOKENS]
    filled(store, [*one, *common, 0]).free()
    filled(store, [*two, 7]).free()
    assert store.open().adopt([*two, *common, 0]) == BLOCK_TOKENS


def test_under_pressure_the_longest_unused_goes_first_and_the_end_of_a_chain_before_its_beginning():
    store = small_store(num_blocks=6)
    filled(store, ids(2, seed=1)).free()
    filled(store, ids(2, seed=2)).free()
    hungry = store.open()
    hungry.reserve(3 * BLOCK_TOKENS)
    assert store.open().adopt(ids(2, seed=2)) == 2 * BLOCK_TOKENS
    assert store.open().adopt(ids(2, seed=1)) == BLOCK_TOKENS


def test_what_cannot_be_given_is_refused_whole():
    store = small_store(num_blocks=2)
    cache = store.open()
    with pytest.raises(CapacityError, match="3 KV blocks"):
        cache.reserve(3 * BLOCK_TOKENS)
    assert store.blocks_used == 0


def test_forgetting_makes_every_prefix_cold():
    store = small_store()
    filled(store, ids(2)).free()
    store.forget()
    assert store.open().adopt(ids(2)) == 0


actions = st.lists(
    st.tuples(st.sampled_from(["open", "grow", "rollback", "free"]), st.integers(0, 10**6)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_used_and_free_blocks_always_add_up_and_nobody_shares_what_is_not_common(steps):
    store = small_store(num_blocks=7, max_sequences=3)
    live: list[tuple[object, list[int]]] = []
    for action, number in steps:
        chance = random.Random(number)
        if action == "open" and store.num_live < 3:
            tokens = ids(chance.randint(0, 2), seed=chance.randint(0, 2))
            cache = store.open()
            cache.adopt(tokens)
            live.append((cache, tokens))
        elif live and action == "grow":
            cache, tokens = chance.choice(live)
            end = max(len(tokens), cache.length) + chance.randint(0, 40)
            tokens += chance.choices(range(100), k=end - len(tokens))
            try:
                cache.reserve(end)
            except CapacityError:
                continue
            cache.length = end
            cache.register(tokens)
        elif live and action == "rollback":
            cache, tokens = chance.choice(live)
            least = cache.num_registered * BLOCK_TOKENS
            cache.rollback(chance.randint(least, max(least, cache.length)))
            del tokens[cache.length :]
        elif live and action == "free":
            cache, _ = live.pop(chance.randrange(len(live)))
            cache.free()
        assert store.blocks_used + store.blocks_free == store.blocks_total
        used = {block for cache, _ in live for block in cache.blocks}
        assert len(used) == store.blocks_used
        for cache, tokens in live:
            for other, others in live:
                if cache is other:
                    continue
                for place, block in enumerate(cache.blocks):
                    if block in other.blocks:
                        end = (place + 1) * BLOCK_TOKENS
                        assert other.blocks.index(block) == place
                        assert tokens[:end] == others[:end]
    for cache, _ in live:
        cache.free()
    assert store.blocks_free == store.blocks_total
