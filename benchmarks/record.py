"""Record what the target model answers to the bench prompts, for `drafters.py` to simulate on.

Plain decoding through paceline.model, many answers per forward. Per output token the target's
likeliest ids and their log-probabilities are kept: all that a verifier knows at that position.
"""

import os

# Read when torch is loaded; the same as in verifier_service/__main__.py.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer

from paceline.model.cache import SequenceCache
from paceline.model.engine import LanguageModel, Rows
from paceline.model.load import cache_folder, load_model, resolve
from paceline.params import SamplingParams
from paceline.sampling import Chooser, SamplingState

PROMPTS = Path(__file__).parent / "prompts.jsonl"
MODEL = "embedded"
MAX_TOKENS = 128
NUM_TOP = 8
TEMPERATURES = (0.0, 0.8)
AT_ONCE = 16
PREFILL_ROWS = 128


def default_path() -> Path:
    return cache_folder() / f"{MODEL}-answers.jsonl"


@dataclass
class Recording:
    """One answer under way."""

    id: str
    category: str
    temperature: float
    seed: int
    prompt: list[int]
    max_tokens: int
    state: SamplingState
    cache: SequenceCache
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def add(self, logits: Tensor, chooser: Chooser) -> None:
        values = torch.log_softmax(logits[: chooser.vocab_size].float(), -1)
        top = torch.topk(values, NUM_TOP)
        self.top_ids.append(top.indices.tolist())
        self.top_logprobs.append([round(value, 3) for value in top.values.tolist()])
        self.state.append(chooser.choose(logits, self.state))

    def is_done(self, eos_token_ids: frozenset[int]) -> bool:
        output = self.state.output
        return len(output) == self.max_tokens or (bool(output) and output[-1] in eos_token_ids)

    def line(self) -> str:
        return json.dumps(
            {
                "id": self.id,
                "category": self.category,
                "temperature": self.temperature,
                "seed": self.seed,
                "prompt": self.prompt,
                "output": self.state.output,
                "top_ids": self.top_ids,
                "top_logprobs": self.top_logprobs,
            }
        )


def recordings(model: LanguageModel) -> Iterator[Recording]:
    """Every prompt at every temperature, its prompt read into a cache when it is asked for."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL))
    for temperature in TEMPERATURES:
        for number, text in enumerate(PROMPTS.read_text().splitlines()):
            line = json.loads(text)
            prompt = tokenizer.apply_chat_template(
                line["messages"], add_generation_prompt=True, return_dict=False
            )
            params, seed = SamplingParams(temperature=temperature), 1000 + number
            cache = model.new_cache()
            for start in range(0, len(prompt) - 1, PREFILL_ROWS):
                end = min(start + PREFILL_ROWS, len(prompt) - 1)
                model.forward([Rows(cache, prompt[start:end], 0)])
            yield Recording(
                id=line["id"],
                category=line["category"],
                temperature=temperature,
                seed=seed,
                prompt=prompt,
                max_tokens=min(line.get("max_tokens", MAX_TOKENS), MAX_TOKENS),
                state=SamplingState(params, seed, prompt, vocab_size=model.vocab_size),
                cache=cache,
            )


def step(model: LanguageModel, chooser: Chooser, running: Sequence[Recording]) -> None:
    """One token of every answer."""
    rows = [Rows(r.cache, [(r.state.output or r.prompt)[-1]], 1) for r in running]
    for recording, logits in zip(running, model.forward(rows), strict=True):
        recording.add(logits, chooser)


def record(path: Path) -> None:
    """Raises OSError."""
    model = load_model(MODEL, dtype="bfloat16", max_sequences=AT_ONCE)
    chooser = Chooser(model.vocab_size)
    waiting, running = recordings(model), []
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    with scratch.open("w") as out:
        while True:
            while len(running) < AT_ONCE and (new := next(waiting, None)) is not None:
                running.append(new)
            if not running:
                break
            step(model, chooser, running)
            for recording in [r for r in running if r.is_done(model.eos_token_ids)]:
                running.remove(recording)
                recording.cache.free()
                print(recording.line(), file=out)
                print(f"recorded {recording.id}, T {recording.temperature}", file=sys.stderr)
    scratch.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="default: the cache folder")
    record(parser.parse_args().out or default_path())


if __name__ == "__main__":
    main()
