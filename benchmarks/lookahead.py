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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from drafters import Count, Seen, pooled, table
from transformers import AutoTokenizer

from paceline.model.load import load_model, resolve
from paceline.params import SamplingParams, Speculation
from paceline.rounds import SpeculationTotals
from verifier_service import opening
from verifier_service.config import VerifierSettings
from verifier_service.engine import Engine
from verifier_service.sequence import Event, FailedEvent, Request, Sink, TokensEvent
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


@dataclass(frozen=True)
class Asked:
    """One question."""

    category: str
    prompt: Sequence[int]
    params: SamplingParams
    seed: int


@dataclass
class Answer:
    """One answer under way."""

    category: str
    token_ids: list[int] = field(default_factory=list)
    count: Count = field(default_factory=Count)
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)

    def take(self, event: TokensEvent) -> None:
        self.token_ids += event.token_ids
        self.totals.add_round(event.round)
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
    def _engine(self, sources: Sequence[str], max_waiting: int) -> Iterator[Engine]:
        settings = VerifierSettings(
            max_sequences=AT_ONCE, max_waiting=max_waiting, local_sources=list(sources)
        )
        running = Engine(self._model, settings, _deliver, lambda updates: None)
        running.start(self._thread)
        try:
            yield running
        finally:
            running.stop()

    def ask(
        self, asked: Sequence[Asked], sources: Sequence[str], speculation: Speculation
    ) -> list[Answer]:
        """Raises RuntimeError when a request fails."""
        answers = [Answer(one.category) for one in asked]
        ended: queue.SimpleQueue[FailedEvent | None] = queue.SimpleQueue()

        def sink(answer: Answer, event: Event) -> None:
            if isinstance(event, TokensEvent):
                answer.take(event)
            else:
                ended.put(event if isinstance(event, FailedEvent) else None)

        with self._engine(sources, len(asked)) as running:
            for answer, one in zip(answers, asked, strict=True):
                request = Request(
                    one.prompt,
                    (),
                    one.params,
                    one.seed,
                    speculation=speculation,
                    max_tree_tokens=self._max_rows - 1,
                    keep=False,
                )
                running.submit(request, functools.partial(sink, answer))
            for _ in asked:
                if (failure := ended.get()) is not None:
                    raise RuntimeError(failure.message)
        return answers

    def close(self) -> None:
        self._thread.shutdown()


def _deliver(events: list[tuple[Sink, Event]]) -> None:
    for sink, event in events:
        sink(event)


def questions(temperature: float, limit: int, max_tokens: int) -> list[Asked]:
    """Prompts evenly spread over the file, which is sorted by category."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL))
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    count = min(limit, len(lines))
    found = []
    for number in (i * len(lines) // count for i in range(count)):
        line = lines[number]
        prompt = tokenizer.apply_chat_template(
            line["messages"], add_generation_prompt=True, return_dict=False
        )
        longest = min(line.get("max_tokens", max_tokens), max_tokens)
        params = SamplingParams(temperature=temperature, max_tokens=longest)
        found.append(Asked(line["category"], prompt, params, 1000 + number))
    return found


def by_category(answers: Sequence[Answer]) -> dict[str, Count]:
    counts: dict[str, Count] = {}
    for answer in answers:
        counts.setdefault(answer.category, Count()).add(answer.count)
    return counts


def compare(
    bench: Bench, asked: Sequence[Asked], names: Sequence[str], title: str, *, with_priors: bool
) -> dict[str, object]:
    """Print a table of these sets of sources; the figures for the last line."""
    plain = bench.ask(asked, (), Speculation.OFF)
    columns: dict[str, dict[str, Count]] = {}
    figures: dict[str, object] = {}
    for name in names:
        print(f"{title}: {name}", file=sys.stderr)
        seen = Seen()
        shared = functools.partial(Sources, confidences=seen)
        with mock.patch.object(opening, "Sources", shared) if with_priors else nullcontext():
            answers = bench.ask(asked, SETS[name], Speculation.FIXED)
        if with_priors:
            for bucket, probability in seen.priors().items():
                print(f"    {bucket!r}: {probability},".replace("'", '"'))
        columns[name] = by_category(answers)
        totals = SpeculationTotals()
        for answer in answers:
            totals.add(answer.totals)
        same = sum(a.token_ids == b.token_ids for a, b in zip(answers, plain, strict=True))
        figures[name] = {
            "mean_acceptance_length": round(totals.mean_acceptance_length, 3),
            "tokens_per_round": round(pooled(columns[name]).tokens_per_round, 3),
            "drafted_per_round": round(totals.num_drafted / totals.num_rounds, 1),
            "identical": f"{same}/{len(plain)}",
        }
    print("\n".join(table(title, columns)), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=72, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-rows", type=int, default=16)
    parser.add_argument("--sets", default=",".join(SETS), help="of these, with commas")
    parser.add_argument("--temperatures", type=float, nargs="*", default=TEMPERATURES, metavar="T")
    parser.add_argument("--priors", action="store_true", help="print confidences of guesses, too")
    args = parser.parse_args()
    figures, bench = {}, Bench(args.max_rows)
    try:
        for temperature in args.temperatures:
            asked = questions(temperature, args.limit, args.max_tokens)
            title = f"T {temperature:g}, {args.max_rows} rows"
            names = args.sets.split(",")
            figures[f"T {temperature:g}"] = compare(
                bench, asked, names, title, with_priors=args.priors
            )
    finally:
        bench.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
