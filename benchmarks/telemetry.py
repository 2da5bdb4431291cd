"""What telemetry costs: python benchmarks/telemetry.py, or make bench-telemetry

First, CPU time per round of the code that counts and traces, measured by itself: off, metrics,
metrics with a span of every round. Then stacks on the real model that differ in telemetry alone,
asked the same prompts in turn: off; off as well, the control, which tells how far two equal stacks
are apart; on, every round traced to a collector and metrics scraped; a collector that hangs; one
that refuses. Cost is the median over blocks of (time of this
stack / time of the one that is off) - 1 with a 95 % interval from resampling blocks; p99 is of the
time per token, pooled. Last, the time from SIGTERM to exit. Prints tables; the last line is JSON.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import telemetry_cpu as cpu
from telemetry_served import Stack, Timed, bad_collector, counting_collector, stack

from paceline.bench.statistics import quantile

OFF, CONTROL, ON, HANGS, REFUSES = "off", "control", "on", "hangs", "refuses"
SETUPS = (CONTROL, ON, HANGS, REFUSES)
PROMPTS = (
    "Copy this text exactly, three times: The quick brown fox jumps over the lazy dog.",
    "Write a Python function that returns the largest of three numbers.",
    "Say in two sentences why the sky is blue.",
)
RESAMPLES = 1000
LEAST_BLOCKS = 6
# A block: one answer of every stack to the same prompt.
Block = dict[str, Timed]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def play(
    stacks: dict[str, Stack], *, blocks: int, max_tokens: int, limit_s: float
) -> list[Block]:
    """Every stack is asked in every block, each as often first as any other.

    Fewer blocks when the time is up.
    """
    order, played, begun = list(stacks), [], time.monotonic()
    for number in range(-len(PROMPTS), blocks):
        if time.monotonic() - begun > limit_s and len(played) >= LEAST_BLOCKS:
            break
        prompt = PROMPTS[number % len(PROMPTS)]
        turn = number % len(order)
        block = {
            name: await stacks[name].ask(prompt, max_tokens)
            for name in (*order[turn:], *order[:turn])
        }
        assert len({tuple(answer.token_ids) for answer in block.values()}) == 1
        # The first are for warming up.
        if number >= 0:
            played.append(block)
        if number % 6 == 5:
            say(f"   {number + 1} of {blocks} blocks")
    return played


def interval(
    blocks: Sequence[Block], measure: Callable[[Sequence[Block]], float]
) -> tuple[float, float, float]:
    """The measure of the blocks, and its 95 % interval from resampling them."""
    draws = random.Random(8)
    values = [measure(draws.choices(blocks, k=len(blocks))) for _ in range(RESAMPLES)]
    return measure(blocks), quantile(values, 0.025), quantile(values, 0.975)


def cost(name: str) -> Callable[[Sequence[Block]], float]:
    """Of the time of decoding, in per cent: what tokens per second lose."""
    return lambda blocks: (
        100 * (statistics.median(b[name].decode_ms / b[OFF].decode_ms for b in blocks) - 1)
    )


def p99_cost(name: str) -> Callable[[Sequence[Block]], float]:
    def p99(blocks: Sequence[Block], of: str) -> float:
        return quantile([ms for b in blocks for ms in b[of].per_token_ms], 0.99)

    return lambda blocks: 100 * (p99(blocks, name) / p99(blocks, OFF) - 1)


def report(blocks: Sequence[Block], exits_s: dict[str, float]) -> dict[str, dict[str, object]]:
    heads = f"{'against off, per cent':<22} {'time per token':>24} {'its p99':>24}"
    print(f"\n{heads}  cpu/round  exit")
    table: dict[str, dict[str, object]] = {}
    for name in exits_s:
        answers = [block[name] for block in blocks]
        cpu_ms = sum(a.cpu_ms for a in answers) / sum(a.num_rounds for a in answers)
        row: dict[str, object] = {"cpu_ms_per_round": round(cpu_ms, 2)}
        shown = [""] * 2
        if name != OFF:
            both = interval(blocks, cost(name)), interval(blocks, p99_cost(name))
            shown = [f"{v:+.2f} ({low:+.2f} to {high:+.2f})" for v, low, high in both]
            for key, values in zip(("cost_percent", "p99_percent"), both, strict=True):
                row[key] = [round(value, 2) for value in values]
        row["exit_s"] = round(exits_s[name], 2)
        print(f"{name:<22} {shown[0]:>24} {shown[1]:>24} {cpu_ms:7.1f} ms {exits_s[name]:4.1f} s")
        table[name] = row
    return table


async def served(
    model: str, names: Sequence[str], *, blocks: int, max_tokens: int, limit_s: float
) -> tuple[list[Block], dict[str, float]]:
    """The blocks played by the stacks of these names, and how long each took to exit."""
    with contextlib.ExitStack() as opened:
        url, counted = opened.enter_context(counting_collector())
        setups = {
            OFF: {},
            CONTROL: {},
            ON: {"endpoint": url, "with_metrics": True},
            HANGS: {"endpoint": opened.enter_context(bad_collector(hangs=True))},
            REFUSES: {"endpoint": opened.enter_context(bad_collector(hangs=False))},
        }
        stacks = {}
        for name in names:
            begun = time.monotonic()
            stacks[name] = opened.enter_context(stack(model, **setups[name]))
            say(f"== {name}: up after {time.monotonic() - begun:.0f} s")
        played = await play(stacks, blocks=blocks, max_tokens=max_tokens, limit_s=limit_s)
        for one in stacks.values():
            await one.client.close()
        exits_s = {name: one.exit_s() for name, one in stacks.items()}
        assert ON not in names or counted.num_bytes, "nothing was exported"
        return played, exits_s


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--setups", default=",".join(SETUPS), help="against off")
    parser.add_argument("--blocks", type=int, default=36)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--limit-s", type=float, default=150.0, help="of asking")
    arguments = parser.parse_args()
    say("== CPU time of the code of a round")
    costs = {name: cpu.cpu_us(name) for name in cpu.SETUPS}
    blocks, exits_s = await served(
        arguments.model,
        (OFF, *arguments.setups.split(",")),
        blocks=arguments.blocks,
        max_tokens=arguments.max_tokens,
        limit_s=arguments.limit_s,
    )
    off = [block[OFF] for block in blocks]
    round_ms = statistics.median(a.decode_ms / a.num_rounds for a in off)
    tokens_per_s = statistics.median((len(a.per_token_ms)) / a.decode_ms * 1e3 for a in off)
    print(f"a round takes {round_ms:.1f} ms, {tokens_per_s:.1f} tokens/s, telemetry off")
    print(f"\n{'code of a round':<24} {'CPU':>10} {'of a round':>12}")
    for name, us in costs.items():
        print(f"{name:<24} {us:7.1f} us {us / round_ms / 10:10.2f} %")
    print(
        json.dumps(
            {
                "round_ms": round(round_ms, 2),
                "tokens_per_s": round(tokens_per_s, 1),
                "cpu_us_per_round": {name: round(us, 1) for name, us in costs.items()},
                "cpu_percent": {n: round(us / round_ms / 10, 3) for n, us in costs.items()},
                "blocks": len(blocks),
                "served": report(blocks, exits_s),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
