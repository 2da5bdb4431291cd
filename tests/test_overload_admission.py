"""Admission: who waits, who is refused at once and when to come again; all is given back."""

import asyncio
import contextlib

import grpc
import pytest
from fakes import FakeVerifier, eventually, gateway_with, ids_of

from gateway.admission import Admission
from gateway.keys import ANYBODY, Tenant
from gateway.reserve import WINDOW_S
from paceline.server import Refusal
from paceline.v1 import gateway_pb2 as pb


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def admission(max_requests: int = 1, **limits) -> tuple[Admission, Clock]:
    clock = Clock()
    return Admission(max_requests, clock=clock, **{"max_queued": 100} | limits), clock


class Holder:
    """A request that is held until it is let go; counts the tokens it is told."""

    def __init__(self, desk: Admission, tenant: Tenant = ANYBODY, num_answers: int = 1, **how):
        self.is_in = False
        self._go = asyncio.Event()
        self._tokens = 0.0
        self.task = asyncio.create_task(self._hold(desk, tenant, num_answers, how))

    async def _hold(self, desk, tenant, num_answers, how) -> None:
        async with desk.place(tenant, num_answers, **how) as visit:
            self.is_in = True
            await self._go.wait()
            visit.num_tokens = self._tokens

    async def let_go(self, num_tokens: float = 1.0) -> None:
        self._tokens = num_tokens
        self._go.set()
        await self.task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def refusal_of(desk: Admission, tenant: Tenant = ANYBODY, num_answers: int = 1, **how):
    with pytest.raises(Refusal) as refused:
        async with desk.place(tenant, num_answers, **how):
            pytest.fail("was let in")
    return refused.value


async def test_who_waits_is_let_in_when_a_place_comes_free():
    desk, _ = admission(2)
    holders = [Holder(desk) for _ in range(4)]
    await settle()
    assert [holder.is_in for holder in holders] == [True, True, False, False]
    await holders[1].let_go()
    await settle()
    assert [holder.is_in for holder in holders] == [True, True, True, False]
    for holder in (holders[0], holders[2], holders[3]):
        await holder.let_go()
    assert (desk.num_running, desk.num_queued) == (0, 0)


async def test_a_flood_takes_half_the_queue_and_another_tenant_goes_next():
    desk, _ = admission(1, max_queued=8)
    flood, calm = Tenant("flood"), Tenant("calm")
    running = Holder(desk, flood, num_tokens=10)
    queued = [Holder(desk, flood, num_tokens=10) for _ in range(4)]
    await settle()
    refused = await refusal_of(desk, flood)
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.retry_after_s
    newcomer = Holder(desk, calm, num_tokens=10)
    await settle()
    await running.let_go(10)
    await settle()
    assert newcomer.is_in
    assert not any(holder.is_in for holder in queued)
    for holder in (newcomer, *queued):
        await holder.let_go()
    assert (desk.num_running, desk.num_queued) == (0, 0)


async def test_places_that_a_tenant_used_lately_are_kept_from_a_flood_for_a_while():
    desk, clock = admission(4)
    flood, calm = Tenant("flood"), Tenant("calm")
    first = Holder(desk, calm)
    await settle()
    await first.let_go()
    floods = [Holder(desk, flood) for _ in range(6)]
    await settle()
    assert sum(holder.is_in for holder in floods) == 3
    second, third = Holder(desk, calm), Holder(desk, calm)
    await settle()
    # At once, where a fair queue alone would make it wait; its second waits its turn.
    assert (second.is_in, third.is_in) == (True, False)
    for holder in (second, floods[0], third):
        await holder.let_go()
        await settle()
    clock.now += 4 * WINDOW_S
    await floods[1].let_go()
    await settle()
    assert desk.num_running == 4 and desk.num_queued == 0
    for holder in floods[2:]:
        await holder.let_go()
    assert desk.num_running == 0


async def test_a_request_for_every_place_gets_them_beside_a_steady_other():
    desk, _ = admission(4)
    steady, large = Tenant("steady"), Tenant("large")
    held = Holder(desk, steady)
    await settle()
    wanted = Holder(desk, large, 4)
    next_ = Holder(desk, steady)
    await settle()
    await held.let_go()
    await settle()
    assert (wanted.is_in, next_.is_in) == (True, False)
    await wanted.let_go()
    await settle()
    assert next_.is_in
    await next_.let_go()


