"""What a gateway adds to a target that costs nothing: `make bench-gateway`.

The target is a hash (tests/mock_target.py), so that no model's noise hides the gateway. The last
line is JSON; `_grpc` and `_http` are the gateway's two doors, `_relay` is grpc.aio alone, passing
messages on and nothing else (tests/bare_relay.py): what that takes, a gateway cannot do without.

* ttft_added_ms: time to the first token through the gateway less straight at the verifier, median
  of pairs that are asked in turn. Aim: at most 2.
* cpu_ms_per_round: CPU time of the gateway's process per round of one stream, at the pace of a
  small model, its heartbeats included. Aim: at most 0.3.
* cpu_ms_per_round_busy, tokens_per_s, goodput: the same with many streams at once; what came of
  what the target would have given at its pace. `goodput_verifier` is without a gateway: what it
  lacks is the target's and the caller's, which share the machine.
* kb_per_stream: memory that the gateway took for those streams. Aim: at most 60.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from doors import PROMPT, AtVerifier, ThroughGrpc, ThroughHttp, Way
from services import Launched, free_port, launched
from tokenizers import Tokenizer

from paceline.server import open_channel
from paceline.v1 import verifier_pb2, verifier_pb2_grpc

# Time to first token: a target that answers soon.
QUICK_MS = 2
# One stream: a round of a small model on a CPU.
STEP_MS = 10
# Many streams: some 2,000 rounds a second for 300.
BUSY_STEP_MS = 150
# A round of the mock has 2 tokens in the mean.
TOKENS_PER_ROUND = 2
AIMS = {"ttft_added_ms": 2.0, "cpu_ms_per_round": 0.3, "kb_per_stream": 60.0}


@dataclass(frozen=True, slots=True)
class Bench:
    """A target, and what stands in front of it by the name of the way that leads through it."""

    processes: dict[str, Launched]
    ways: dict[str, Way]


async def prompt_ids(address: str) -> list[int]:
    """The prompt as the target's tokenizer has it."""
    async with open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        pieces = stub.GetTokenizer(verifier_pb2.GetTokenizerRequest())
        content = b"".join([p.data async for p in pieces if p.file == "tokenizer.json"])
    return list(Tokenizer.from_str(content.decode()).encode(PROMPT).ids)


@contextlib.asynccontextmanager
async def bench(step_ms: float) -> AsyncIterator[Bench]:
    """All processes new, metrics on as in production."""
    http, metrics = free_port(), free_port()
    with (
        launched("tests/mock_target.py", f"--step-ms={step_ms}") as target,
        launched(
            "-m",
            "gateway",
            "--port=0",
            f"--http-port={http}",
            f"--metrics-port={metrics}",
            "--max-requests=4096",
            "--log-level=warning",
            f"--verifier={target.address}",
        ) as gateway,
        launched("tests/bare_relay.py", f"--target={target.address}") as relay,
    ):
        async with (
            AtVerifier(target.address, await prompt_ids(target.address)) as verifier,
            ThroughGrpc(gateway.address) as over_grpc,
            ThroughHttp(f"127.0.0.1:{http}") as over_http,
            ThroughGrpc(relay.address) as over_relay,
        ):
            ways = {
                "verifier": verifier,
                "relay": over_relay,
                "grpc": over_grpc,
                "http": over_http,
            }
            for way in ways.values():
                await way.answer(0, 8)
            yield Bench({"relay": relay, "grpc": gateway, "http": gateway}, ways)


async def first_tokens(num_pairs: int) -> dict[str, float]:
    """Medians of what each door adds, and of the verifier itself."""
    heard: dict[str, list[float]] = {}
    order = random.Random(7)
    async with bench(QUICK_MS) as opened:
        for seed in range(num_pairs):
            if seed % 20 == 0:
                tell(f"time to first token: {seed} of {num_pairs}")
            names = list(opened.ways)
            order.shuffle(names)
            for name in names:
                answer = await opened.ways[name].answer(seed, 1)
                heard.setdefault(name, []).append(answer.first_s * 1e3)
    figures = {"ttft_verifier_ms": statistics.median(heard["verifier"])}
    for door in ("relay", "grpc", "http"):
        pairs = zip(heard[door], heard["verifier"], strict=True)
        added = sorted(through - straight for through, straight in pairs)
        figures[f"ttft_added_ms_{door}"] = statistics.median(added)
        figures[f"ttft_added_p90_ms_{door}"] = added[int(0.9 * len(added))]
    return figures


