"""Never slower, on real services: each case against speculation off, in turns, on the same ones.

Drafters that are useless, slow, flapping, on the same cores; a good one under load and behind a
slow network, also against a loop that waits for every draft; eight different texts at once, without
a drafter; time to first token of 16 at once.
Plain decoding is also compared with itself: what differs there is the machine.
Prints a table and what missed the promise; the last line is JSON. There, `scenarios` and `load` are
tokens per second over plain's, `min` is the least of them, and `ttft` holds times over plain's;
`control` is plain over itself.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from delay_proxy import Line, open_line
from pacing_pairs import PACED, PLAIN, SERIAL, Ratios, ask, compare, prompts_by_category
from services import service

from paceline.client import GatewayClient
from paceline.events import DraftPolicy
from paceline.params import Speculation
from paceline.verifier_status import verifier_status

BAD = str(Path(__file__).resolve().parent / "bad_drafter.py")
LOOKUP = ("-m", "drafter_service", "--port=0", "--metrics-port=0", "--drafter=lookup")
RANDOM = ("-m", "drafter_service", "--port=0", "--metrics-port=0", "--drafter=random")
# The target itself drafts: every token right, and each as dear as one of the target's.
MODEL = ("-m", "drafter_service", "--port=0", "--metrics-port=0", "--drafter=model")
COPY = (
    "Copy this text exactly, twice: The quick brown fox jumps over the lazy dog, and then it goes "
    "back to the den by the river to sleep until the evening comes."
)
OTHER = "Tell a short story about a lighthouse keeper who finds a map."
LOADS = (1, 2, 4, 8, 16)
# Different texts, of which hardly any repeats itself.
MIXED = 8
FORGETFUL = DraftPolicy(Speculation.AUTO, forget=True)
DELAYS_MS = (1, 10, 50)
LEAST_SPEED, MOST_P95, MOST_FIRST = 0.97, 1.03, 1.03
CONTROL = "plain against itself"
# Flapping has a period of 10 s, of which an answer should see more than one half.
LONG = 3
# A verifier dials again after at most this.
_LINK_S = 60.0
COLUMNS = "speed  p95/token  ttft p50  ttft p95  accepted  plain tok/s"


def one_of_each() -> list[str]:
    """A prompt of every category of the benchmark."""
    return [texts[0] for texts in prompts_by_category().values()]


@dataclass
class Report:
    """What was found: the JSON line, and what missed the promise."""

    rounds: int
    seconds: float
    max_tokens: int
    only: str
    model: str = "embedded"
    scenarios: dict[str, float] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    ttft: dict[str, float | None] = field(default_factory=dict)
    control: dict[str, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    start_s: float = field(default_factory=time.monotonic)

    def wants(self, name: str) -> bool:
        return self.only in name

    def say(self, text: str) -> None:
        print(f"  [{time.monotonic() - self.start_s:4.0f} s] {text}", flush=True)

    def show(self, name: str, found: Ratios) -> None:
        print(
            f"{name:<34} {found.speed:6.2f}x {found.p95:10.3f} {found.first_p50:9.3f} "
            f"{found.first_p95:9.3f} {found.accepted:9.0%} {found.plain_tokens_per_s:12.1f}",
            flush=True,
        )

    def judge(self, name: str, found: Ratios) -> float:
        """Shows a case and notes what it missed; the ratio of the JSON line."""
        self.show(name, found)
        if found.speed < LEAST_SPEED:
            self.missed.append(f"{name}: {found.speed:.3f}x of plain's tokens/s")
        if found.p95 > MOST_P95:
            self.missed.append(f"{name}: {found.p95:.3f}x of plain's p95 time per token")
        return round(found.speed, 3)

    @property
    def json(self) -> str:
        speeds = [*self.scenarios.values(), *self.load.values()]
        return json.dumps(
            {
                "scenarios": self.scenarios,
                "load": self.load,
                "ttft": self.ttft,
                "control": self.control,
                "min": min(speeds, default=None),
            }
        )


@dataclass(frozen=True)
class Stack:
    """A verifier, its gateway's client, and the line on which it finds its drafter."""

    verifier: str
    client: GatewayClient
    line: Line

    @contextlib.asynccontextmanager
    async def drafter(self, *command: str, delay_s: float = 0.0) -> AsyncIterator[None]:
        """This drafter, and nobody after the end of the block; the verifier has noticed each."""
        with service(*command) as address:
            await self.line.lead_to(address, delay_s)
            await asyncio.wait_for(self.line.is_used.wait(), _LINK_S)
            await self._until("ready")
            try:
                yield
            finally:
                await self.line.lead_to(None)
        await self._until("connecting")

    async def _until(self, state: str) -> None:
        deadline_s = time.monotonic() + _LINK_S
        while time.monotonic() < deadline_s:
            status = await verifier_status(self.verifier)
            if status is not None and status.drafters[0].state == state:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the drafter's link is not {state}")


@contextlib.asynccontextmanager
async def stack(report: Report, *options: str) -> AsyncIterator[Stack]:
    """Services that compile and draw their first breath before anything is measured."""
    report.say("starting a verifier and a gateway")
    flags = ("--port=0", "--metrics-port=0")
    async with open_line() as line:
        drafter, model = f"--drafter=127.0.0.1:{line.port}", f"--model={report.model}"
        with (
            service("-m", "verifier_service", *flags, drafter, model, *options) as verifier,
            service("-m", "gateway", *flags, f"--verifier={verifier}") as gateway,
        ):
            async with GatewayClient(gateway) as client:
                for policy in (PLAIN, PACED):
                    await ask(client, COPY, 8, policy)
                yield Stack(verifier, client, line)


