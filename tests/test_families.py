"""Other architectures through the same engine: logits are transformers' own, compiled or not."""

import random

import pytest
import torch
from tiny import VOCAB_SIZE
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.model.engine import Identity, LanguageModel, Rows
from paceline.model.numerics import make_exact

COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 40},
    "gemma": {},
    "gemma3_text": {"sliding_window": 40, "query_pre_attn_scalar": 8},
    "phi": {},
    "phi3": {},
    "gpt_neox": {},
    "gpt2": {"n_positions": 256},
}


def tiny_model(family, **settings):
    torch.manual_seed(0)
    known = {**COMMON, **FAMILIES.get(family, {}), **settings}
    if family.startswith("gpt"):
        # They have one key head per query head, and no such setting.
        del known["num_key_value_heads"]
    config = AutoConfig.for_model(family, **known)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def wrapped(model):
    identity = Identity("tiny", "", "", VOCAB_SIZE, 256, frozenset())
    return LanguageModel(model, identity, max_sequences=3)


def logits_of(model, token_ids, cuts):
    cache, parts, start = model.new_cache(), [], 0
    for end in (*cuts, len(token_ids)):
        parts.append(model.forward([Rows(cache, token_ids[start:end], end - start)]))
        start = end
    cache.free()
    return torch.cat(parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gives_transformers_own_logits(family, tmp_path):
    model = tiny_model(family)
    token_ids = random.Random(1).choices(range(1, VOCAB_SIZE), k=110)
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0].clone()
    ours = wrapped(model)
    make_exact(ours)
    torch.testing.assert_close(
        logits_of(ours, token_ids, (5, 6, 64, 100)), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_family_gives_the_same_or_says_that_it_is_not_compiled(family, tmp_path):
    model = tiny_model(family)
    token_ids = random.Random(1).choices(range(1, VOCAB_SIZE), k=110)
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0].clone()
    ours = wrapped(model)
    ours.compile(tmp_path)
    make_exact(ours)
    torch.testing.assert_close(
        logits_of(ours, token_ids, (5, 6, 64, 100)), expected, rtol=1e-3, atol=1e-4
    )
    if family in {"llama", "qwen3", "mistral"}:
        assert ours.is_compiled


def test_soft_capped_attention_is_refused_by_name():
    model = wrapped(tiny_model("gemma2", attn_logit_softcapping=50.0, query_pre_attn_scalar=8))
    with pytest.raises(ValueError, match="soft-capped"):
        logits_of(model, [1, 2, 3], ())
