"""Looking: whether a step asks its sequences' own sources for draft tokens at all.

Asking takes time on the engine's thread, for every sequence, and among many more than the draft
tokens bring: where steps found some and none was worth a row, the next ones do not look, for longer
each time. Pure; times in microseconds.
"""

from dataclasses import dataclass

_RATE = 0.05
# Steps in a row without a draft token worth its row, before the first rest; and the longest rest.
_PATIENCE, _LONGEST_REST = 2, 16


@dataclass
class Looking:
    """One per engine."""

    # Time of a step outside the forward for each sequence, when it looked and when it did not.
    _looked_us: float | None = None
    _plain_us: float | None = None
    _num_idle: int = 0
    _rest_left: int = 0
    _num_sequences: int = 0

    @property
    def is_on(self) -> bool:
        return self._rest_left <= 0

    @property
    def cost_us(self) -> float:
        """What looking adds to a step for each sequence; 0 until both kinds of step were seen."""
        if self._looked_us is None or self._plain_us is None:
            return 0.0
        return max(self._looked_us - self._plain_us, 0.0)

    def measured(
        self, num_sequences: int, outside_us: float, *, found: bool, num_drafted: int
    ) -> None:
        """After a step without prefill. found: there were draft tokens to choose from."""
        each_us = outside_us / num_sequences
        if self.is_on:
            self._looked_us = _smoothed(self._looked_us, each_us)
            if num_drafted:
                self._num_idle = 0
            elif found:
                self._num_idle += 1
                if self._num_idle >= _PATIENCE:
                    rest = 2 ** min(self._num_idle - _PATIENCE + 1, 30)
                    self._rest_left = min(rest, _LONGEST_REST)
        else:
            self._plain_us = _smoothed(self._plain_us, each_us)
            self._rest_left -= 1
        if num_sequences < self._num_sequences:
            # Rows have become cheaper.
            self._rest_left = 0
        self._num_sequences = num_sequences


def _smoothed(mean_us: float | None, value_us: float) -> float:
    return value_us if mean_us is None else mean_us + _RATE * (value_us - mean_us)
