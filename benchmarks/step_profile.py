"""Where a step's time goes: linear layers, attention, the rest of a forward, choosing, drafting.

Runs the verifier's engine in this process on the real model, plain and with the verifier's own
draft sources, one answer and eight at once. Times are exclusive: what a part calls counts where it
belongs. `between steps` is what is left of the clients' time, without gRPC (`overhead_share` of
benchmarks/engine.py has that in it). The last line is JSON.
"""

import argparse
import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from engine import EMBEDDED, THREADS, prompts_of

from paceline.model.attention import Attention
from paceline.model.engine import LanguageModel
from paceline.model.linear import CanonicalLinear
from paceline.model.load import load_model, resolve
from paceline.params import SamplingParams
from verifier_service import step_runner
from verifier_service.config import VerifierSettings
from verifier_service.engine import Engine
from verifier_service.outbox import Outbox
from verifier_service.sequence import FailedEvent, FinalEvent, Request
from verifier_service.sources import Sources

# Part -> what does it, by owner and name.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "linear layers": [(CanonicalLinear, "compute")],
    "attention": [(Attention, "__call__"), (Attention, "prepare")],
    "rest of the forward": [(LanguageModel, "forward")],
    "choosing tokens": [(step_runner, "play")],
    "the target's top ids": [(step_runner, "top_tokens")],
    "drafting, rows": [(step_runner.StepRunner, "_take_turns")],
    "learning drafts": [(Sources, "committed")],
    "handing over": [(Outbox, "flush")],
    "scheduling, reports": [(step_runner.StepRunner, "run")],
}


class Watch:
    """Exclusive time by part, of one thread. Seconds."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inner = [0.0]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                passed = time.perf_counter() - begin
                self.spent[part] += passed - self._inner.pop()
                self._inner[-1] += passed

        return measured


def run(engine: Engine, requests: Sequence[Request]) -> int:
    """Answers to all of them at once; how many tokens they have."""
    events: SimpleQueue[Any] = SimpleQueue()
    for request in requests:
        engine.submit(request, events.put)
    num_tokens, left = 0, len(requests)
    while left:
        event = events.get()
        if isinstance(event, FailedEvent):
            raise SystemExit(f"an answer failed: {event.message}")
        if isinstance(event, FinalEvent):
            num_tokens, left = num_tokens + event.num_output_tokens, left - 1
    return num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that the cases take turns")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampling; 0 is greedy")
    options = parser.parse_args()
    watch = Watch()
    for part, calls in PARTS.items():
        for owner, name in calls:
            setattr(owner, name, watch.timed(part, getattr(owner, name)))
    short, _ = prompts_of(resolve(EMBEDDED))
    settings = VerifierSettings()
    thread = ThreadPoolExecutor(1, "model")

    def load() -> LanguageModel:
        torch.set_num_threads(THREADS)
        return load_model(EMBEDDED, kv_tokens=settings.kv_tokens)

    def deliver(events: Sequence[Any]) -> None:
        for sink, event in events:
            sink(event)

    engine = Engine(thread.submit(load).result(), settings, deliver, lambda updates: None)
    engine.start(thread)
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.tokens, ignore_eos=True
    )
    found: dict[str, tuple[Counter[str], float, int, int]] = {}
    for number in range(options.rounds + 1):
        for kind, tree_tokens in (("plain", 0), ("drafts", 15)):
            for count in (1, 8):
                requests = [
                    # Nothing is kept: the same prompts come again.
                    Request(prompt, [], params, 1, max_tree_tokens=tree_tokens, keep=False)
                    for prompt in (short * 2)[number : number + count]
                ]
                steps = engine.status().num_steps
                watch.spent.clear()
                begin = time.perf_counter()
                num_tokens = run(engine, requests)
                passed = time.perf_counter() - begin
                # What is first done is no step's.
                if number:
                    name = f"{kind}, {count}"
                    spent, before, num_steps, tokens = found.get(name, (Counter(), 0.0, 0, 0))
                    found[name] = (
                        spent + watch.spent,
                        before + passed,
                        num_steps + engine.status().num_steps - steps,
                        tokens + num_tokens,
                    )
    engine.stop()
    thread.shutdown()
    show(found)


def show(found: dict[str, tuple[Counter[str], float, int, int]]) -> None:
    print(f"{'ms per step':<24}" + "".join(f"{name:>12}" for name in found))
    parts = [*PARTS, "between steps"]
    figures: dict[str, dict[str, float]] = {}
    for name, (spent, passed, num_steps, num_tokens) in found.items():
        spent["between steps"] = passed - sum(spent.values())
        figures[name] = {part: round(1e3 * spent[part] / num_steps, 3) for part in parts}
        figures[name] |= {
            "all": round(1e3 * passed / num_steps, 2),
            "tokens per step": round(num_tokens / num_steps, 2),
        }
    for part in (*parts, "all", "tokens per step"):
        print(f"{part:<24}" + "".join(f"{figures[name][part]:12.2f}" for name in found))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