async def one_stream(num_rounds: int) -> dict[str, float]:
    """CPU time of the gateway per round."""
    figures = {}
    async with bench(STEP_MS) as opened:
        for door, process in opened.processes.items():
            tell(f"CPU of one stream, {door}")
            before = process.cpu_s()
            answer = await opened.ways[door].answer(1, num_rounds * TOKENS_PER_ROUND)
            spent_s = process.cpu_s() - before
            figures[f"cpu_ms_per_round_{door}"] = spent_s / answer.num_rounds * 1e3
    return figures


async def many_streams(way: str, num_streams: int, num_rounds: int) -> dict[str, float]:
    """All at once through one way, at a gateway of their own."""
    num_tokens = num_rounds * TOKENS_PER_ROUND
    async with bench(BUSY_STEP_MS) as opened:
        # Straight at the verifier nothing is in between.
        process = opened.processes.get(way, opened.processes["grpc"])
        cpu_s, idle_bytes = process.cpu_s(), process.rss_bytes()
        begun, most_bytes = time.perf_counter(), idle_bytes
        answers = [
            asyncio.create_task(opened.ways[way].answer(seed, num_tokens))
            for seed in range(num_streams)
        ]
        while not all(task.done() for task in answers):
            await asyncio.wait(answers, timeout=0.1)
            most_bytes = max(most_bytes, process.rss_bytes())
            tell(f"{num_streams} streams, {way}: {sum(t.done() for t in answers)} done")
        seconds = time.perf_counter() - begun
        spent_s = process.cpu_s() - cpu_s
        heard = [task.result() for task in answers]
    rounds = sum(answer.num_rounds for answer in heard)
    least_s = max(answer.num_rounds for answer in heard) * BUSY_STEP_MS / 1e3
    figures = {f"goodput_{way}": least_s / seconds}
    if way != "verifier":
        figures |= {
            f"tokens_per_s_{way}": sum(answer.num_tokens for answer in heard) / seconds,
            f"cpu_ms_per_round_busy_{way}": spent_s / rounds * 1e3,
            f"kb_per_stream_{way}": (most_bytes - idle_bytes) / num_streams / 1e3,
        }
    return figures


def tell(progress: str) -> None:
    print(f"\r{progress:60s}", end="", file=sys.stderr, flush=True)


def table(figures: dict[str, float]) -> Sequence[str]:
    """A line for each figure, with its aim if it has one."""
    aims = {f"{name}_{door}": aim for name, aim in AIMS.items() for door in ("grpc", "http")}
    return [
        f"{name:32s}{value:10.3f}"
        + (
            f"   aim {aims[name]:g}: {'met' if value <= aims[name] else 'MISSED'}"
            if name in aims
            else ""
        )
        for name, value in figures.items()
    ]


async def measure(options: argparse.Namespace) -> dict[str, float]:
    figures = await first_tokens(options.pairs)
    figures |= await one_stream(options.rounds)
    for way in ("verifier", "relay", "grpc", "http"):
        figures |= await many_streams(way, options.streams, options.busy_rounds)
    tell("")
    return figures


def main() -> None:
    description, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=300, help="pairs for time to first token")
    parser.add_argument("--rounds", type=int, default=800, help="rounds of one stream")
    parser.add_argument("--streams", type=int, default=300, help="streams at once")
    parser.add_argument("--busy-rounds", type=int, default=20, help="rounds of each of those")
    parser.add_argument("--json", action="store_true", help="no table, the JSON line alone")
    options = parser.parse_args()
    figures = asyncio.run(measure(options))
    if not options.json:
        print("\r" + "\n".join(table(figures)))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
