"""What exact numerics cost, and what they buy.

In one process, on bf16: decoding speed with numerics exact against fast; whether speculative
decoding repeats plain decoding token by token; and how often transformers' own prompt lookup
repeats transformers' own greedy decoding. Prints a table, then one line of JSON.
"""

import os

# Read when torch is loaded; the same as in verifier_service/__main__.py.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.model.engine import LanguageModel, Rows
from paceline.model.load import load_model, resolve
from paceline.params import SamplingParams
from paceline.sampling import Chooser, SamplingState, verify

PROMPTS = Path(__file__).parent / "prompts.jsonl"
MODEL = "embedded"
MAX_DRAFT_TOKENS = 8
# Of the draft tokens, how many are changed to random ones.
CORRUPTION = 0.25

# Draft tokens, from the output tokens so far.
Drafter = Callable[[Sequence[int]], list[int]]


def no_draft(_: Sequence[int]) -> list[int]:
    return []


def corrupted(truth: Sequence[int], vocab_size: int, seed: int) -> Drafter:
    """The true continuation in blocks of 0 to 8, with random tokens in it."""
    rng = random.Random(seed)

    def draft(output: Sequence[int]) -> list[int]:
        start, length = len(output), rng.randint(0, MAX_DRAFT_TOKENS)
        return [
            rng.randrange(vocab_size) if rng.random() < CORRUPTION else token_id
            for token_id in truth[start : start + length]
        ]

    return draft


def decode(
    model: LanguageModel,
    prompt: Sequence[int],
    max_tokens: int,
    drafter: Drafter = no_draft,
    *,
    prefill_rows: int = 128,
) -> tuple[list[int], list[float]]:
    """(greedy output tokens, seconds of each step after the first). Goes on beyond any end."""
    chooser, greedy = Chooser(model.vocab_size), SamplingParams(temperature=0.0)
    state = SamplingState(greedy, 0, prompt, vocab_size=model.vocab_size)
    cache = model.new_cache()
    for start in range(0, len(prompt) - 1, prefill_rows):
        end = min(start + prefill_rows, len(prompt) - 1)
        model.forward([Rows(cache, prompt[start:end], 0)])
    last, times = prompt[-1], []
    while len(state.output) < max_tokens:
        draft = drafter(state.output)
        started = time.perf_counter()
        logits = model.forward([Rows(cache, [last, *draft], len(draft) + 1)])
        verdict = verify(chooser, logits, draft, state)
        cache.rollback(cache.length - len(draft) + verdict.num_accepted)
        times.append(time.perf_counter() - started)
        last = verdict.token_ids[-1]
    cache.free()
    return state.output[:max_tokens], times[1:]


def step_seconds(
    models: Sequence[LanguageModel], prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[float]:
    """Median time of a plain decoding step of each model; the models take turns."""
    times: list[list[float]] = [[] for _ in models]
    for number, prompt in enumerate(prompts):
        for _ in range(2):
            for model, found in zip(models, times, strict=True):
                found += decode(model, prompt, max_tokens)[1]
        progress(f"speed: prompt {number + 1} of {len(prompts)}")
    return [statistics.median(found) for found in times]


def count_identical(
    model: LanguageModel, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[int, float]:
    """(prompts whose speculative tokens are the plain ones, output tokens per step)."""
    identical = num_steps = num_tokens = 0
    for number, prompt in enumerate(prompts):
        plain, _ = decode(model, prompt, max_tokens)
        drafter = corrupted(plain, model.vocab_size, number)
        speculative, times = decode(model, prompt, max_tokens, drafter, prefill_rows=61)
        identical += speculative == plain
        num_steps, num_tokens = num_steps + len(times) + 1, num_tokens + len(speculative)
        progress(f"speculative against plain: prompt {number + 1} of {len(prompts)}")
    return identical, num_tokens / num_steps


def count_identical_in_transformers(prompts: Sequence[Sequence[int]], max_tokens: int) -> int:
    """Prompts for which transformers' prompt lookup gives the tokens of its greedy decoding."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        resolve(MODEL), dtype=torch.bfloat16, use_safetensors=True
    ).eval()
    identical = 0
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        how = {
            "attention_mask": torch.ones_like(ids),
            "do_sample": False,
            "max_new_tokens": max_tokens,
            "pad_token_id": model.config.eos_token_id,
        }
        plain = model.generate(ids, **how)
        speculative = model.generate(ids, prompt_lookup_num_tokens=MAX_DRAFT_TOKENS, **how)
        identical += torch.equal(plain, speculative)
        progress(f"transformers: prompt {number + 1} of {len(prompts)}")
    return identical


def prompt_ids(limit: int) -> list[list[int]]:
    """Token ids of bench prompts, taken across the categories."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL))
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    step = max(len(lines) // limit, 1)
    return [
        tokenizer.apply_chat_template(
            line["messages"], add_generation_prompt=True, return_dict=False
        )
        for line in lines[::step][:limit]
    ]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=8, help="prompts (8)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of each answer (64)")
    parser.add_argument("--threads", type=int, default=2, help="of the model (2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompts = prompt_ids(options.limit)
    exact, fast = (load_model(MODEL, max_sequences=4, numerics=n) for n in ("exact", "fast"))
    exact_s, fast_s = step_seconds((exact, fast), prompts[:4], min(options.max_tokens, 32))
    identical, tokens_per_step = count_identical(exact, prompts, options.max_tokens)
    theirs = count_identical_in_transformers(prompts, options.max_tokens)
    of_all = f"/{len(prompts)}"
    for name, value in (
        ("plain decoding step, numerics exact", f"{1e3 * exact_s:.2f} ms"),
        ("plain decoding step, numerics fast", f"{1e3 * fast_s:.2f} ms"),
        ("speed of exact, fast being 1", f"{fast_s / exact_s:.3f}"),
        ("speculative repeats plain, tokens per step", f"{tokens_per_step:.2f}"),
        ("speculative repeats plain, identical", f"{identical}{of_all}"),
        ("transformers' prompt lookup repeats its greedy", f"{theirs}{of_all}"),
    ):
        print(f"{name:<48}{value:>12}")
    print(
        json.dumps(
            {
                "exact_vs_fast": round(fast_s / exact_s, 3),
                "identical": f"{identical}{of_all}",
                "transformers_prompt_lookup_identical": f"{theirs}{of_all}",
            }
        )
    )


if __name__ == "__main__":
    main()
