"""Admission: how many answers may run at the same time, and none once the gateway drains."""

import asyncio
import contextlib
from collections.abc import Iterator

import grpc

from paceline.server import Refusal

RETRY_AFTER_S = 1.0


def draining_refusal() -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE, "the gateway is draining", retry_after_s=RETRY_AFTER_S
    )


class Admission:
    """Counts the answers that run."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = asyncio.Event()

    @contextlib.contextmanager
    def place(self, num_answers: int = 1) -> Iterator[None]:
        """The places of a request's answers.

        Raises RESOURCE_EXHAUSTED when too few are free, UNAVAILABLE when the gateway drains.
        """
        if self.draining.is_set():
            raise draining_refusal()
        if self.num_running + num_answers > self._max_requests:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self.num_running} answers are running, the limit is {self._max_requests}",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_running += num_answers
        self._idle.clear()
        try:
            yield
        finally:
            self.num_running -= num_answers
            if not self.num_running:
                self._idle.set()

    async def drain(self) -> None:
        """Admits nothing more and waits for what runs."""
        self.draining.set()
        await self._idle.wait()
