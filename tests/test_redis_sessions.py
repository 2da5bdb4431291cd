"""Sessions in a real Redis server: shared by gateways, and fenced when one takes over."""

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import DEADLINE_S, FakeVerifier, gateway_for, ids_of, served
from processes import free_port, wait_until
from redis import Redis

from gateway.redis_sessions import RedisSessions
from gateway.sessions import Defaults, add_turn
from paceline.events import ChatMessage, DraftPolicy
from paceline.params import SamplingParams, Speculation
from paceline.server import Refusal
from paceline.v1 import drafter_pb2
from paceline.v1 import gateway_pb2 as pb

BINARY = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(BINARY is None, reason="no redis-server on the PATH")
TTL_S = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own, in memory only."""
    assert BINARY is not None
    port = free_port()
    folder: Path = tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(
        [BINARY, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        with Redis(port=port) as client:

            def answers() -> bool:
                with contextlib.suppress(Exception):
                    return bool(client.ping())
                return False

            wait_until(answers, DEADLINE_S, "redis-server starts")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


@contextlib.asynccontextmanager
async def store(url: str, ttl_s: float = TTL_S, lease_s: float = 5.0) -> AsyncIterator[Any]:
    sessions = RedisSessions(url, ttl_s, time.monotonic, lease_s=lease_s)
    try:
        yield sessions
    finally:
        await sessions.disconnect()


async def refused(work: Any) -> grpc.StatusCode:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value.code


async def enter(turn: Any) -> None:
    async with turn:
        pass


async def test_a_session_comes_back_whole_at_another_gateway(url: str):
    defaults = Defaults(
        SamplingParams(temperature=0.5, logit_bias={7: -1.5}, stop_token_ids=(1, 2)),
        stop=("end",),
        draft=DraftPolicy(Speculation.FIXED, 4),
        workload="coding",
    )
    async with store(url) as one, store(url) as two:
        session = await one.create("tiny", "brief", defaults)
        async with one.turn(session.id) as mine:
            add_turn(mine, "q", "日本", num_tokens=7)
            await one.save(mine)
        kept = await two.get(session.id)
    assert kept.messages == [
        ChatMessage("system", "brief"),
        ChatMessage("user", "q"),
        ChatMessage("assistant", "日本"),
    ]
    assert (kept.model, kept.num_turns, kept.num_tokens) == ("tiny", 1, 7)
    assert kept.defaults.params == SamplingParams(
        temperature=0.5, logit_bias={7: -1.5}, stop_token_ids=[1, 2]
    )
    assert list(kept.defaults.stop) == ["end"]
    assert (kept.defaults.draft, kept.defaults.workload) == (defaults.draft, "coding")
    assert 0 < two.expires_in_s(kept) <= TTL_S


async def test_one_turn_at_a_time_over_all_gateways(url: str):
    async with store(url) as one, store(url) as two:
        session = await one.create("tiny", "", Defaults())
        async with one.turn(session.id):
            code = await refused(enter(two.turn(session.id)))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
        await enter(two.turn(session.id))


async def test_a_gateway_that_lost_a_session_cannot_overwrite_it(url: str):
    async with store(url, lease_s=0.1) as one, store(url) as two:
        session = await one.create("tiny", "", Defaults())
        async with one.turn(session.id) as stale:
            # As if this gateway were frozen: the lease runs out unrenewed.
            await one._redis.delete(f"paceline:{{{session.id}}}:lease")
            async with two.turn(session.id) as current:
                add_turn(stale, "stale", "a", num_tokens=1)
                assert await refused(one.save(stale)) is grpc.StatusCode.ABORTED
                add_turn(current, "current", "a", num_tokens=2)
                await two.save(current)
                assert current.epoch == stale.epoch + 1
        kept = await two.get(session.id)
    assert [m.content for m in kept.messages] == ["current", "a"]


async def test_a_lease_is_renewed_while_a_turn_lasts_and_runs_out_with_its_gateway(url: str):
    async with store(url, lease_s=0.15) as one, store(url) as two:
        session = await one.create("tiny", "", Defaults())
        async with one.turn(session.id):
            await asyncio.sleep(0.4)
            code = await refused(enter(two.turn(session.id)))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
        turn = one.turn(session.id)
        await turn.__aenter__()
        # Its gateway dies: nobody renews.
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "RedisSessions._keep":
                task.cancel()
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                await enter(two.turn(session.id))
                break
            except Refusal as refusal:
                assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        await turn.__aexit__(None, None, None)


async def test_a_session_stays_its_tenants(url: str):
    async with store(url) as one, store(url) as two:
        session = await one.create("tiny", "", Defaults(), "support")
        async with two.turn(session.id) as mine:
            await two.save(mine)
        assert (await one.get(session.id)).tenant == mine.tenant == "support"


async def test_sessions_expire_unused_and_can_be_closed(url: str):
    async with store(url, ttl_s=0.2) as brief, store(url) as sessions:
        session = await brief.create("tiny", "", Defaults())
        await brief.resume(session.id, Defaults(workload="x"))
        assert (await brief.get(session.id)).defaults.workload == "x"
        deadline = time.monotonic() + DEADLINE_S
        with pytest.raises(Refusal) as caught:
            while time.monotonic() < deadline:
                await brief.get(session.id)
                await asyncio.sleep(0.02)
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        closed = await sessions.create("tiny", "", Defaults())
        async with sessions.turn(closed.id) as mine:
            await sessions.close(closed.id)
            # Its answer goes nowhere, in silence: it was not wanted any more.
            await sessions.save(mine)
        for work in (
            sessions.get(closed.id),
            sessions.close(closed.id),
            sessions.resume(closed.id, Defaults()),
            enter(sessions.turn(closed.id)),
        ):
            assert await refused(work) is grpc.StatusCode.NOT_FOUND


async def test_a_store_that_is_gone_is_unavailable_and_unnamed():
    async with store("redis://127.0.0.1:1/0") as sessions:
        with pytest.raises(Refusal) as caught:
            await sessions.create("tiny", "", Defaults())
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert "127" not in caught.value.message


async def test_a_conversation_goes_on_at_another_gateway(url: str):
    fake = FakeVerifier([ids_of("hello")])
    async with (
        served(fake) as (address, _),
        gateway_for(address, session_store=url) as (first, one),
        gateway_for(address, session_store=url) as (second, two),
    ):
        await first.wait_ready()
        await second.wait_ready()
        session_id = ""
        async with asyncio.timeout(DEADLINE_S):
            for stub, content in ((one, "first"), (two, "second")):
                call = stub.Chat()
                opening = pb.OpenChat(session_id=session_id)
                await call.write(pb.ChatRequest(open=opening))
                session_id = (await call.read()).session.session_id
                await call.write(pb.ChatRequest(turn=pb.Turn(content=content)))
                while (await call.read()).WhichOneof("response") != "finished":
                    pass
                await call.write(pb.ChatRequest(end=drafter_pb2.EndOfStream()))
            kept = await one.GetSession(pb.GetSessionRequest(session_id=session_id))
    assert [m.content for m in kept.session.messages] == ["first", "hello", "second", "hello"]
    assert kept.session.num_turns == 2
