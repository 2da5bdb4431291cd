"""Never slower, on real services: each case against speculation off, in turns, medians of ratios.

Drafters that are useless, slow or flapping; a good one under load and behind a slow network; time
to first token of 16 requests at once. Prints a table; the last line is JSON. `--quick` takes
minutes less and says less. Ratios are plain time over speculative time: above 1 is faster.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from delay_proxy import delayed
from services import service

from paceline.client import GatewayClient
from paceline.events import ChatMessage, Delta, DraftPolicy, Finished, Request
from paceline.params import SamplingParams, Speculation

HERE = Path(__file__).resolve().parent
BAD = str(HERE / "bad_drafter.py")
COPY = (
    "Copy this text exactly, twice: The quick brown fox jumps over the lazy dog, and then it goes "
    "back to the den by the river to sleep until the evening comes."
)
OTHER = "Tell a short story about a lighthouse keeper who finds a map."


@dataclass(frozen=True)
class Measured:
    """One run of some requests at once. Times in seconds."""

    tokens_per_s: float
    per_token_s: list[float]
    first_s: list[float]
    # Tokens of each first message.
    first_tokens: list[int]
    num_accepted: int


@dataclass(frozen=True)
class Ratios:
    """Medians over pairs of runs; `p95` is speculative over plain time per token."""

    speed: float
    p95: float
    first_p50: float
    first_p95: float
    first_long: float
    num_accepted: int


async def ask(
    client: GatewayClient, prompt: str, max_tokens: int, speculation: Speculation, seed: int
) -> tuple[float, float, int, Finished]:
    request = Request(
        [ChatMessage("user", prompt)],
        SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        seed=seed,
        draft=DraftPolicy(speculation),
    )
    start_s = time.perf_counter()
    first_s, first_tokens, finished = 0.0, 0, None
    async with contextlib.aclosing(client.generate(request)) as events:
        async for event in events:
            if isinstance(event, Delta) and event.round is not None and not first_s:
                first_s, first_tokens = time.perf_counter() - start_s, len(event.token_ids)
            finished = event if isinstance(event, Finished) else finished
    assert finished is not None
    return first_s, time.perf_counter() - start_s, first_tokens, finished


async def measure(
    client: GatewayClient, prompt: str, at_once: int, max_tokens: int, speculation: Speculation
) -> Measured:
    start_s = time.perf_counter()
    answers = await asyncio.gather(
        *(ask(client, prompt, max_tokens, speculation, seed) for seed in range(at_once))
    )
    took_s = time.perf_counter() - start_s
    return Measured(
        tokens_per_s=at_once * max_tokens / took_s,
        per_token_s=[(total - first) / max(max_tokens - 1, 1) for first, total, _, _ in answers],
        first_s=[first for first, *_ in answers],
        first_tokens=[count for *_, count, _ in answers],
        num_accepted=sum(finished.totals.num_accepted for *_, finished in answers),
    )


def p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]


async def compare(
    client: GatewayClient, prompt: str, *, at_once: int, max_tokens: int, pairs: int
) -> Ratios:
    """Plain and speculative runs in turns, each first as often as the other."""
    plain, ours = [], []
    for number in range(pairs):
        order = [(Speculation.OFF, plain), (Speculation.AUTO, ours)]
        for speculation, runs in order[:: -1 if number % 2 else 1]:
            runs.append(await measure(client, prompt, at_once, max_tokens, speculation))
    both = list(zip(plain, ours, strict=True))
    return Ratios(
        speed=statistics.median(b.tokens_per_s / a.tokens_per_s for a, b in both),
        p95=statistics.median(p95(b.per_token_s) / p95(a.per_token_s) for a, b in both),
        first_p50=statistics.median(
            statistics.median(b.first_s) / statistics.median(a.first_s) for a, b in both
        ),
        first_p95=statistics.median(p95(b.first_s) / p95(a.first_s) for a, b in both),
        first_long=statistics.mean(n > 1 for run in ours for n in run.first_tokens),
        num_accepted=sum(run.num_accepted for run in ours),
    )


@contextlib.asynccontextmanager
async def stack(model: str, drafter: str) -> AsyncIterator[GatewayClient]:
    """A verifier with this drafter's address, and a client of its gateway, warmed up."""
    with (
        service(
            "-m", "verifier_service", "--port=0", f"--model={model}", f"--drafter={drafter}"
        ) as verifier,
        service("-m", "gateway", "--port=0", f"--verifier={verifier}") as gateway,
    ):
        async with GatewayClient(gateway) as client:
            for speculation in (Speculation.OFF, Speculation.AUTO):
                await measure(client, COPY, 1, 8, speculation)
            yield client


