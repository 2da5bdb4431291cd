"""The engine: cache accounting, rollback, and logits that never depend on their company."""

import json
import random

import pytest
import torch
from tiny import VOCAB_SIZE, save_tiny_llama
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers import Qwen3ForCausalLM as Qwen3

from paceline.model.cache import BLOCK_TOKENS, CapacityError
from paceline.model.engine import Identity, LanguageModel, Rows
from paceline.model.load import LoadError, load_model, tokenizer_fingerprint
from paceline.model.numerics import make_exact


def wrapped(model, *, max_sequences=6, max_context=256):
    identity = Identity("tiny", "", "", VOCAB_SIZE, max_context, frozenset())
    return LanguageModel(model, identity, max_sequences=max_sequences)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "bfloat16 without a compiler"])
def model(request, tmp_path_factory):
    folder = save_tiny_llama(tmp_path_factory.mktemp("tiny"))
    with pytest.MonkeyPatch.context() as patch:
        if "without" in request.param:
            patch.setenv("CC", "no-such-compiler")
        model = load_model(str(folder), dtype=request.param.split()[0], max_sequences=6)
    assert model.attention.is_native == ("without" not in request.param)
    return model


def run(model, token_ids, *, cuts=()):
    """Logits of every token, the sequence alone, cut at the given places."""
    cache, parts, start = model.new_cache(), [], 0
    for end in (*cuts, len(token_ids)):
        parts.append(model.forward([Rows(cache, token_ids[start:end], end - start)]))
        start = end
    cache.free()
    return torch.cat(parts)


def some_ids(count, seed=0):
    return random.Random(seed).choices(range(VOCAB_SIZE), k=count)


