"""Admission: which answers run, which wait for a place and which are refused at once.

A refusal comes before any work and says when to come again; what was admitted is never refused
later. Knows no messages and no verifier.
"""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc

from gateway.fairness import FairQueue, Waiting, rank
from gateway.keys import Tenant
from gateway.limits import TokenRates
from gateway.reserve import Reserve
from paceline.events import Delta, Event, Finished, Started
from paceline.server import Refusal

RETRY_AFTER_S = 1.0
LONGEST_RETRY_S = 60.0
# Weight of the newest interval between two places that came free.
_SMOOTHING = 0.1


def draining_refusal() -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE, "the gateway is draining", retry_after_s=RETRY_AFTER_S
    )


def _exhausted(reason: str, retry_after_s: float) -> Refusal:
    hint = min(max(retry_after_s, 0.1), LONGEST_RETRY_S)
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, retry_after_s=hint)


@dataclass(slots=True)
class Visit:
    """One admitted request. `num_tokens` counts up as it is served; what it took is charged."""

    num_tokens: float = 0.0

    def count(self, event: Event) -> None:
        """Counts what was delivered: the prompt once it was taken, and the answers' tokens."""
        match event:
            case Started():
                self.num_tokens += event.num_prompt_tokens
            case Delta():
                self.num_tokens += len(event.token_ids)
            case Finished():
                pass


@dataclass(slots=True, eq=False)
class _Ticket:
    num_answers: int
    waiting: Waiting
    turn: "asyncio.Future[None]"


