"""The draft model that comes with Paceline: small, whole, and right often enough to be worth it."""

import json
from pathlib import Path

import pytest
from answers import PROMPTS
from transformers import AutoTokenizer

from paceline.distill.generation import Job, generate
from paceline.model.distilled import read_draft_vocab
from paceline.model.engine import Rows
from paceline.model.load import EMBEDDED, EMBEDDED_DRAFT, load_model, resolve

MOST_BYTES = 20_000_000
# Below what was measured (docs/distill.md), above what chance or an unlearnt layer gives.
FLOOR = 0.15
MAX_TOKENS = 48


def folder() -> Path:
    return resolve(EMBEDDED_DRAFT)


def test_the_embedded_draft_model_is_small_and_shares_the_rest():
    assert sum(file.stat().st_size for file in folder().iterdir()) <= MOST_BYTES
    vocab = read_draft_vocab(folder())
    config = json.loads((folder() / "config.json").read_text())
    assert vocab is not None and vocab.target == EMBEDDED
    assert len(vocab.layers) == config["num_hidden_layers"]
    assert max(vocab.token_ids) < config["vocab_size"]


@pytest.mark.slow
def test_the_embedded_draft_model_agrees_with_its_target_on_chats_it_never_saw():
    """One prompt of each category of the bench: none of them is among what it learnt from."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED))
    chats = {}
    for line in PROMPTS.read_text().splitlines():
        chat = json.loads(line)
        chats.setdefault(chat["category"], chat["messages"])
    jobs = iter(
        [
            Job(
                index,
                tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_dict=False
                ),
                temperature=0.0,
                seed=1,
                max_tokens=MAX_TOKENS,
            )
            for index, messages in enumerate(chats.values())
        ]
    )
    target = load_model(EMBEDDED, numerics="fast", max_sequences=len(chats))
    answers = [
        record
        for _, record in generate(
            target,
            lambda: next(jobs, None),
            at_once=len(chats),
            num_top=1,
            on_tokens=lambda count: None,
        )
    ]
    draft = load_model(EMBEDDED_DRAFT, numerics="fast", max_sequences=1)
    matches = total = 0
    for answer in answers:
        cache = draft.new_cache()
        count = len(answer.output)
        logits = draft.forward([Rows(cache, [*answer.prompt, *answer.output[:-1]], count)])
        cache.free()
        matches += sum(int(row.argmax()) == y for row, y in zip(logits, answer.output, strict=True))
        total += count
    assert total >= 8 * len(chats)
    assert matches / total >= FLOOR
