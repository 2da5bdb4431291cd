"""Exposure: how much the answers of a workload may be slowed for the sake of those beside them.

An answer that has lost its budget may only be unlucky, and then all are better off if the step goes
on drafting; or its text is one that nobody can guess, and then it pays for the others. Which of the
two is the rule differs by workload. So a quantile is kept: as much exposure as leaves one answer in
twenty with more than its budget lost (stochastic approximation, Robbins and Monro 1951). Pure.
"""

from dataclasses import dataclass

_MOST, _FIRST = 0.7, 0.15
_RATE, _SHARE = 0.4, 0.05


@dataclass(slots=True)
class Exposure:
    """One workload."""

    # May be below 0, or too many would lose: what was lost too often is not tried again at once.
    _level: float = _FIRST

    @property
    def value(self) -> float:
        """Of an expected gain, what a step may cost whoever has nothing left."""
        return max(self._level, 0.0)

    def ended(self, *, lost_too_much: bool) -> None:
        """An answer is complete."""
        step = _SHARE - 1.0 if lost_too_much else _SHARE
        self._level = min(max(self._level + _RATE * step, -_RATE), _MOST)
