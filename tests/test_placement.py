"""Placement: who gets a sequence, who is left alone, and verifiers that come and go."""

import asyncio
from typing import Any

import grpc
import pytest
from fakes import DEADLINE_S, FakeVerifier, eventually, gateway_for, ids_of, served
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.breaker import LAST_OPEN_S, MAX_FAILURES, WINDOW_S, Breaker
from gateway.config import GatewaySettings
from gateway.heartbeat import MAX_MISSED, Heartbeat
from gateway.placement import LOAD_FACTOR, MIN_PREFIX_TOKENS, place, prefix_key, ranked
from gateway.sequences import VerifierStatus
from gateway.verifiers import Verifiers
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb

NAMES = [f"10.0.0.{number}:7002" for number in range(8)]
WORK = VerifierStatus(num_running=1, num_waiting=0, num_steps=5)
IDLE = VerifierStatus(num_running=0, num_waiting=0, num_steps=5)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_prompts_that_begin_alike_share_a_key_and_short_ones_have_none():
    head = list(range(MIN_PREFIX_TOKENS))
    assert prefix_key([*head, 1, 2]) == prefix_key([*head, 3]) != ""
    assert prefix_key([*head[1:], 1, 2]) != prefix_key([*head, 3])
    assert prefix_key(head[1:]) == ""


def test_a_verifier_that_goes_moves_its_own_keys_only():
    keys = [str(number) for number in range(400)]
    before = {key: ranked(key, NAMES)[0] for key in keys}
    after = {key: ranked(key, NAMES[1:])[0] for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != NAMES[0])
    counts = [list(before.values()).count(name) for name in NAMES]
    assert min(counts) > 400 / len(NAMES) / 2


@settings(max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.text(min_size=1, max_size=4))
def test_nobody_is_loaded_far_beyond_the_mean(loads: list[int], key: str):
    named = dict(zip(NAMES, loads, strict=False))
    chosen = place(key, named)
    mean = (sum(loads) + 1) / len(loads)
    assert named[chosen] < LOAD_FACTOR * mean + 1
    if max(loads) < LOAD_FACTOR * mean:
        assert chosen == ranked(key, list(named))[0]


def test_without_a_key_the_least_loaded_takes_it():
    assert place("", {"a": 2, "b": 1, "c": 1}) == "b"


def test_a_breaker_opens_after_failures_in_a_row_of_time_and_doubles(clock: Clock):
    breaker = Breaker(clock)
    for _ in range(MAX_FAILURES):
        assert breaker.allows
        breaker.fail()
    assert not breaker.allows
    open_s = 1.0
    while open_s < LAST_OPEN_S:
        clock.now += open_s - 0.01
        assert not breaker.allows
        clock.now += 0.02
        assert breaker.allows
        breaker.begin()
        assert not breaker.allows, "one probe at a time"
        breaker.fail()
        open_s = min(2 * open_s, LAST_OPEN_S)
    clock.now += LAST_OPEN_S
    breaker.begin()
    breaker.give_up()
    assert breaker.allows, "a probe that told nothing leaves room for another"
    breaker.begin()
    breaker.succeed()
    breaker.fail()
    assert breaker.allows, "closed: it takes all the failures again"


def test_failures_far_apart_open_no_breaker(clock: Clock):
    breaker = Breaker(clock)
    for _ in range(3 * MAX_FAILURES):
        breaker.fail()
        breaker.succeed()
        clock.now += WINDOW_S / (MAX_FAILURES - 1) + 1
    assert breaker.allows


def test_a_heartbeat_tells_silence_and_standstill_from_idleness(clock: Clock):
    heart = Heartbeat(10.0, clock)
    for _ in range(MAX_MISSED):
        assert not heart.is_frozen
        heart.missed()
    assert heart.is_frozen
    heart.answered(WORK)
    assert not heart.is_frozen
    clock.now += 10.1
    heart.answered(WORK)
    assert heart.is_frozen, "work, and not one step"
    heart.moved()
    assert not heart.is_frozen, "tokens came"
    clock.now += 10.1
    heart.answered(IDLE)
    assert not heart.is_frozen, "nothing to do"


