"""Sessions: conversations kept in memory, and how much of one still fits into a context.

Pure; the clock is passed in. Knows no messages on the wire, no tokenizer and no verifier.
"""

import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from paceline.events import ChatMessage, DraftPolicy
from paceline.params import SamplingParams
from paceline.server import Refusal

# What one session may hold; its oldest turns go first.
MAX_CONTENT_BYTES = 2**20
MAX_MESSAGES = 1024


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a session's turns use when they say nothing else."""

    params: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    draft: DraftPolicy = field(default_factory=DraftPolicy)
    workload: str = ""


@dataclass(slots=True)
class Session:
    """One conversation. `num_tokens` is what its last turn came to, prompt and answer."""

    id: str
    model: str
    defaults: Defaults
    messages: list[ChatMessage]
    num_turns: int = 0
    num_tokens: int = 0
    is_answering: bool = False
    used_at: float = 0.0
    # Whose it is: another tenant finds no such session.
    tenant: str = ""


class Sessions:
    """The sessions of one gateway, the one unused for longest first."""

    def __init__(self, ttl_s: float, max_sessions: int, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def create(self, model: str, system: str, defaults: Defaults) -> Session:
        """A new session, at the cost of an idle one if there are too many.

        Raises RESOURCE_EXHAUSTED when all of them are being answered.
        """
        self._expire()
        if len(self._sessions) >= self._max_sessions:
            idle = next((s for s in self._sessions.values() if not s.is_answering), None)
            if idle is None:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self._max_sessions} sessions are being answered, which is the limit",
                    retry_after_s=1.0,
                )
            del self._sessions[idle.id]
        messages = [ChatMessage("system", system)] if system else []
        session = Session(secrets.token_hex(16), model, defaults, messages)
        self._sessions[session.id] = session
        self._touch(session)
        return session

    def get(self, session_id: str) -> Session:
        """Raises NOT_FOUND. Looking at a session does not prolong it."""
        self._expire()
        session = self._sessions.get(session_id)
        if session is None:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "no such session; it may have expired")
        return session

    def resume(self, session_id: str) -> Session:
        """The session, from now on kept for another `ttl_s`. Raises NOT_FOUND."""
        session = self.get(session_id)
        self._touch(session)
        return session

    def close(self, session_id: str) -> None:
        """Forgets the session. Raises NOT_FOUND."""
        del self._sessions[self.get(session_id).id]

    def expires_in_s(self, session: Session) -> float:
        return max(0.0, session.used_at + self._ttl_s - self._clock())

    @contextlib.contextmanager
    def turn(self, session_id: str) -> Iterator[Session]:
        """The session while one of its turns is answered. It does not expire meanwhile.

        Raises NOT_FOUND, or FAILED_PRECONDITION while another turn is being answered.
        """
        session = self.resume(session_id)
        if session.is_answering:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the turn before this one is still being answered",
            )
        session.is_answering = True
        try:
            yield session
        finally:
            session.is_answering = False
            if self._sessions.get(session_id) is session:
                self._touch(session)

    def _touch(self, session: Session) -> None:
        session.used_at = self._clock()
        self._sessions.move_to_end(session.id)

    def _expire(self) -> None:
        # Oldest first: all that follows the first one to be kept is newer.
        limit = self._clock() - self._ttl_s
        expired: list[str] = []
        for session in self._sessions.values():
            if session.used_at > limit:
                break
            if not session.is_answering:
                expired.append(session.id)
        for session_id in expired:
            del self._sessions[session_id]


def add_turn(session: Session, question: str, answer: str, num_tokens: int) -> None:
    """Records a finished turn; the oldest turns go when the session gets too large."""
    session.messages += [ChatMessage("user", question), ChatMessage("assistant", answer)]
    session.num_turns += 1
    session.num_tokens = num_tokens
    while _is_too_large(session.messages):
        kept = without_oldest(session.messages, 1)
        if len(kept) == len(session.messages):
            return
        session.messages = kept


def without_oldest(messages: Sequence[ChatMessage], num_turns: int) -> list[ChatMessage]:
    """The conversation less its oldest turns; the system message and the last turn stay."""
    starts = [index for index, message in enumerate(messages) if message.role == "user"]
    if num_turns < 1 or len(starts) < 2:
        return list(messages)
    head = list(messages[: starts[0]])
    return head + list(messages[starts[min(num_turns, len(starts) - 1)] :])


def fit(
    messages: Sequence[ChatMessage],
    encode: Callable[[Sequence[ChatMessage]], list[int]],
    max_tokens: int,
) -> list[int]:
    """Ids of the conversation with as many of its last turns as fit into `max_tokens`.

    If not even the last turn fits, ids of that one.
    """
    num_turns = sum(message.role == "user" for message in messages)

    def last(num_kept: int) -> list[int]:
        return encode(without_oldest(messages, num_turns - num_kept))

    num_fitting, best = 1, last(1)
    num_too_many = num_turns + 1 if len(best) <= max_tokens else 1
    while num_fitting + 1 < num_too_many:
        if num_too_many <= num_turns:
            num_kept = (num_fitting + num_too_many) // 2
        else:
            # Doubling: a long history costs no more than what fits of it.
            num_kept = min(2 * num_fitting, num_turns)
        ids = last(num_kept)
        if len(ids) <= max_tokens:
            num_fitting, best = num_kept, ids
        else:
            num_too_many = num_kept
    return best


def _is_too_large(messages: Sequence[ChatMessage]) -> bool:
    num_bytes = sum(len(message.content.encode()) for message in messages)
    return len(messages) > MAX_MESSAGES or num_bytes > MAX_CONTENT_BYTES
