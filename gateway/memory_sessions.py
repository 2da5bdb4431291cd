"""Sessions kept in this process: they go with it.

The clock is passed in.
"""

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

import grpc

from gateway.sessions import Defaults, Session, being_answered, new_session, not_found
from paceline.server import Refusal


class MemorySessions:
    """The sessions of one gateway, the one unused for longest first."""

    def __init__(self, ttl_s: float, max_sessions: int, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    async def create(
        self, model: str, system: str, defaults: Defaults, tenant: str = ""
    ) -> Session:
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
        session = new_session(model, system, defaults, tenant)
        self._sessions[session.id] = session
        self._touch(session)
        return session

    async def get(self, session_id: str) -> Session:
        return self._get(session_id)

    async def resume(self, session_id: str, defaults: Defaults) -> Session:
        session = self._get(session_id)
        session.defaults = defaults
        self._touch(session)
        return session

    @contextlib.asynccontextmanager
    async def turn(self, session_id: str) -> AsyncIterator[Session]:
        session = self._get(session_id)
        if session.is_answering:
            raise being_answered()
        self._touch(session)
        session.is_answering = True
        try:
            yield session
        finally:
            session.is_answering = False
            if self._sessions.get(session_id) is session:
                self._touch(session)

    async def save(self, session: Session) -> None:
        """The session is the store's own: there is nothing to do."""

    async def close(self, session_id: str) -> None:
        del self._sessions[self._get(session_id).id]

    def expires_in_s(self, session: Session) -> float:
        return max(0.0, session.used_at + self._ttl_s - self._clock())

    async def disconnect(self) -> None:
        """There is nothing to let go of."""

    def _get(self, session_id: str) -> Session:
        self._expire()
        session = self._sessions.get(session_id)
        if session is None:
            raise not_found()
        return session

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
