"""Pacing against fixed draft lengths, by category and load, on real services in turns.

As shipped: the verifier's own lookups and no drafter. In each round a category's first prompts are
read, then answered plain, paced and with each fixed length. Prints tokens per second over plain's;
the last line is JSON, where `of_best` is paced over the best fixed length, which includes plain.
The best of several noisy figures is flattered: with few rounds `of_best` is lower than it would be
with many.
"""

import argparse
import asyncio
import itertools
import json
import time

from pacing_pairs import PLAIN, in_turns, prompts_by_category, speed
from services import service

from paceline.client import GatewayClient
from paceline.events import DraftPolicy
from paceline.params import Speculation


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of each policy per case")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of an answer")
    parser.add_argument("--lengths", default="2,4,8,15", help="fixed draft lengths")
    parser.add_argument("--loads", default="1,4", help="answers at once")
    parser.add_argument("--categories", default="", help="only these, with commas")
    options = parser.parse_args()
    lengths = [int(text) for text in options.lengths.split(",")]
    # Nothing is kept: who asks later would find the answers of those before.
    policies = [PLAIN, DraftPolicy(Speculation.AUTO, forget=True)]
    policies += [DraftPolicy(Speculation.FIXED, n, forget=True) for n in lengths]
    wanted = {name for name in options.categories.split(",") if name}
    prompts = {k: v for k, v in prompts_by_category().items() if not wanted or k in wanted}
    begin_s, of_best = time.monotonic(), {}
    flags = ("--port=0", "--metrics-port=0", f"--max-draft-tokens={max(lengths)}")
    with (
        service("-m", "verifier_service", *flags) as verifier,
        service("-m", "gateway", *flags[:2], f"--verifier={verifier}") as gateway,
    ):
        async with GatewayClient(gateway) as client:
            print(f"{'case':<22}{'paced':>8}" + "".join(f"{f'fixed {n}':>10}" for n in lengths))
            for (category, texts), load in itertools.product(
                prompts.items(), map(int, options.loads.split(","))
            ):
                plain, *runs = await in_turns(
                    client,
                    texts[:load],
                    policies,
                    max_tokens=options.tokens,
                    rounds=options.rounds,
                    workload=category,
                    same_texts=True,
                )
                paced, *fixed = (speed(run, plain) for run in runs)
                name = f"{category}, {load} at once"
                of_best[name] = round(paced / max(1.0, *fixed), 3)
                cells = "".join(f"{ratio:9.2f}x" for ratio in fixed)
                print(f"{name:<22}{paced:7.2f}x{cells}  of best {of_best[name]:.2f}", flush=True)
    print(f"{time.monotonic() - begin_s:.0f} s")
    print(json.dumps({"of_best": of_best, "min": min(of_best.values())}))


if __name__ == "__main__":
    asyncio.run(main())
