"""Looking: whether a step asks its sequences' own sources for draft tokens at all.

Asking takes time on the engine's thread, for every sequence, and among many more than the draft
tokens bring: where steps found some and none was worth a row, the next ones do not look, for longer
each time. Pure; times in microseconds.
"""

from dataclasses import dataclass, field

_RATE = 0.05
# A hiccup counts for at most so many times the mean.
_CLIP = 2.0
# Steps in a row without a draft token worth its row, before the first rest; and the longest rest.
_PATIENCE, _LONGEST_REST = 2, 16


@dataclass
class Mean:
    """Of all values at first, then of the last ones."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count > 1:
            value = min(value, _CLIP * self.value)
        self.value += max(_RATE, 1 / self.count) * (value - self.value)


@dataclass
class Looking:
    """One per engine."""

    # Time of a step outside the forward for each sequence, when it looked and when it did not.
    _looked_us: Mean = field(default_factory=Mean)
    _blind_us: Mean = field(default_factory=Mean)
    _num_idle: int = 0
    _rest_left: int = 0
    _num_sequences: int = 0

    @property
    def is_on(self) -> bool:
        return self._rest_left <= 0

    @property
    def cost_us(self) -> float:
        """What looking adds to a step for each sequence; 0 until both kinds of step were seen."""
        if not self._looked_us.count or not self._blind_us.count:
            return 0.0
        return max(self._looked_us.value - self._blind_us.value, 0.0)

    def restart(self) -> None:
        """Other answers: what these found says nothing of them."""
        self._num_idle = self._rest_left = 0

    def measured(
        self, num_sequences: int, outside_us: float, *, found: bool, num_drafted: int
    ) -> None:
        """After a step without prefill, of sequences with sources of their own.

        found: there were draft tokens to choose from; num_drafted: how many were chosen.
        """
        each_us = outside_us / num_sequences
        if self.is_on:
            self._looked_us.add(each_us)
            if num_drafted:
                self._num_idle = 0
            elif found:
                self._num_idle += 1
                if self._num_idle >= _PATIENCE:
                    self._rest_left = min(2 ** (self._num_idle - _PATIENCE + 1), _LONGEST_REST)
        else:
            self._blind_us.add(each_us)
            self._rest_left -= 1
        if num_sequences < self._num_sequences:
            # Rows have become cheaper.
            self.restart()
        self._num_sequences = num_sequences