async def test_who_leaves_the_queue_leaves_nothing_behind():
    desk, _ = admission(1)
    first, second, third = Holder(desk), Holder(desk), Holder(desk)
    await settle()
    second.task.cancel()
    await settle()
    assert desk.num_queued == 1
    await first.let_go()
    await settle()
    assert third.is_in
    # Cancelled in the very moment in which its turn comes.
    fourth = Holder(desk)
    await settle()
    await third.let_go()
    fourth.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await fourth.task
    assert (desk.num_running, desk.num_queued) == (0, 0)
    await Holder(desk).let_go()
    await asyncio.wait_for(desk.drain(), 1)


async def test_a_tenants_answers_at_the_same_time_are_limited():
    desk, _ = admission(10)
    tenant = Tenant("a", max_answers=2)
    holder = Holder(desk, tenant, 2)
    await settle()
    refused = await refusal_of(desk, tenant)
    assert "at the same time" in refused.message
    assert refused.retry_after_s
    other = Holder(desk, Tenant("b"))
    await settle()
    assert other.is_in
    await holder.let_go()
    again = Holder(desk, tenant)
    await settle()
    assert again.is_in
    for each in (other, again):
        await each.let_go()


async def test_a_tenants_rate_refuses_with_the_time_to_wait():
    desk, clock = admission(10)
    tenant = Tenant("a", tokens_per_s=10, burst_tokens=100)
    holder = Holder(desk, tenant, num_tokens=100)
    await settle()
    refused = await refusal_of(desk, tenant, num_tokens=50)
    assert refused.retry_after_s == pytest.approx(5.0)
    # It took 20 of the 100: the rest is there again.
    await holder.let_go(20)
    holder = Holder(desk, tenant, num_tokens=80)
    await settle()
    assert holder.is_in
    await holder.let_go(80)
    refused = await refusal_of(desk, tenant, num_tokens=30)
    clock.now += refused.retry_after_s
    holder = Holder(desk, tenant, num_tokens=30)
    await settle()
    assert holder.is_in
    await holder.let_go(30)


async def test_a_wait_that_would_be_too_long_is_refused_at_once():
    desk, clock = admission(1, max_queue_s=100)
    # Places come free every 4 s while somebody waits.
    holders = [Holder(desk) for _ in range(5)]
    await settle()
    for holder in holders[:4]:
        clock.now += 4
        await holder.let_go()
        await settle()
    queued = [Holder(desk) for _ in range(2)]
    await settle()
    refused = await refusal_of(desk, remaining_s=10)
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.retry_after_s == pytest.approx(12)
    patient = Holder(desk, remaining_s=13)
    await settle()
    assert desk.num_queued == 3
    for holder in (holders[4], *queued, patient):
        await holder.let_go()


async def test_time_that_runs_out_in_the_queue_is_a_deadline_and_draining_is_unavailable():
    desk, _ = admission(1)
    holder = Holder(desk)
    await settle()
    refused = await refusal_of(desk, remaining_s=0.01)
    assert refused.code is grpc.StatusCode.DEADLINE_EXCEEDED
    queued = Holder(desk)
    await settle()
    draining = asyncio.create_task(desk.drain())
    with pytest.raises(Refusal) as drained:
        await queued.task
    assert drained.value.code is grpc.StatusCode.UNAVAILABLE
    assert not draining.done()
    await holder.let_go()
    await asyncio.wait_for(draining, 1)
    assert (await refusal_of(desk)).code is grpc.StatusCode.UNAVAILABLE


async def test_more_answers_than_there_are_places_are_refused():
    desk, _ = admission(3)
    assert (await refusal_of(desk, num_answers=4)).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert desk.num_running == 0


async def test_a_queued_answer_runs_at_the_gateway_with_what_is_left_of_its_time():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with gateway_with(fake, max_requests=1) as stub:
        first = stub.Generate(pb.GenerateRequest(text="a"))
        await first.read()
        second = stub.Generate(pb.GenerateRequest(text="a", timeout_ms=60_000))
        reading = asyncio.ensure_future(second.read())
        await asyncio.sleep(0.05)
        assert len(fake.opens) == 1
        fake.released.set()
        assert (await reading).HasField("started")
        await eventually(lambda: fake.endings.count("final") == 2)
        assert 0 < fake.opens[1].timeout_ms <= 59_960
        for call in (first, second):
            kinds = [message.WhichOneof("response") async for message in rest_of(call)]
            assert kinds[-1] == "finished"


async def rest_of(call):
    while (message := await call.read()) is not grpc.aio.EOF:
        yield message
