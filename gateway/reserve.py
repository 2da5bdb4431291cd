"""Places kept free for tenants that used some lately. Pure; the clock is passed in.

A fair queue alone lets a flood hold every place, so that another tenant waits for an answer to end
each time it asks. Kept for a tenant is what it used at most within the last seconds, up to its
share of the places; a tenant that stops asking soon holds nothing back.
"""

from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 5.0


@dataclass(slots=True)
class _Use:
    weight: float
    running: int = 0
    # Most at the same time in this window and in the one before.
    peak: int = 0
    peak_before: int = 0
    window: int = 0


class Reserve:
    """How many answers each tenant runs, and how many places others must leave it."""

    def __init__(self, num_places: int, clock: Callable[[], float]) -> None:
        self._num_places = num_places
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    @property
    def num_running(self) -> int:
        return sum(use.running for use in self._uses.values())

    def add(self, tenant: str, weight: float, num_answers: int) -> None:
        """Answers begin, or with a negative number end."""
        use = self._uses.setdefault(tenant, _Use(weight))
        self._roll(use)
        use.weight = weight
        use.running += num_answers
        use.peak = max(use.peak, use.running)

    def may_start(self, tenant: str, num_answers: int) -> bool:
        """Whether the places that others are owed stay free; true for a tenant without answers."""
        self._forget()
        own = self._uses.get(tenant)
        if own is None or not own.running:
            return True
        total = sum(use.weight for use in self._uses.values())
        kept = 0
        for name, use in self._uses.items():
            if name != tenant:
                share = int(self._num_places * use.weight / total)
                recent = max(use.peak, use.peak_before)
                kept += max(0, min(share, recent) - use.running)
        return self.num_running + num_answers + kept <= self._num_places

    def _roll(self, use: _Use) -> None:
        window = int(self._clock() / WINDOW_S)
        if window != use.window:
            use.peak_before = use.peak if window == use.window + 1 else use.running
            use.peak, use.window = use.running, window

    def _forget(self) -> None:
        for use in self._uses.values():
            self._roll(use)
        idle = [n for n, use in self._uses.items() if not max(use.peak, use.peak_before)]
        for name in idle:
            del self._uses[name]