async def case(
    report: Report,
    name: str,
    client: GatewayClient,
    *prompts: str,
    longer: int = 1,
    policy: DraftPolicy = PACED,
) -> float:
    (found,) = await compare(
        client,
        prompts,
        (PLAIN, policy),
        max_tokens=report.max_tokens * longer,
        rounds=report.rounds,
        seconds=report.seconds,
        workload=name,
        progress=report.say,
    )
    return report.judge(name, found)


async def drafters_alone(report: Report) -> None:
    """What the verifier could draft for itself is off: the drafter is all there is."""
    bad = [
        ("random", RANDOM, OTHER, 1),
        ("slow", (BAD, "slow", "0"), COPY, 1),
        ("flapping", (BAD, "flap", "0"), COPY, LONG),
        ("same cores", (*MODEL, f"--model={report.model}"), OTHER, 1),
    ]
    late = [(f"delay {delay_ms} ms", delay_ms) for delay_ms in DELAYS_MS]
    if not any(report.wants(name) for name, *_ in (*bad, *late, (CONTROL,))):
        return
    async with stack(report, "--local-sources=") as services:
        if report.wants(CONTROL):
            await _control(report, services.client)
        for name, command, prompt, longer in bad:
            if report.wants(name):
                async with services.drafter(*command):
                    report.scenarios[name] = await case(
                        report, name, services.client, prompt, longer=longer
                    )
        for name, delay_ms in late:
            if report.wants(name):
                async with services.drafter(*LOOKUP, delay_s=delay_ms / 1e3):
                    await _delayed(report, name, services.client, is_far=delay_ms >= 10)


async def _control(report: Report, client: GatewayClient) -> None:
    """As many answers as in the other cases: what a percentile varies by depends on that."""
    found = []
    for prompts, max_tokens in (([OTHER], report.max_tokens), ([COPY] * 16, 16)):
        found += await compare(
            client,
            prompts,
            (PLAIN, PLAIN),
            max_tokens=max_tokens,
            rounds=report.rounds,
            seconds=report.seconds,
            workload=CONTROL,
            progress=report.say,
        )
        report.show(f"{CONTROL}, {len(prompts)} at once", found[-1])
    one, many = found
    report.control |= {
        "speed": round(one.speed, 3),
        "p95": round(one.p95, 3),
        "ttft_p50": round(many.first_p50, 3),
        "ttft_p95": round(many.first_p95, 3),
    }


async def _delayed(report: Report, name: str, client: GatewayClient, *, is_far: bool) -> None:
    ours, serial = await compare(
        client,
        [COPY],
        (PLAIN, PACED, SERIAL),
        max_tokens=report.max_tokens,
        rounds=report.rounds,
        seconds=report.seconds,
        workload=name,
        progress=report.say,
    )
    report.scenarios[name] = report.judge(name, ours)
    report.show(f"{name}, a loop that waits", serial)
    if is_far and ours.speed <= serial.speed:
        report.missed.append(f"{name}: a loop that waits is faster")


async def as_shipped(report: Report) -> None:
    """The verifier's own lookups are on, as by default."""
    wanted = [count for count in LOADS if report.wants(f"load {count}")]
    mixed = f"mixed, {MIXED} at once"
    if not wanted and not report.wants("ttft") and not report.wants(mixed):
        return
    async with stack(report) as services:
        if report.wants(mixed):
            # Nothing is kept, or the answers of one turn would be known in the next.
            report.scenarios[mixed] = await case(
                report, mixed, services.client, *one_of_each()[:MIXED], policy=FORGETFUL
            )
        async with services.drafter(*LOOKUP):
            for count in wanted:
                ratio = await case(report, f"load {count}", services.client, *[COPY] * count)
                report.load[str(count)] = ratio
            if report.wants("ttft"):
                await _first(report, services.client, "ttft")
        if report.wants("ttft"):
            await _first(report, services.client, "ttft stopped")


async def _first(report: Report, client: GatewayClient, name: str) -> None:
    (found,) = await compare(
        client,
        [COPY] * 16,
        (PLAIN, PACED),
        max_tokens=16,
        rounds=report.rounds,
        seconds=report.seconds,
        workload="load",
        progress=report.say,
    )
    report.show(name, found)
    prefix = "stopped_" if name.endswith("stopped") else ""
    for key, value in (("p50", found.first_p50), ("p95", found.first_p95)):
        report.ttft[prefix + key] = round(value, 3)
        most = MOST_FIRST if prefix else 1.0
        if value > most:
            report.missed.append(f"{name}: {key} {value:.3f}x of plain's")
    if prefix:
        return
    share = found.first_long_if_drafted
    report.ttft["first_message_long"] = round(found.first_long, 3)
    report.ttft["first_message_long_if_drafted"] = None if share is None else round(share, 3)
    if share is None or share < 0.5:
        report.missed.append(f"{name}: {share} of the drafted first messages have over one token")


async def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=10, help="of each policy per case, if time allows"
    )
    parser.add_argument("--seconds", type=float, default=32.0, help="for a case; two rounds always")
    parser.add_argument("--tokens", type=int, default=40, help="tokens of an answer")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--model", default="embedded", help="target, and draft model of one case")
    options = parser.parse_args(arguments)
    report = Report(options.rounds, options.seconds, options.tokens, options.only, options.model)
    print(f"{'case':<34}   {COLUMNS}")
    for part in (drafters_alone, as_shipped):
        await part(report)
    for text in report.missed:
        print(f"missed: {text}")
    report.say("done")
    print(report.json)


if __name__ == "__main__":
    asyncio.run(main())