class Admission:
    """The places of one gateway, the queue in front of them, and what each tenant may use."""

    def __init__(
        self,
        max_requests: int,
        *,
        clock: Callable[[], float],
        max_queued: int = 0,
        max_queue_s: float = math.inf,
    ) -> None:
        self._max_requests = max_requests
        self._max_queued = max_queued
        self._max_queue_s = max_queue_s
        self._clock = clock
        self._rates = TokenRates(clock)
        self._queue = FairQueue()
        self._tickets: dict[int, _Ticket] = {}
        self._reserve = Reserve(max_requests, clock)
        # Answers of each tenant that run or wait.
        self._answers_of: Counter[str] = Counter()
        # Seconds between two places that come free, while somebody waits; 0: not known yet.
        self._interval_s = 0.0
        self._freed_at_s: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = asyncio.Event()

    @property
    def num_running(self) -> int:
        return self._reserve.num_running

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def place(
        self,
        tenant: Tenant,
        num_answers: int = 1,
        *,
        num_tokens: float = 1.0,
        remaining_s: float | None = None,
    ) -> AsyncIterator[Visit]:
        """Places for a request's answers, after its tenant's fair turn.

        `num_tokens` estimates prompt and answers together, `remaining_s` is the caller's patience.
        Raises RESOURCE_EXHAUSTED with the time to come again when a limit of the tenant is
        reached, the queue is full or the wait would be too long; DEADLINE_EXCEEDED when the time
        ran out in the queue; UNAVAILABLE when the gateway drains.
        """
        if self.draining.is_set():
            raise draining_refusal()
        self._refuse_over_limit(tenant, num_answers, num_tokens)
        waiting = Waiting(
            tenant.name, tenant.weight, num_tokens, rank(self._clock(), tenant.priority)
        )
        must_wait = not (
            self._has_room(num_answers) and self._reserve.may_start(tenant.name, num_answers)
        )
        if must_wait or len(self._queue):
            self._refuse_long_wait(tenant, remaining_s)
        visit = Visit()
        self._answers_of[tenant.name] += num_answers
        taken = self._rates.take(tenant, num_tokens)
        self._idle.clear()
        try:
            await self._turn(num_answers, waiting, remaining_s)
            try:
                yield visit
            finally:
                self._reserve.add(tenant.name, tenant.weight, -num_answers)
                self._queue.settle(waiting, visit.num_tokens)
                self._note_freed(num_answers)
                self._start_waiting()
        finally:
            self._rates.settle(tenant, taken, visit.num_tokens)
            self._answers_of[tenant.name] -= num_answers
            if not self._answers_of[tenant.name]:
                del self._answers_of[tenant.name]
            if not self._answers_of:
                self._idle.set()

    def _refuse_over_limit(self, tenant: Tenant, num_answers: int, num_tokens: float) -> None:
        running = self._answers_of[tenant.name]
        if tenant.max_answers and running + num_answers > tenant.max_answers:
            raise _exhausted(
                f"the tenant's limit is {tenant.max_answers} answers at the same time",
                self._interval_s or RETRY_AFTER_S,
            )
        if num_answers > self._max_requests:
            raise _exhausted(f"the limit is {self._max_requests} answers", LONGEST_RETRY_S)
        if wait_s := self._rates.wait_s(tenant, num_tokens):
            raise _exhausted(
                f"the tenant's limit is {tenant.tokens_per_s:g} tokens per second", wait_s
            )

    def _refuse_long_wait(self, tenant: Tenant, remaining_s: float | None) -> None:
        """A tenant may hold as many places in the queue as it leaves free for others."""
        own = self._queue.num_waiting(tenant.name)
        free = self._max_queued - len(self._queue)
        newcomers = 0 if own else 1
        wait_s = (own + 1) * (self._queue.num_tenants + newcomers) * self._interval_s
        if own >= free:
            raise _exhausted(
                f"{self.num_running} answers are running, the limit is {self._max_requests}, "
                "and the queue is full",
                wait_s or RETRY_AFTER_S,
            )
        patience_s = self._max_queue_s if remaining_s is None else remaining_s
        if wait_s > min(patience_s, self._max_queue_s):
            raise _exhausted("the wait for a place would be too long", wait_s)

    async def _turn(self, num_answers: int, waiting: Waiting, remaining_s: float | None) -> None:
        """Waits until the places are taken for this request."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.push(waiting)
        self._tickets[id(waiting)] = _Ticket(num_answers, waiting, turn)
        self._start_waiting()
        if turn.done():
            return
        draining = asyncio.ensure_future(self.draining.wait())
        patience_s = min(
            self._max_queue_s, math.inf if remaining_s is None else max(remaining_s, 0)
        )
        try:
            await asyncio.wait(
                {turn, draining},
                timeout=None if patience_s == math.inf else patience_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if turn.done():
                return
            if draining.done():
                raise draining_refusal()
            if remaining_s is not None and patience_s >= remaining_s:
                raise Refusal(
                    grpc.StatusCode.DEADLINE_EXCEEDED, "the time ran out while waiting for a place"
                )
            raise _exhausted("waited too long for a place", RETRY_AFTER_S)
        except BaseException:
            if turn.done():
                # Cancelled just when its turn came: the places go back.
                self._reserve.add(waiting.tenant, waiting.weight, -num_answers)
                self._queue.settle(waiting, 0.0)
                self._start_waiting()
            raise
        finally:
            draining.cancel()
            if self._tickets.pop(id(waiting), None):
                self._queue.remove(waiting)

    def _has_room(self, num_answers: int) -> bool:
        return self.num_running + num_answers <= self._max_requests

    def _start_waiting(self) -> None:
        """Gives places to those whose turn it is. One that needs many holds up those behind it."""
        passed_over: set[str] = set()
        while waiting := self._queue.peek(passed_over):
            ticket = self._tickets[id(waiting)]
            if not self._has_room(ticket.num_answers):
                return
            if not self._reserve.may_start(waiting.tenant, ticket.num_answers):
                passed_over.add(waiting.tenant)
                continue
            self._queue.pop(passed_over)
            del self._tickets[id(waiting)]
            self._reserve.add(waiting.tenant, waiting.weight, ticket.num_answers)
            ticket.turn.set_result(None)

    def _note_freed(self, num_answers: int) -> None:
        now = self._clock()
        if len(self._queue) and self._freed_at_s is not None:
            interval_s = (now - self._freed_at_s) / num_answers
            kept = 1 - _SMOOTHING if self._interval_s else 0.0
            self._interval_s = kept * self._interval_s + (1 - kept) * interval_s
        self._freed_at_s = now

    async def drain(self) -> None:
        """Admits nothing more and waits for what runs."""
        self.draining.set()
        await self._idle.wait()