def show(name: str, ratios: Ratios) -> None:
    print(
        f"{name:<34} {ratios.speed:6.2f}x {ratios.p95:10.2f} {ratios.first_p50:8.2f} "
        f"{ratios.first_p95:8.2f} {ratios.num_accepted:9d}",
        flush=True,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    max_tokens, pairs = (24, 2) if arguments.quick else (128, 5)
    loads = (1, 4, 16) if arguments.quick else (1, 2, 4, 8, 16)
    delays_ms = (10,) if arguments.quick else (1, 10, 50)
    scenarios: dict[str, Ratios] = {}
    load: dict[str, Ratios] = {}
    first: dict[str, Ratios] = {}

    async def case(
        table: dict[str, Ratios], key: str, client: GatewayClient, prompt: str, at_once: int = 1
    ) -> None:
        table[key] = await compare(
            client, prompt, at_once=at_once, max_tokens=max_tokens, pairs=pairs
        )
        show(key, table[key])

    def wanted(name: str) -> bool:
        return arguments.only in name

    print(f"{'case':<35} speed  p95/token  ttft p50  ttft p95  accepted")
    bad = {
        "random": ("-m", "drafter_service", "--port=0", "--drafter=random"),
        "slow": (BAD, "slow", "0"),
        "flapping": (BAD, "flap", "0"),
    }
    for name, command in bad.items():
        if not wanted(name):
            continue
        with service(*command) as drafter:
            async with stack(arguments.model, drafter) as client:
                prompt = OTHER if name == "random" else COPY
                await case(scenarios, name, client, prompt)
    with service("-m", "drafter_service", "--port=0", "--drafter=lookup") as drafter:
        if wanted("load"):
            async with stack(arguments.model, drafter) as client:
                for at_once in loads:
                    await case(load, f"load {at_once}", client, COPY, at_once)
        if wanted("ttft"):
            async with stack(arguments.model, drafter) as client:
                first["16"] = await compare(client, COPY, at_once=16, max_tokens=4, pairs=pairs)
                show("ttft 16", first["16"])
        for delay_ms in delays_ms:
            if wanted("delay"):
                port = int(drafter.rpartition(":")[2])
                async with (
                    delayed(port, delay_ms / 1e3) as proxy,
                    stack(arguments.model, f"127.0.0.1:{proxy}") as client,
                ):
                    await case(scenarios, f"delay {delay_ms} ms", client, COPY)
    speeds = {name: ratios.speed for name, ratios in (scenarios | load).items()}
    print(
        json.dumps(
            {
                "scenarios": {name: round(r.speed, 3) for name, r in scenarios.items()},
                "load": {name.split()[1]: round(r.speed, 3) for name, r in load.items()},
                "p95": {name: round(r.p95, 3) for name, r in (scenarios | load).items()},
                "ttft": {
                    name: {
                        "p50": round(r.first_p50, 3),
                        "p95": round(r.first_p95, 3),
                        "more_than_one_token": round(r.first_long, 3),
                    }
                    for name, r in first.items()
                },
                "min": round(min(speeds.values()), 3) if speeds else None,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
