"""Sessions kept in a Redis server, so that several gateways share them.

A turn takes a lease and the next epoch; what a gateway saves with an older epoch is refused by the
server itself. So one that froze, was taken for dead and comes back overwrites nothing. Each step is
one script, atomic in the server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import redis.asyncio
from pydantic import TypeAdapter
from redis.exceptions import RedisError

from gateway.sessions import Defaults, Session, being_answered, new_session, not_found
from paceline.events import ChatMessage
from paceline.server import Refusal

# A gateway that died in a turn holds the session for this long.
LEASE_S = 5.0
ANSWER_S = 2.0

# KEYS: the session, its lease. Times in milliseconds.
TAKE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {'missing'} end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'taken'} end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('SET', KEYS[2], epoch, 'PX', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'ours', epoch}
"""
RENEW = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
SAVE = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then return 'missing' end
if epoch ~= ARGV[1] then return 'fenced' end
redis.call('HSET', KEYS[1], 'history', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'saved'
"""
RELEASE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
RESUME = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'defaults', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


@dataclass(frozen=True, slots=True)
class _History:
    """What turns change."""

    model: str
    messages: list[ChatMessage]
    num_turns: int
    num_tokens: int


_HISTORY = TypeAdapter(_History)
_DEFAULTS = TypeAdapter(Defaults)


class RedisSessions:
    """The sessions that all gateways of one Redis server share. Their number is its own affair."""

    def __init__(
        self, url: str, ttl_s: float, clock: Callable[[], float], *, lease_s: float = LEASE_S
    ) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._lease_s = lease_s
        self._redis: Any = redis.asyncio.Redis.from_url(
            url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S
        )

    async def create(
        self, model: str, system: str, defaults: Defaults, tenant: str = ""
    ) -> Session:
        session = new_session(model, system, defaults, tenant)
        session.used_at = self._clock()
        with _store_errors():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hset(
                    _keys(session.id)[0],
                    mapping={
                        "tenant": tenant,
                        "epoch": 0,
                        "history": _history_of(session),
                        "defaults": _DEFAULTS.dump_json(defaults),
                    },
                )
                pipeline.pexpire(_keys(session.id)[0], _ms(self._ttl_s))
                await pipeline.execute()
        return session

    async def get(self, session_id: str) -> Session:
        with _store_errors():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hgetall(_keys(session_id)[0])
                pipeline.pttl(_keys(session_id)[0])
                fields, left_ms = await pipeline.execute()
        if not fields:
            raise not_found()
        history = _HISTORY.validate_json(fields[b"history"])
        return Session(
            id=session_id,
            model=history.model,
            defaults=_DEFAULTS.validate_json(fields[b"defaults"]),
            messages=history.messages,
            num_turns=history.num_turns,
            num_tokens=history.num_tokens,
            used_at=self._clock() + left_ms / 1000 - self._ttl_s,
            tenant=fields[b"tenant"].decode(),
            epoch=int(fields[b"epoch"]),
        )

    async def resume(self, session_id: str, defaults: Defaults) -> Session:
        dumped = _DEFAULTS.dump_json(defaults)
        if not await self._run(RESUME, session_id, _ms(self._ttl_s), dumped):
            raise not_found()
        return await self.get(session_id)

    @contextlib.asynccontextmanager
    async def turn(self, session_id: str) -> AsyncIterator[Session]:
        word, *epoch = await self._run(TAKE, session_id, _ms(self._lease_s), _ms(self._ttl_s))
        if word == b"missing":
            raise not_found()
        if word == b"taken":
            raise being_answered()
        renewing = asyncio.create_task(self._keep(session_id, epoch[0]))
        try:
            session = await self.get(session_id)
            session.epoch = epoch[0]
            yield session
        finally:
            renewing.cancel()
            # The lease ends by itself when the store cannot be told.
            with contextlib.suppress(Refusal):
                await self._run(RELEASE, session_id, epoch[0], _ms(self._ttl_s))

    async def save(self, session: Session) -> None:
        word = await self._run(
            SAVE, session.id, session.epoch, _ms(self._ttl_s), _history_of(session)
        )
        # One that was closed meanwhile stays closed.
        if word == b"fenced":
            raise Refusal(grpc.StatusCode.ABORTED, "another gateway took the session over")

    async def close(self, session_id: str) -> None:
        with _store_errors():
            num_deleted = await self._redis.delete(_keys(session_id)[0])
        if not num_deleted:
            raise not_found()

    def expires_in_s(self, session: Session) -> float:
        return max(0.0, session.used_at + self._ttl_s - self._clock())

    async def disconnect(self) -> None:
        await self._redis.aclose()

    async def _keep(self, session_id: str, epoch: int) -> None:
        """Renews the lease until it is another's, or cancelled."""
        kept = True
        while kept:
            await asyncio.sleep(self._lease_s / 3)
            with contextlib.suppress(Refusal):
                kept = bool(
                    await self._run(RENEW, session_id, epoch, _ms(self._lease_s), _ms(self._ttl_s))
                )

    async def _run(self, script: str, session_id: str, *arguments: int | bytes) -> Any:
        with _store_errors():
            return await self._redis.eval(script, 2, *_keys(session_id), *arguments)


def _keys(session_id: str) -> Sequence[str]:
    """The session's and its lease's; the braces put them on one node of a cluster."""
    return f"paceline:{{{session_id}}}:session", f"paceline:{{{session_id}}}:lease"


def _history_of(session: Session) -> bytes:
    return _HISTORY.dump_json(
        _History(session.model, session.messages, session.num_turns, session.num_tokens)
    )


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise Refusal(
            grpc.StatusCode.UNAVAILABLE, "the session store does not answer", retry_after_s=1.0
        ) from error
