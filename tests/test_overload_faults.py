"""Three times more than the gateway can serve, and a tenant that floods: what the others get.

Open-loop load against a scripted verifier of eight places and 1 s an answer, in this process.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from fakes import FakeVerifier, gateway_with, ids_of
from test_security_keys import add, bearer

from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb

pytestmark = pytest.mark.faults

PLACES = 8
NUM_ROUNDS = 5
ROUND_S = 0.2
CAPACITY_PER_S = PLACES / (NUM_ROUNDS * ROUND_S)
OVERLOAD_S = 30.0


class PacedVerifier(FakeVerifier):
    """Takes its time for an answer, a quarter more or less, so that places come free one by one."""

    def __init__(self) -> None:
        super().__init__([ids_of("a")] * NUM_ROUNDS)
        self.num_running = 0
        self.most_running = 0

    async def _answer(self, opening, told, context) -> str:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            spread = 0.75 + 0.5 * (len(self.opens) * 0.618 % 1)
            await asyncio.sleep(NUM_ROUNDS * ROUND_S * spread)
            return await super()._answer(opening, told, context)
        finally:
            self.num_running -= 1


@dataclass
class Outcomes:
    """What a load came to; seconds."""

    finished_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    hints_s: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    async def ask(self, stub, key: str) -> None:
        began = time.monotonic()
        call = stub.Generate(
            pb.GenerateRequest(text="a", params={"max_tokens": NUM_ROUNDS}), metadata=bearer(key)
        )
        num_messages = 0
        try:
            while await call.read() is not grpc.aio.EOF:
                num_messages += 1
        except grpc.aio.AioRpcError as error:
            refusal = Refusal.from_rpc_error(error)
            if num_messages or refusal.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.broken.append(f"{refusal.code.name} after {num_messages} messages")
            self.refused_s.append(time.monotonic() - began)
            self.hints_s.append(refusal.retry_after_s or 0.0)
        else:
            self.finished_s.append(time.monotonic() - began)

    async def load(self, stub, key: str, per_s: float, for_s: float) -> float:
        """Requests at a fixed rate, however long their answers take; seconds until the last."""
        began = time.monotonic()
        tasks = []
        while (at_s := len(tasks) / per_s) < for_s:
            await asyncio.sleep(began + at_s - time.monotonic())
            tasks.append(asyncio.create_task(self.ask(stub, key)))
        await asyncio.gather(*tasks)
        return time.monotonic() - began


def percentile(values: Sequence[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "keys.yaml"
    return {"file": str(file)} | {name: add(file, name) for name in ("one", "flood", "calm")}


def gateway(keys: dict[str, str], fake: FakeVerifier):
    return gateway_with(
        fake, max_requests=PLACES, max_queued=2 * PLACES, max_queue_s=2.0, api_keys=keys["file"]
    )


async def test_three_times_too_much_costs_no_throughput_and_is_over_soon(keys):
    fake = PacedVerifier()
    async with gateway(keys, fake) as stub:

        async def always_asking(outcomes: Outcomes, until: float) -> None:
            while time.monotonic() < until:
                await outcomes.ask(stub, keys["one"])

        peak = Outcomes()
        began = time.monotonic()
        workers = [always_asking(peak, began + 10) for _ in range(PLACES + 2)]
        await asyncio.gather(*workers)
        peak_per_s = len(peak.finished_s) / (time.monotonic() - began)
        over = Outcomes()
        took_s = await over.load(stub, keys["one"], 3 * CAPACITY_PER_S, OVERLOAD_S)
        goodput_per_s = len(over.finished_s) / took_s
        # Recovery: one request at a time, until it takes what it takes alone.
        ended = time.monotonic()
        after = Outcomes()
        while not after.finished_s or after.finished_s[-1] > 1.5 * NUM_ROUNDS * ROUND_S:
            await after.ask(stub, keys["one"])
            assert time.monotonic() - ended < 5
        recovery_s = time.monotonic() - ended
    print(
        f"peak {peak_per_s:.1f}/s, goodput at 3x {goodput_per_s:.1f}/s, "
        f"{len(over.refused_s)} refused, p99 {percentile(over.refused_s, 99) * 1e3:.1f} ms, "
        f"recovery {recovery_s:.2f} s"
    )
    assert fake.most_running <= PLACES
    assert over.broken == []
    assert goodput_per_s >= 0.9 * peak_per_s
    assert percentile(over.refused_s, 99) < 0.020
    assert min(over.hints_s) > 0
    # The queue is bounded: whoever was let in waited for no more than it holds.
    assert percentile(over.finished_s, 99) < 5 * NUM_ROUNDS * ROUND_S


async def test_one_tenants_flood_is_hardly_felt_by_another(keys):
    fake = PacedVerifier()
    calm_per_s = CAPACITY_PER_S / 4
    async with gateway(keys, fake) as stub:
        alone, beside, flood = Outcomes(), Outcomes(), Outcomes()
        await alone.load(stub, keys["calm"], calm_per_s, 10)
        flooding = asyncio.create_task(
            flood.load(stub, keys["flood"], 3 * CAPACITY_PER_S, OVERLOAD_S / 2)
        )
        await asyncio.sleep(1)
        await beside.load(stub, keys["calm"], calm_per_s, OVERLOAD_S / 2 - 2)
        await flooding
    p99 = {"alone": percentile(alone.finished_s, 99), "beside": percentile(beside.finished_s, 99)}
    print(
        f"p99 alone {p99['alone'] * 1e3:.0f} ms, beside a flood {p99['beside'] * 1e3:.0f} ms; "
        f"of the flood {len(flood.finished_s)} served, {len(flood.refused_s)} refused"
    )
    assert beside.refused_s == []
    assert beside.broken == flood.broken == []
    assert p99["beside"] <= 1.5 * p99["alone"]
    # The flood still gets what the other leaves.
    assert len(flood.finished_s) >= len(beside.finished_s)
