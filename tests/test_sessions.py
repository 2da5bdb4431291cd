"""Sessions: what is kept, for how long, and how much of it still fits into a context."""

from collections.abc import Sequence

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.memory_sessions import MemorySessions
from gateway.sessions import (
    MAX_CONTENT_BYTES,
    MAX_MESSAGES,
    Defaults,
    Session,
    add_turn,
    fit,
    without_oldest,
)
from paceline.events import ChatMessage
from paceline.server import Refusal

TTL_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> MemorySessions:
    return MemorySessions(TTL_S, 3, clock)


async def create(sessions: MemorySessions, system: str = "") -> Session:
    return await sessions.create("tiny", system, Defaults())


async def is_kept(sessions: MemorySessions, session: Session) -> bool:
    try:
        return await sessions.get(session.id) is session
    except Refusal as refusal:
        assert refusal.code is grpc.StatusCode.NOT_FOUND
        return False


async def test_ids_are_128_bit_and_differ(sessions):
    ids = {(await create(sessions)).id for _ in range(3)}
    assert len(ids) == 3
    assert all(len(bytes.fromhex(session_id)) == 16 for session_id in ids)


async def test_a_session_expires_unused(sessions, clock):
    session = await create(sessions)
    clock.now += TTL_S - 1
    assert await is_kept(sessions, session)
    assert sessions.expires_in_s(session) == 1
    clock.now += 1
    assert not await is_kept(sessions, session)


async def test_each_turn_prolongs_a_session_and_a_look_does_not(sessions, clock):
    session, looked_at = await create(sessions), await create(sessions)
    for _ in range(3):
        clock.now += TTL_S / 2
        async with sessions.turn(session.id):
            pass
        if clock.now < 1000 + TTL_S:
            await sessions.get(looked_at.id)
    assert await is_kept(sessions, session)
    assert not await is_kept(sessions, looked_at)


async def test_a_session_does_not_expire_while_it_is_answered(sessions, clock):
    session = await create(sessions)
    async with sessions.turn(session.id):
        clock.now += 10 * TTL_S
        assert await is_kept(sessions, session)
    assert await is_kept(sessions, session)
    assert sessions.expires_in_s(session) == TTL_S


async def test_the_session_unused_for_longest_makes_room(sessions, clock):
    first, second, third = await create(sessions), await create(sessions), await create(sessions)
    clock.now += 1
    await sessions.resume(first.id, Defaults())
    fourth = await create(sessions)
    kept = [await is_kept(sessions, session) for session in (first, second, third, fourth)]
    assert kept == [True, False, True, True]


async def test_a_session_being_answered_is_not_evicted(sessions):
    first, second, third = await create(sessions), await create(sessions), await create(sessions)
    async with sessions.turn(first.id):
        await create(sessions)
        assert await is_kept(sessions, first)
        assert not await is_kept(sessions, second)
    assert await is_kept(sessions, third)


async def test_no_room_when_all_are_being_answered(sessions):
    first, second, third = await create(sessions), await create(sessions), await create(sessions)
    async with (
        sessions.turn(first.id),
        sessions.turn(second.id),
        sessions.turn(third.id),
    ):
        with pytest.raises(Refusal) as refused:
            await create(sessions)
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.retry_after_s


async def test_one_turn_at_a_time(sessions):
    session = await create(sessions)
    async with sessions.turn(session.id):
        with pytest.raises(Refusal) as refused:
            async with sessions.turn(session.id):
                pass
        assert session.is_answering
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    async with sessions.turn(session.id) as again:
        assert again is session


async def test_a_failed_turn_leaves_the_session_usable(sessions):
    session = await create(sessions)
    with pytest.raises(RuntimeError):
        async with sessions.turn(session.id):
            raise RuntimeError
    assert not session.is_answering
    assert session.messages == []


async def test_a_session_closed_during_a_turn_stays_closed(sessions):
    session = await create(sessions)
    async with sessions.turn(session.id):
        await sessions.close(session.id)
    assert not await is_kept(sessions, session)
    with pytest.raises(Refusal):
        await sessions.close(session.id)


async def test_a_finished_turn_is_recorded(sessions):
    session = await create(sessions, system="brief")
    add_turn(session, "q", "a", num_tokens=7)
    assert [(m.role, m.content) for m in session.messages] == [
        ("system", "brief"),
        ("user", "q"),
        ("assistant", "a"),
    ]
    assert (session.num_turns, session.num_tokens) == (1, 7)


async def test_a_session_never_holds_more_than_its_limit(sessions):
    session = await create(sessions, system="brief")
    for number in range(10):
        add_turn(session, f"{number}" * (MAX_CONTENT_BYTES // 4), "a", num_tokens=1)
    assert session.num_turns == 10
    assert session.messages[0].role == "system"
    assert [m.content[:1] for m in session.messages if m.role == "user"] == ["7", "8", "9"]
    for _ in range(MAX_MESSAGES):
        add_turn(session, "q", "a", num_tokens=1)
    assert len(session.messages) <= MAX_MESSAGES


def conversation(sizes: Sequence[int], with_system: bool) -> list[ChatMessage]:
    messages = [ChatMessage("system", "s")] if with_system else []
    for size in sizes[:-1]:
        messages += [ChatMessage("user", "q" * size), ChatMessage("assistant", "a")]
    return [*messages, ChatMessage("user", "q" * sizes[-1])]


def letters(messages: Sequence[ChatMessage]) -> list[int]:
    return [ord(letter) for message in messages for letter in message.content]


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.booleans(), st.integers(0, 120))
def test_as_many_of_the_last_turns_as_fit_go_into_the_prompt(sizes, with_system, max_tokens):
    messages = conversation(sizes, with_system)
    ids = fit(messages, letters, max_tokens)
    candidates = [letters(without_oldest(messages, n)) for n in range(len(sizes))]
    fitting = [candidate for candidate in candidates if len(candidate) <= max_tokens]
    assert ids == (fitting[0] if fitting else candidates[-1])


def test_a_long_history_costs_no_more_than_what_fits_of_it():
    encoded: list[int] = []

    def encode(messages: Sequence[ChatMessage]) -> list[int]:
        encoded.append(len(letters(messages)))
        return letters(messages)

    ids = fit(conversation([9] * 10_000, with_system=True), encode, 100)
    assert len(ids) <= 100
    assert sum(encoded) < 1000


def test_the_system_message_and_the_last_turn_always_stay():
    messages = conversation([1, 2, 3], with_system=True)
    assert without_oldest(messages, 9) == [messages[0], messages[-1]]
    assert without_oldest(messages, 1) == [messages[0], *messages[3:]]
    assert without_oldest(messages, 0) == messages
