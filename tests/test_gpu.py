"""The same engine on CUDA: rows independent of their company, trees, and the CPU's own logits."""

import random

import pytest
import torch
from tiny import VOCAB_SIZE, save_tiny_llama

from paceline.model.engine import Rows
from paceline.model.load import load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, dtype="float32", max_sequences=4, device="cuda")


def logits_of(model, token_ids, cuts=()):
    cache, parts, start = model.new_cache(), [], 0
    for end in (*cuts, len(token_ids)):
        parts.append(model.forward([Rows(cache, token_ids[start:end], end - start)]).cpu())
        start = end
    cache.free()
    return torch.cat(parts)


def some_ids(count, seed=0):
    return random.Random(seed).choices(range(VOCAB_SIZE), k=count)


def test_the_self_check_passes_on_the_device(model):
    assert model.numerics == "exact"
    assert model.device.type == "cuda"


def test_logits_are_the_cpus_own(model, folder):
    on_cpu = load_model(folder, dtype="float32", max_sequences=1)
    expected = logits_of(on_cpu, some_ids(90))
    torch.testing.assert_close(logits_of(model, some_ids(90)), expected, rtol=1e-3, atol=1e-3)


def test_logits_are_the_same_bits_however_a_sequence_is_cut(model):
    whole = logits_of(model, some_ids(100))
    for cuts in ((1,), (31, 33), (50, 51, 52)):
        assert torch.equal(logits_of(model, some_ids(100), cuts), whole)


def test_a_side_branch_has_the_bits_of_plain_decoding(model):
    prompt, drafts = some_ids(70, seed=1), some_ids(4, seed=2)
    cache = model.new_cache()
    model.forward([Rows(cache, prompt[:-1], 0)])
    tree = model.forward([Rows(cache, [prompt[-1], *drafts], 5, (-1, 0, -1, 2))]).cpu()
    plain = logits_of(model, [*prompt, drafts[2], drafts[3]])
    assert torch.equal(tree[3:], plain[-2:])
    cache.keep(len(prompt), [2, 3])
    more = model.forward([Rows(cache, some_ids(9), 9)]).cpu()
    assert torch.equal(more, logits_of(model, [*prompt, drafts[2], drafts[3], *some_ids(9)])[-9:])
    cache.free()