@pytest.mark.parametrize("dtype", ["float32"])
def test_logits_equal_transformers_own(tmp_path, dtype):
    folder = save_tiny_llama(tmp_path)
    ours = load_model(str(folder), dtype=dtype, numerics="fast")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    token_ids = some_ids(50)
    with torch.inference_mode():
        expected = theirs(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(run(ours, token_ids, cuts=(7, 30)), expected, rtol=1e-4, atol=1e-4)


def test_a_models_self_check_passes_and_says_so(model):
    assert model.numerics == "exact"
    assert model.store.num_live == 0


def test_logits_are_the_same_bits_however_a_sequence_is_cut(model):
    token_ids = some_ids(120)
    whole = run(model, token_ids)
    for seed in range(6):
        cuts = sorted(random.Random(seed).sample(range(1, 120), seed * 5))
        assert torch.equal(run(model, token_ids, cuts=cuts), whole)


def test_logits_are_the_same_bits_in_any_company(model):
    """Ragged blocks of several sequences that come and go, against each alone."""
    rng = random.Random(3)
    sequences = [some_ids(length, seed=length) for length in (40, 75, 110, 21, 64)]
    alone = [run(model, token_ids) for token_ids in sequences]
    caches = {}
    pending = list(range(len(sequences)))
    seen = 0
    while pending or caches:
        if pending and (not caches or rng.random() < 0.5) and len(caches) < 4:
            caches[pending.pop()] = model.new_cache()
        members = rng.sample(sorted(caches), rng.randint(1, len(caches)))
        rows = []
        for index in members:
            start = caches[index].length
            size = rng.randint(1, min(9, len(sequences[index]) - start))
            rows.append(Rows(caches[index], sequences[index][start : start + size], size))
        starts = [row.cache.length for row in rows]
        logits = torch.split(model.forward(rows), [len(row.token_ids) for row in rows])
        for index, start, part in zip(members, starts, logits, strict=True):
            assert torch.equal(part, alone[index][start : start + len(part)])
            seen += len(part)
            if caches[index].length == len(sequences[index]):
                caches.pop(index).free()
    assert seen == sum(map(len, sequences))
    assert model.store.num_live == 0


def test_after_a_rollback_nothing_of_the_draft_is_left(model):
    token_ids = some_ids(60)
    whole = run(model, token_ids)
    cache = model.new_cache()
    model.forward([Rows(cache, token_ids[:30], 1)])
    model.forward([Rows(cache, some_ids(9, seed=9), 9)])
    cache.rollback(30)
    assert torch.equal(model.forward([Rows(cache, token_ids[30:], 30)]), whole[30:])
    cache.free()


def random_tree(rng, count, length):
    """Parents of a tree: a chain first, then side branches that end with their block of 32."""
    parents, depths, lefts = [], [], []
    for index in range(count):
        parent = index - 1 if index < count // 3 else rng.randint(-1, index - 1)
        depth = 0 if parent < 0 else depths[parent] + 1
        left = lefts[parent] if parent >= 0 else None
        if left is None and depth != index:
            left = length + depth
        if left is not None and (length + depth) // BLOCK_TOKENS != left // BLOCK_TOKENS:
            parent, depth, left = -1, 0, length
        parents.append(parent)
        depths.append(depth)
        lefts.append(left)
    return parents


def path_to(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("length", [1, 20, 31, 32, 60, 95])
def test_every_path_of_a_tree_has_the_bits_of_plain_decoding(model, length):
    rng = random.Random(length)
    prompt = some_ids(length, seed=length)
    for _ in range(4):
        parents = random_tree(rng, 15, length)
        drafts = some_ids(15, seed=rng.random())
        cache, other = model.new_cache(), model.new_cache()
        model.forward([Rows(cache, prompt[:-1], 0)] if length > 1 else [Rows(other, [1], 0)])
        rows = [Rows(cache, [prompt[-1], *drafts], 16, parents), Rows(other, some_ids(3), 3)]
        logits = model.forward(rows)[:16]
        leaf = max(set(range(15)) - set(parents))
        for node in (leaf, rng.randrange(15)):
            path = path_to(parents, node)
            plain = run(model, [*prompt, *(drafts[n] for n in path)])
            assert torch.equal(logits[0], plain[length - 1])
            for place, n in enumerate(path):
                assert torch.equal(logits[1 + n], plain[length + place])
        # What is kept of the tree continues as if it had never been one.
        path = path_to(parents, leaf)
        cache.keep(length, path)
        more = some_ids(40, seed=1)
        kept = [*prompt, *(drafts[n] for n in path)]
        continued = model.forward([Rows(cache, more, 40)])
        assert torch.equal(continued, run(model, [*kept, *more])[len(kept) :])
        cache.free()
        other.free()


def test_a_side_branch_beyond_its_block_is_refused(model):
    cache = model.new_cache()
    model.forward([Rows(cache, some_ids(30), 0)])
    # The chain is positions 30 to 33, its side branch positions 31 and 32.
    with pytest.raises(ValueError, match="side branch"):
        model.forward([Rows(cache, some_ids(6), 6, (-1, 0, 1, 2, 0, 4))])
    cache.free()


def test_blocks_are_counted_exactly(model):
    store = model.store
    assert store.blocks_used == 0
    cache = model.new_cache()
    model.forward([Rows(cache, some_ids(BLOCK_TOKENS + 1), 0)])
    assert store.blocks_used == 2
    cache.rollback(BLOCK_TOKENS)
    assert store.blocks_used == 1
    cache.free()
    cache.free()
    assert store.blocks_used == 0 and store.num_live == 0


def test_one_sequence_more_than_there_are_slots_is_refused(model):
    caches = [model.new_cache() for _ in range(6)]
    with pytest.raises(CapacityError):
        model.new_cache()
    for cache in caches:
        cache.free()


def test_rows_that_are_not_finite_do_not_reach_the_next_owner_of_their_blocks(model):
    token_ids = some_ids(20)
    whole = run(model, token_ids)
    cache = model.new_cache()
    model.forward([Rows(cache, some_ids(60, seed=1), 0)])
    with torch.inference_mode():
        for block in cache.blocks:
            model.store.keys[:, block] = float("nan")
            model.store.values[:, block] = float("nan")
    cache.free()
    assert torch.equal(run(model, token_ids), whole)


def test_fp32_without_canonical_shapes_is_not_exact_by_luck():
    """The self-check must be able to fail: a layer that depends on its batch is found."""

    class Leaky(torch.nn.Module):
        def forward(self, x):
            return x * (1.0 + 1e-3 * x.shape[-2])

    model = Qwen3(
        Qwen3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
        )
    )
    model.model.norm = Leaky()
    with pytest.raises(RuntimeError, match="numerics fast"):
        make_exact(wrapped(model.eval()))


def test_a_source_that_is_not_a_model_says_so(tmp_path):
    with pytest.raises(LoadError, match="no such file"):
        load_model(str(tmp_path / "missing.gguf"))
    with pytest.raises(LoadError, match="not a folder"):
        load_model(str(tmp_path / "missing"))


def test_fingerprints_of_a_tokenizer_do_not_depend_on_formatting():
    compact = json.loads('{"model":{"vocab":{"a":0}},"added_tokens":[]}')
    spaced = json.loads('{ "added_tokens": [], "model": {"vocab": {"a": 0}} }')
    other = json.loads('{"model":{"vocab":{"b":0}},"added_tokens":[]}')
    assert tokenizer_fingerprint(compact) == tokenizer_fingerprint(spaced)
    assert tokenizer_fingerprint(compact) != tokenizer_fingerprint(other)
