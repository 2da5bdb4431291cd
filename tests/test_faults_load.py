"""make test-faults: a gateway process with many streams and many cancels, over a mock target."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from fakes import ids_of
from mock_target import answer
from processes import Process, wait_until

from paceline.client import GatewayClient
from paceline.events import Delta, Finished, Request
from paceline.params import SamplingParams
from paceline.server import open_channel
from paceline.v1 import (
    gateway_pb2,
    gateway_pb2_grpc,
    tokens_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

pytestmark = pytest.mark.faults

NUM_STREAMS = 300
NUM_CANCELS = 5000
AT_ONCE = 50
MAX_BYTES_PER_STREAM = 60_000
MAX_BYTES_PER_CANCEL = 50
# Resident memory moves by so much with the pages that happen to be in use. An operation of grpc.aio
# cancelled half-way in each call would be 2.8 MB, and so would one answer in twenty that is kept.
PAGES_BYTES = 1_000_000
PROMPT = "load"


class Pair:
    """A mock target and a gateway in front of it."""

    def __init__(self, step_ms: float) -> None:
        self.target = Process("mock_target", f"--step-ms={step_ms}")
        self.target_address = self.target.address()
        self.gateway = Process(
            "gateway",
            "--port=0",
            "--max-requests=1000",
            "--log-level=warning",
            f"--verifier={self.target_address}",
        )
        self.address = self.gateway.address()

    def num_live(self) -> int:
        with grpc.insecure_channel(self.target_address) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            status = stub.GetStatus(verifier_pb2.GetStatusRequest(), timeout=10.0)
            return int(status.num_running)

    def close(self) -> None:
        self.gateway.close()
        self.target.close()


@contextlib.contextmanager
def pair(step_ms: float) -> Iterator[Pair]:
    opened = Pair(step_ms)
    try:
        yield opened
    finally:
        opened.close()


def request(seed: int, num_tokens: int) -> Request:
    return Request(PROMPT, SamplingParams(max_tokens=num_tokens), seed=seed)


async def test_300_streams_at_once_are_complete_and_cheap():
    num_tokens = 30
    prompt = ids_of(PROMPT)
    with pair(step_ms=150) as opened:
        async with GatewayClient(opened.address) as client:

            async def one(seed: int) -> bool:
                token_ids: list[int] = []
                async for event in client.generate(request(seed, num_tokens)):
                    if isinstance(event, Delta):
                        token_ids += event.token_ids
                assert isinstance(event, Finished)
                return token_ids == answer(prompt, seed, num_tokens)

            async def burst(first_seed: int) -> tuple[int, int, int]:
                """(correct answers, the gateway's memory before, its most during)"""
                before = most = opened.gateway.rss_bytes()
                answers = [asyncio.create_task(one(first_seed + i)) for i in range(NUM_STREAMS)]
                while not all(task.done() for task in answers):
                    await asyncio.wait(answers, timeout=0.05)
                    most = max(most, opened.gateway.rss_bytes())
                return sum(task.result() for task in answers), before, most

            # What the first answer loads is not a stream's.
            assert await one(0)
            correct, cold, most = await burst(0)
            per_stream = (most - cold) / NUM_STREAMS
            again, warm, most_again = await burst(NUM_STREAMS)
            await asyncio.to_thread(wait_until, lambda: not opened.num_live(), 5.0, "none live")
    print(
        f"\n{NUM_STREAMS} streams: {correct} and {again} correct; "
        f"gateway {per_stream / 1000:.1f} kB per stream: {cold / 1e6:.1f} MB before, "
        f"{most / 1e6:.1f} at most, {warm / 1e6:.1f} after, {most_again / 1e6:.1f} the second time"
    )
    assert correct == again == NUM_STREAMS
    assert per_stream <= MAX_BYTES_PER_STREAM
    assert most_again - cold <= 1.2 * (most - cold), "the second burst needs what the first did"


async def storm(stub: Any, num_cancels: int, chance: random.Random) -> None:
    """Calls that are cancelled before anything came, or after 1 to 7 messages."""
    params = tokens_pb2.SamplingParams(max_tokens=200)
    left = iter(range(num_cancels))

    async def caller() -> None:
        for _ in left:
            wanted = gateway_pb2.GenerateRequest(
                text=PROMPT, params=params, seed=chance.randrange(2**32)
            )
            call = stub.Generate(wanted)
            if num_messages := chance.randrange(8):
                for _ in range(num_messages):
                    await call.read()
            else:
                await asyncio.sleep(chance.random() * 0.01)
            call.cancel()

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))


async def test_5000_cancels_at_random_phases_leave_nothing_behind():
    chance = random.Random(11)
    with pair(step_ms=1) as opened:
        async with open_channel(opened.address) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            await storm(stub, NUM_CANCELS, chance)
            await asyncio.to_thread(wait_until, lambda: not opened.num_live(), 1.0, "none live")
            # What is allocated once is not a leak; the heap finds its size in some 10,000 calls.
            await storm(stub, NUM_CANCELS, chance)
            before = opened.gateway.rss_bytes()
            await storm(stub, NUM_CANCELS, chance)
            grown = opened.gateway.rss_bytes() - before
        async with GatewayClient(opened.address) as client:
            whole = [event async for event in client.generate(request(1, 20))]
    print(
        f"\n{NUM_CANCELS} cancels: 0 live sequences; in the last of {3 * NUM_CANCELS} the gateway "
        f"grew by {grown / 1e6:.2f} MB, {grown / NUM_CANCELS:.0f} B each"
    )
    assert isinstance(whole[-1], Finished)
    assert grown <= NUM_CANCELS * MAX_BYTES_PER_CANCEL + PAGES_BYTES
