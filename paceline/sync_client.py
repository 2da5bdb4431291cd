"""The client for code without an event loop: the same calls, with a loop on a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Self, TypeVar

from paceline.access import Access
from paceline.client import GatewayClient
from paceline.events import Event, Model, Request, Session

T = TypeVar("T")


class SyncGatewayClient:
    """`GatewayClient`, blocking. `with` closes it. Safe to use from several threads."""

    def __init__(
        self, *addresses: str, access: Access | None = None, resume_s: float = 15.0
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        # A channel belongs to the loop that is running when it is made.
        async def make() -> GatewayClient:
            return GatewayClient(*addresses, access=access, resume_s=resume_s)

        self._client = self._run(make())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(self, request: Request) -> Iterator[Event]:
        """As `GatewayClient.generate`; closing the iterator cancels the call."""
        events = self._client.generate(request)
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            self._run(events.aclose())

    def get_session(self, session_id: str) -> Session:
        return self._run(self._client.get_session(session_id))

    def close_session(self, session_id: str) -> None:
        self._run(self._client.close_session(session_id))

    def list_models(self) -> list[Model]:
        return self._run(self._client.list_models())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _next(events: AsyncGenerator[Event]) -> Event | None:
    with contextlib.suppress(StopAsyncIteration):
        return await anext(events)
    return None
