"""Record what the target model answers to the bench prompts, for `drafters.py` to simulate on.

Plain decoding through paceline.model, many answers per forward. Per output token the target's
likeliest ids and their log-probabilities are kept: all that a verifier knows at that position. What
is interrupted goes on where it was.
"""

import os

# Read when torch is loaded; the same as in verifier_service/__main__.py.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from paceline.model.cache import SequenceCache
from paceline.model.engine import Identity, LanguageModel, Rows
from paceline.model.load import cache_folder, load_model, resolve
from paceline.params import SamplingParams
from paceline.sampling import Chooser, SamplingState

PROMPTS = Path(__file__).parent / "prompts.jsonl"
MODEL = "embedded"
MAX_TOKENS = 128
NUM_TOP = 8
TEMPERATURES = (0.0, 0.8)
AT_ONCE = 32
PREFILL_ROWS = 128
_PROGRESS_S = 5.0


# Of an answer: prompt and temperature, and all that is known.
Key = tuple[str, float]
Line = dict[str, Any]


def default_path() -> Path:
    return cache_folder() / f"{MODEL}-recording.jsonl"


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
    model: Identity
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def add(self, logits: Tensor, chooser: Chooser) -> None:
        values = torch.log_softmax(logits[: chooser.vocab_size].float(), -1)
        top = torch.topk(values, NUM_TOP)
        self.top_ids.append(top.indices.tolist())
        self.top_logprobs.append([round(value, 3) for value in top.values.tolist()])
        self.state.append(chooser.choose(logits, self.state))

    @property
    def key(self) -> Key:
        return self.id, self.temperature

    def is_done(self, eos_token_ids: frozenset[int]) -> bool:
        output = self.state.output
        return len(output) == self.max_tokens or (bool(output) and output[-1] in eos_token_ids)

    def line(self, *, done: bool) -> Line:
        return {
            "id": self.id,
            "category": self.category,
            "model": self.model.name,
            "tokenizer": self.model.tokenizer_fingerprint,
            "vocab_size": self.model.vocab_size,
            "temperature": self.temperature,
            "seed": self.seed,
            "prompt": self.prompt,
            "output": self.state.output,
            "top_ids": self.top_ids,
            "top_logprobs": self.top_logprobs,
            "done": done,
        }


def recordings(model: LanguageModel, known: dict[Key, Line]) -> Iterator[Recording]:
    """Every prompt at every temperature that is not answered yet, read into a cache when it is
    asked for."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL))
    for temperature in TEMPERATURES:
        for number, text in enumerate(PROMPTS.read_text().splitlines()):
            line = json.loads(text)
            begun = known.get((line["id"], temperature), {})
            if begun.get("done"):
                continue
            prompt = tokenizer.apply_chat_template(
                line["messages"], add_generation_prompt=True, return_dict=False
            )
            params, seed = SamplingParams(temperature=temperature), 1000 + number
            output = begun.get("output", [])
            tokens = prompt + output
            cache = model.new_cache()
            for start in range(0, len(tokens) - 1, PREFILL_ROWS):
                end = min(start + PREFILL_ROWS, len(tokens) - 1)
                model.forward([Rows(cache, tokens[start:end], 0)])
            yield Recording(
                id=line["id"],
                category=line["category"],
                temperature=temperature,
                seed=seed,
                prompt=prompt,
                max_tokens=min(line.get("max_tokens", MAX_TOKENS), MAX_TOKENS),
                state=SamplingState(params, seed, prompt, output, vocab_size=model.vocab_size),
                cache=cache,
                model=model.identity,
                top_ids=begun.get("top_ids", []),
                top_logprobs=begun.get("top_logprobs", []),
            )


def step(model: LanguageModel, chooser: Chooser, running: Sequence[Recording]) -> None:
    """One token of every answer."""
    rows = [Rows(r.cache, [(r.state.output or r.prompt)[-1]], 1) for r in running]
    for recording, logits in zip(running, model.forward(rows), strict=True):
        recording.add(logits, chooser)


def record(path: Path) -> None:
    """Raises OSError, and KeyboardInterrupt when it was interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    lines = _read(scratch)
    # With so many rows compiled layers gain less than compiling them takes.
    model = load_model(MODEL, dtype="bfloat16", max_sequences=AT_ONCE, compiling="off")
    chooser = Chooser(model.vocab_size)
    waiting = recordings(model, dict(lines))
    running: list[Recording] = []
    total = len(TEMPERATURES) * len(PROMPTS.read_text().splitlines())
    last = 0.0
    try:
        while True:
            while len(running) < AT_ONCE and (new := next(waiting, None)) is not None:
                running.append(new)
            if not running:
                break
            step(model, chooser, running)
            for recording in [r for r in running if r.is_done(model.eos_token_ids)]:
                running.remove(recording)
                recording.cache.free()
                lines[recording.key] = recording.line(done=True)
            if time.monotonic() - last > _PROGRESS_S:
                last = time.monotonic()
                done = sum(line["done"] for line in lines.values())
                begun = sum(len(recording.state.output) for recording in running)
                print(f"{done} of {total} answers, {begun} tokens of the next", file=sys.stderr)
    finally:
        for recording in running:
            lines[recording.key] = recording.line(done=False)
        _write(scratch, lines)
    scratch.rename(path)


def _read(path: Path) -> dict[Key, Line]:
    """What an interrupted run left."""
    found = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return {(line["id"], line["temperature"]): line for line in found}


def _write(path: Path, lines: dict[Key, Line]) -> None:
    """In the order of the prompts, whatever was ready first."""
    ordered = sorted(lines.values(), key=lambda line: (line["temperature"], line["seed"]))
    new = path.with_suffix(".new")
    new.write_text("".join(f"{json.dumps(line)}\n" for line in ordered))
    new.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="default: the cache folder")
    args = parser.parse_args()
    # So that what was said is kept when it is told to stop.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    record(args.out or default_path())


if __name__ == "__main__":
    main()
