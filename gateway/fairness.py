"""Which waiting request goes next: fair between tenants by tokens, by rank within a tenant.

Pure; tokens are the clock. Each tenant has a counter of the tokens it was served, divided by its
weight; the waiting tenant with the lowest counter goes next (virtual token counter, arXiv
2401.00588). A tenant that begins to wait starts at the others' level: what it did not use before is
no credit. Between two tenants that both wait all the time, weighted service differs by no more than
one request of each. Within a tenant the lowest rank goes first: rank is arrival less a fixed time
per level of priority, so a request is overtaken for so long and no longer.
"""

import heapq
import itertools
from collections.abc import Set
from dataclasses import dataclass, field

# What one level of priority is worth in waiting.
PRIORITY_S = 2.0


@dataclass(slots=True)
class Waiting:
    """One request in the queue. `cost` is an estimate in tokens; `settle` mends it."""

    tenant: str
    weight: float
    cost: float
    rank: float
    is_gone: bool = False


def rank(arrival_s: float, priority: int) -> float:
    """Lower goes first, within a tenant."""
    return arrival_s - priority * PRIORITY_S


@dataclass(slots=True)
class _Line:
    counter: float
    heap: list[tuple[float, int, Waiting]] = field(default_factory=list)
    num_waiting: int = 0
    num_open: int = 0


class FairQueue:
    """Waiting requests of all tenants. `pop` takes the next and charges its tenant."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._order = itertools.count()
        self._level = 0.0

    def __len__(self) -> int:
        return sum(line.num_waiting for line in self._lines.values())

    def num_waiting(self, tenant: str) -> int:
        line = self._lines.get(tenant)
        return line.num_waiting if line else 0

    @property
    def num_tenants(self) -> int:
        """Tenants that wait."""
        return sum(line.num_waiting > 0 for line in self._lines.values())

    def push(self, waiting: Waiting) -> None:
        line = self._lines.setdefault(waiting.tenant, _Line(self._level))
        if not line.num_waiting:
            line.counter = max(line.counter, self._level)
        heapq.heappush(line.heap, (waiting.rank, next(self._order), waiting))
        line.num_waiting += 1

    def remove(self, waiting: Waiting) -> None:
        """Forgets one that has not been popped."""
        waiting.is_gone = True
        line = self._lines[waiting.tenant]
        line.num_waiting -= 1
        self._forget(waiting.tenant)

    def peek(self, passed_over: Set[str] = frozenset()) -> Waiting | None:
        """The request that goes next, of tenants that are not passed over."""
        line = self._next(passed_over)
        if line is None:
            return None
        while line.heap[0][2].is_gone:
            heapq.heappop(line.heap)
        return line.heap[0][2]

    def pop(self, passed_over: Set[str] = frozenset()) -> Waiting | None:
        """What `peek` shows, its estimate charged; `settle` it when it is over."""
        waiting = self.peek(passed_over)
        if waiting is None:
            return None
        line = self._lines[waiting.tenant]
        heapq.heappop(line.heap)
        line.num_waiting -= 1
        line.num_open += 1
        self._level = max(self._level, line.counter)
        line.counter += waiting.cost / waiting.weight
        return waiting

    def _next(self, passed_over: Set[str]) -> _Line | None:
        waits = (
            line
            for tenant, line in self._lines.items()
            if line.num_waiting and tenant not in passed_over
        )
        return min(waits, key=lambda line: line.counter, default=None)

    def settle(self, waiting: Waiting, tokens: float) -> None:
        """A popped request is over and took so many tokens."""
        line = self._lines[waiting.tenant]
        line.num_open -= 1
        line.counter += (tokens - waiting.cost) / waiting.weight
        self._forget(waiting.tenant)

    def _forget(self, tenant: str) -> None:
        """A tenant at or below the level with nothing here begins at the level anyway."""
        line = self._lines[tenant]
        if not line.num_waiting and not line.num_open and line.counter <= self._level:
            del self._lines[tenant]