def test_a_gateway_that_slept_does_not_blame_its_verifiers(clock: Clock):
    heart = Heartbeat(10.0, clock)
    heart.answered(WORK)
    clock.now += 3600
    heart.missed()
    assert not heart.is_frozen


@pytest.mark.parametrize("entry", ["nonsense", ":7002", "dns:7002", "host:70000", "host:x"])
def test_addresses_that_are_none_are_refused_by_name(entry: str, capsys: Any):
    with pytest.raises(SystemExit) as stopped:
        GatewaySettings.load([f"--verifier={entry}"])
    assert stopped.value.code == 2
    assert entry in capsys.readouterr().err


async def text_of(stub: Any, content: str = "a") -> str:
    async with asyncio.timeout(DEADLINE_S):
        responses = [r async for r in stub.Generate(pb.GenerateRequest(text=content))]
    return "".join(r.delta.text for r in responses)


async def test_names_are_looked_up_again_and_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.verifiers.RESOLVE_S", 0.02)
    found: list[list[str]] = []

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("verifiers.internal", 7002)
        if not found:
            raise OSError("no such name")
        return found[-1]

    fakes = [FakeVerifier([ids_of("a"), ids_of("b")]) for _ in range(2)]
    async with served(fakes[0]) as (first, _), served(fakes[1]) as (second, _):
        verifiers = Verifiers(["dns:verifiers.internal:7002"], stall_s=10.0, resolve=resolve)
        verifiers.start()
        try:
            await asyncio.sleep(0.05)
            assert verifiers.all == []
            found.append([first])
            async with asyncio.timeout(DEADLINE_S):
                await verifiers.wait_ready()
            found.append([first, second])
            await eventually(lambda: [v.is_ready for v in verifiers.all] == [True, True])
            # One that leaves gets nothing new and stays until its last sequence has ended.
            leaving = verifiers.all[0]
            leaving.num_live = 1
            found.append([second])
            await eventually(lambda: leaving.is_leaving)
            model, _ = verifiers.serving("")
            placed = verifiers.place(model, "")
            assert placed is not None
            assert placed.address == second
            await asyncio.sleep(0.3)
            assert leaving in verifiers.all
            leaving.num_live = 0
            await eventually(lambda: [v.address for v in verifiers.all] == [second])
            # A name server that fails takes nothing away.
            found.clear()
            await asyncio.sleep(0.1)
            assert [v.address for v in verifiers.all] == [second]
        finally:
            await verifiers.close()


async def test_prompts_that_begin_alike_go_to_the_same_verifier():
    fakes = [FakeVerifier([ids_of("a")]) for _ in range(3)]
    async with (
        served(fakes[0]) as (first, _),
        served(fakes[1]) as (second, _),
        served(fakes[2]) as (third, _),
        gateway_for(first, second, third) as (gateway, stub),
    ):
        await eventually(lambda: all(v.is_ready for v in gateway.verifiers.all))
        await eventually(lambda: all(v.num_foreign == 1 for v in gateway.verifiers.all))
        for number in range(6):
            await text_of(stub, "x" * MIN_PREFIX_TOKENS + str(number))
        assert sorted(len(fake.opens) for fake in fakes) == [0, 0, 6]


async def test_a_verifier_that_fails_again_and_again_is_left_alone():
    fakes = [FakeVerifier([ids_of("a")]), FakeVerifier([ids_of("a")])]
    fakes[0].refusal = Refusal(grpc.StatusCode.INTERNAL, "the target's output was not finite")
    async with (
        served(fakes[0]) as (first, _),
        served(fakes[1]) as (second, _),
        gateway_for(first, second) as (gateway, stub),
    ):
        await eventually(lambda: all(v.is_ready for v in gateway.verifiers.all))
        for _ in range(MAX_FAILURES):
            with pytest.raises(grpc.aio.AioRpcError):
                await text_of(stub)
        assert await text_of(stub) == "a"
        assert len(fakes[0].opens) == MAX_FAILURES
