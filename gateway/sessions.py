"""Sessions: what a conversation is, where it may be kept, and how much of it fits into a context.

Pure. Knows no messages on the wire, no tokenizer and no verifier, and no store.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

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
    # Of a store that several gateways share: rises with every turn, and fences the one before.
    epoch: int = 0


class Sessions(Protocol):
    """Where sessions are kept. Every method raises NOT_FOUND for one that is unknown or expired."""

    async def create(
        self, model: str, system: str, defaults: Defaults, tenant: str = ""
    ) -> Session:
        """A new session. Raises RESOURCE_EXHAUSTED when there is no room for it."""
        ...

    async def get(self, session_id: str) -> Session:
        """Looking at a session does not prolong it."""
        ...

    async def resume(self, session_id: str, defaults: Defaults) -> Session:
        """The session, from now on kept for its whole time again, with these defaults."""
        ...

    def turn(self, session_id: str) -> AbstractAsyncContextManager[Session]:
        """The session while one of its turns is answered. It does not expire meanwhile.

        Raises FAILED_PRECONDITION while another turn is being answered.
        """
        ...

    async def save(self, session: Session) -> None:
        """Within its turn, keeps what the session has become.

        Raises ABORTED when another gateway has taken the session over: nothing is kept then.
        """
        ...

    async def close(self, session_id: str) -> None:
        """Forgets the session."""
        ...

    def expires_in_s(self, session: Session) -> float: ...

    async def disconnect(self) -> None:
        """Lets go of the store; sessions that others can reach stay there."""
        ...


def new_session(model: str, system: str, defaults: Defaults, tenant: str) -> Session:
    """A session with an id that cannot be guessed."""
    messages = [ChatMessage("system", system)] if system else []
    return Session(secrets.token_hex(16), model, defaults, messages, tenant=tenant)


def not_found() -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, "no such session; it may have expired")


def being_answered() -> Refusal:
    return Refusal(
        grpc.StatusCode.FAILED_PRECONDITION, "the turn before this one is still being answered"
    )


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


def refuse_if_full(session: Session, question: str) -> None:
    """For a history that drops nothing. Raises FAILED_PRECONDITION when the turn has no room."""
    if _is_too_large([*session.messages, ChatMessage("user", question)]):
        raise Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"a session holds at most {MAX_MESSAGES} messages of {MAX_CONTENT_BYTES} bytes in all; "
            "open a new one",
        )


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
