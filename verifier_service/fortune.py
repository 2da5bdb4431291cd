"""Fortune: what speculation brings one sequence, in the mean of the steps that had any.

Steps are shared: the draft rows of others delay a sequence, and its own pay for that, or do not.
Where a sequence's own steps are few, those of all speak for it: bad luck is no reason to stop what
pays, and a text that nobody can guess is. Pure; microseconds.
"""

from dataclasses import dataclass, field

# Steps of its own that a sequence's prior is worth; how much older steps count with each new one.
_PRIOR_STEPS = 8.0
_FADE, _POOL_FADE = 0.98, 0.998


@dataclass(slots=True)
class Pool:
    """All sequences of an engine."""

    sum_us: float = 0.0
    count: float = 0.0

    @property
    def mean_us(self) -> float:
        return self.sum_us / self.count if self.count else 0.0


@dataclass(slots=True)
class Fortune:
    """One sequence."""

    pool: Pool = field(default_factory=Pool)
    _sum_us: float = 0.0
    _count: float = 0.0

    def add(self, net_us: float) -> None:
        """A step brought so much: its own gain, less all that speculation added to the step."""
        self._sum_us = self._sum_us * _FADE + net_us
        self._count = self._count * _FADE + 1.0
        pool = self.pool
        pool.sum_us = pool.sum_us * _POOL_FADE + net_us
        pool.count = pool.count * _POOL_FADE + 1.0

    @property
    def mean_us(self) -> float:
        own = self._sum_us + _PRIOR_STEPS * self.pool.mean_us
        return own / (self._count + _PRIOR_STEPS)
