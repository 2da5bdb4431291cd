"""Asks a gateway many things at once and keeps what the checks compare. Knows no check."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from paceline.client import GatewayClient
from paceline.events import Delta, Finished, Model, Request, TokenLogprobs
from paceline.rounds import FinishReason, SpeculationTotals
from paceline.server import Refusal

# Stage, answers so far, answers in all.
Progress = Callable[[str, int, int], None]

_FULL_RETRIES = 20
# Somebody else's load may fill the gateway; one that hangs must not hang the certificate.
_TIMEOUT_MS = 120_000


@dataclass(slots=True)
class Reply:
    """A complete answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.UNSPECIFIED
    stop: str = ""
    num_drafted: int = 0


class Asker:
    """Asks one model of one gateway; `totals` are the counters of all it answered."""

    def __init__(self, client: GatewayClient, model: Model, progress: Progress) -> None:
        self.model = model
        self.totals = SpeculationTotals()
        self._client = client
        self._progress = progress

    async def ask_all(
        self, stage: str, requests: Sequence[Request], *, at_once: int, in_waves: bool = False
    ) -> list[Reply]:
        """The replies in order, `at_once` running together.

        In waves, none begins before those of the wave before are complete: no prompt is read while
        others are answered, so a verifier has time to wait for drafts. Raises Refusal when one is
        refused, Unreachable when the gateway is lost; the others are cancelled then.
        """
        gate = asyncio.Semaphore(at_once)
        num_done = 0
        self._progress(stage, 0, len(requests))

        async def one(request: Request) -> Reply:
            nonlocal num_done
            async with gate:
                reply = await self._ask(request)
            num_done += 1
            self._progress(stage, num_done, len(requests))
            return reply

        replies: list[Reply] = []
        size = at_once if in_waves else len(requests)
        for start in range(0, len(requests), size):
            replies += await _together(map(one, requests[start : start + size]))
        return replies

    async def _ask(self, request: Request) -> Reply:
        """One reply; tried again while the gateway says that it is full."""
        for tries_left in reversed(range(_FULL_RETRIES)):
            try:
                return await self._answer(request)
            except Refusal as refusal:
                full = refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
                if not full or not tries_left:
                    raise
                await asyncio.sleep(refusal.retry_after_s or 1.0)
        raise AssertionError("the last try returns or raises")

    async def _answer(self, request: Request) -> Reply:
        reply = Reply()
        complete = replace(request, model=self.model.name, timeout_ms=_TIMEOUT_MS)
        async with aclosing(self._client.generate(complete)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    reply.text += event.text
                    reply.token_ids += event.token_ids
                    reply.logprobs += event.logprobs
                elif isinstance(event, Finished):
                    reply.finish_reason, reply.stop = event.finish_reason, event.stop
                    reply.num_drafted = event.totals.num_drafted
                    self.totals.add(event.totals)
        return reply


async def _together(answers: Iterable[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """All of them; the first error cancels the others."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
