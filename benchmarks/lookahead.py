"""What lookahead gives on the real model: tokens per round by category, and the same text.

The verifier's own engine answers the bench prompts plainly and then with each set of sources, many
answers at once, at temperature 0 and 0.8. Whether the rows are worth their time is not the question
here: every round takes all it may. The last line is JSON.
"""

import os

# Read when torch is loaded; the same as in verifier_service/__main__.py.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import argparse
import functools
import json
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from drafters import Count, Seen, pooled, table
from transformers import AutoTokenizer

from paceline.model.load import load_model, resolve
from paceline.params import SamplingParams, Speculation
from verifier_service import engine as engine_module
from verifier_service.config import VerifierSettings
from verifier_service.engine import Engine
from verifier_service.sequence import Event, FailedEvent, FinalEvent, Request, Sink, TokensEvent
from verifier_service.sources import DEFAULT_SOURCES, LOOKAHEAD, RECYCLED, Sources

PROMPTS = Path(__file__).parent / "prompts.jsonl"
MODEL = "embedded"
TEMPERATURES = (0.0, 0.8)
SETS = {
    "lookahead": (LOOKAHEAD,),
    "recycled": (RECYCLED,),
    "recycled + lookahead": (RECYCLED, LOOKAHEAD),
    "default": DEFAULT_SOURCES,
    "default + lookahead": (*DEFAULT_SOURCES, LOOKAHEAD),
}
AT_ONCE = 16


@dataclass
class Answer:
    """One answer under way."""

    category: str
    token_ids: list[int] = field(default_factory=list)
    count: Count = field(default_factory=Count)

    def take(self, event: TokensEvent) -> None:
        self.token_ids += event.token_ids
        self.count.rounds += 1
        self.count.tokens += len(event.token_ids)


class Bench:
    """Answers of one model's engines, one engine at a time, on the model's thread."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._thread = ThreadPoolExecutor(1, "model")
        load = functools.partial(load_model, MODEL, dtype="bfloat16", max_sequences=AT_ONCE)
        self._model = self._thread.submit(load).result()

    @contextmanager
    def _engine(self, sources: Sequence[str]) -> Iterator[Engine]:
        settings = VerifierSettings(max_sequences=AT_ONCE, local_sources=list(sources))
        engine = Engine(self._model, settings, _deliver, lambda updates: None)
        engine.start(self._thread)
        try:
            yield engine
        finally:
            engine.stop()

    def ask(
        self,
        requests: Sequence[tuple[str, Request]],
        sources: Sequence[str],
        speculation: Speculation,
    ) -> list[Answer]:
        """Raises RuntimeError when a request fails."""
        answers = [Answer(category) for category, _ in requests]
        ended: queue.SimpleQueue[FailedEvent | None] = queue.SimpleQueue()

        def sink(answer: Answer, event: Event) -> None:
            if isinstance(event, TokensEvent):
                answer.take(event)
            elif isinstance(event, FinalEvent):
                ended.put(None)
            else:
                ended.put(event)

        with self._engine(sources) as engine:
            for start in range(0, len(requests), AT_ONCE):
                part = list(zip(answers, requests, strict=True))[start : start + AT_ONCE]
                for answer, (_, request) in part:
                    asked = Request(
                        request.prompt,
                        (),
                        request.params,
                        request.seed,
                        speculation=speculation,
                        max_tree_tokens=self._max_rows - 1,
                        keep=False,
                    )
                    engine.submit(asked, functools.partial(sink, answer))
                for _ in part:
                    if (failure := ended.get()) is not None:
                        raise RuntimeError(failure.message)
        return answers

    def close(self) -> None:
        self._thread.shutdown()


def _deliver(events: list[tuple[Sink, Event]]) -> None:
    for sink, event in events:
        sink(event)


def requests(temperature: float, limit: int, max_tokens: int) -> list[tuple[str, Request]]:
    """Prompts evenly spread over the file, which is sorted by category."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL))
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    numbers = sorted({round(i * len(lines) / limit) for i in range(min(limit, len(lines)))})
    found = []
    for number in numbers:
        line = lines[number]
        prompt = tokenizer.apply_chat_template(
            line["messages"], add_generation_prompt=True, return_dict=False
        )
        params = SamplingParams(
            temperature=temperature, max_tokens=min(line.get("max_tokens", max_tokens), max_tokens)
        )
        found.append((line["category"], Request(prompt, (), params, 1000 + number)))
    return found


def by_category(answers: Sequence[Answer]) -> dict[str, Count]:
    counts: dict[str, Count] = {}
    for answer in answers:
        counts.setdefault(answer.category, Count()).add(answer.count)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=72, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-rows", type=int, default=16)
    parser.add_argument("--sets", default=",".join(SETS), help="of these, with commas")
    parser.add_argument("--temperatures", type=float, nargs="*", default=TEMPERATURES, metavar="T")
    parser.add_argument("--priors", action="store_true", help="print lookahead's priors as well")
    args = parser.parse_args()
    bench = Bench(args.max_rows)
    figures: dict[str, dict[str, object]] = {}
    try:
        for temperature in args.temperatures:
            asked = requests(temperature, args.limit, args.max_tokens)
            plain = bench.ask(asked, (), Speculation.OFF)
            columns, identical = {}, {}
            for name in args.sets.split(","):
                seen, start = Seen(), time.monotonic()
                with (
                    mock.patch.object(
                        engine_module, "Sources", functools.partial(Sources, confidences=seen)
                    )
                    if args.priors
                    else mock.patch.dict({})
                ):
                    answers = bench.ask(asked, SETS[name], Speculation.FIXED)
                print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
                columns[name] = by_category(answers)
                identical[name] = sum(
                    a.token_ids == b.token_ids for a, b in zip(answers, plain, strict=True)
                )
                if args.priors:
                    for bucket, probability in seen.priors().items():
                        print(f"    {bucket!r}: {probability},".replace("'", '"'))
            print("\n".join(table(f"T {temperature:g}, {args.max_rows} rows", columns)), flush=True)
            figures[f"T {temperature:g}"] = {
                name: {
                    "mean_acceptance_length": round(pooled(counts).tokens_per_round, 3),
                    "identical": f"{identical[name]}/{len(asked)}",
                }
                for name, counts in columns.items()
            }
    finally:
        bench.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
