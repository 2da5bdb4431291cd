"""Shrunk means: what something brought one sequence lately, in the light of what it brings others.

An answer is short and its luck is coarse: nothing three times, then eight tokens at once. So its
own mean is shrunk towards that of its workload, as if that were some tries of its own (empirical
Bayes, Efron and Morris 1975). Pure.
"""

from dataclasses import dataclass, field

# How much older rounds count with each new one, of a sequence and of all.
_OWN_FADE, _POOL_FADE = 0.98, 0.998


@dataclass(slots=True)
class Pool:
    """The mean of all sequences of a workload; each new value lets older ones count for less."""

    sum: float = 0.0
    count: float = 0.0
    fade: float = _POOL_FADE

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        self.sum = self.sum * self.fade + value
        self.count = self.count * self.fade + 1.0


@dataclass(slots=True)
class Shrunk:
    """The mean of one sequence, which also counts in the pool. weight: values that the pool is
    worth."""

    pool: Pool = field(default_factory=Pool)
    weight: float = 8.0
    fade: float = _OWN_FADE
    _sum: float = 0.0
    _count: float = 0.0

    def add(self, value: float) -> None:
        self._sum = self._sum * self.fade + value
        self._count = self._count * self.fade + 1.0
        self.pool.add(value)

    @property
    def mean(self) -> float:
        return (self._sum + self.weight * self.pool.mean) / (self._count + self.weight)
