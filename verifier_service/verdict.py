"""Verdict: what sequences that gave up on their drafter tell those that begin.

Without it every answer would spend its budget to find out anew what the last hundred did. One per
workload label; while it says off, one sequence at a time probes for all. Pure; microseconds.
"""

from dataclasses import dataclass

from paceline.rounds import PlainReason

# Given up so many more times than gained, lost probes included, others begin without a drafter.
_GAVE_UP = 3


@dataclass
class Verdict:
    """Shared by the sequences of one workload."""

    reason: PlainReason = PlainReason.UNSPECIFIED
    # No probe before.
    probe_at_us: float = 0.0
    _num_gave_up: int = 0

    @property
    def is_off(self) -> bool:
        return self._num_gave_up >= _GAVE_UP

    def gave_up(self, reason: PlainReason, probe_at_us: float) -> None:
        """A sequence has lost what it could, or has seen that there is nothing to gain."""
        self.reason = reason
        self.probe_at_us = max(self.probe_at_us, probe_at_us)
        self._num_gave_up = min(self._num_gave_up + 1, _GAVE_UP)

    def gained(self) -> None:
        """A sequence has gained something worth the name: the next may probe at once."""
        self.probe_at_us = 0.0
        self._num_gave_up = max(self._num_gave_up - 1, 0)
