"""A self-check that passed spares the next one only where nothing has changed."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from tiny import save_tiny_llama

from paceline.model import remembered
from paceline.model.load import load_model
from paceline.model.numerics import NotExact, make_exact
from paceline.model.remembered import key, make_exact_once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def checks(monkeypatch):
    """How often the check ran in full."""
    calls = []

    def counted(model):
        calls.append(model)
        return make_exact(model)

    monkeypatch.setattr(remembered, "make_exact", counted)
    return calls


def opened(folder, **settings):
    return load_model(
        str(folder), dtype="float32", max_sequences=2, kv_tokens=512, numerics="fast", **settings
    )


def test_a_pass_is_found_again_and_makes_the_same_shapes(folder, checks, tmp_path):
    first, second = opened(folder), opened(folder)
    found = make_exact_once(first, tmp_path)
    assert make_exact_once(second, tmp_path) == found
    assert len(checks) == 1
    assert second.numerics == "exact"
    assert second.linear_rows == first.linear_rows
    assert second.attention.shape == first.attention.shape


def test_other_bits_than_after_the_check_mean_a_full_check(folder, checks, tmp_path):
    make_exact_once(opened(folder), tmp_path)
    model = opened(folder)
    with torch.no_grad():
        model._model.get_input_embeddings().weight.mul_(1.001)
    make_exact_once(model, tmp_path)
    assert len(checks) == 2


def test_an_unreadable_record_means_a_full_check(folder, checks, tmp_path):
    make_exact_once(opened(folder), tmp_path)
    (file,) = tmp_path.iterdir()
    for content in ("", "{", "[]", "{}", json.dumps({"finding": {"attention": {}}, "probe": ""})):
        file.write_text(content)
        make_exact_once(opened(folder), tmp_path)
    assert len(checks) == 6


def test_what_did_not_pass_is_never_kept(folder, monkeypatch, tmp_path):
    def refuse(model):
        raise NotExact("no shape")

    monkeypatch.setattr(remembered, "make_exact", refuse)
    for _ in range(2):
        model = opened(folder)
        with pytest.raises(NotExact):
            make_exact_once(model, tmp_path)
        assert model.numerics == "fast"
    assert not list(tmp_path.iterdir())


def test_the_key_names_everything_that_the_check_depends_on(folder, monkeypatch, tmp_path):
    model = opened(folder)
    keys = [key(model, {}), key(opened(folder, max_context=96), {})]
    assert key(opened(folder), {"HOME": "elsewhere"}) == keys[0]
    keys.append(key(model, {"ONEDNN_MAX_CPU_ISA": "AVX2"}))
    keys.append(key(opened(save_tiny_llama(tmp_path / "other", seed=1)), {}))
    for where, name, other in (
        (torch, "__version__", "9.9"),
        (torch, "get_num_threads", lambda: 77),
        (torch.backends.cpu, "get_cpu_capability", lambda: "NONE"),
        (os, "cpu_count", lambda: 77),
        (remembered, "processor", lambda: "another"),
        (remembered, "_code", lambda: "edited"),
        (model, "is_compiled", True),
        (model.attention, "_kernel", SimpleNamespace(name="another")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, other)
            keys.append(key(model, {}))
    assert len(set(keys)) == len(keys)
