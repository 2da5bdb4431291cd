"""What the drafting thread counts of its own work. Knows no metric and no clock."""

from collections.abc import Callable, Sequence


class DraftCounters:
    """Written by the drafting thread alone, read by any."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.num_wasted = 0
        self.busy_nanos = 0
        self.wasted_nanos = 0.0
        # Told of each step's time in seconds.
        self.on_step: Callable[[float], None] | None = None

    def step(self, nanos: int, num_tokens: Sequence[int]) -> None:
        """A drafting step and how many tokens it gave each sequence."""
        self.num_steps += 1
        self.num_tokens += sum(num_tokens)
        self.busy_nanos += nanos
        if self.on_step:
            self.on_step(nanos / 1e9)

    def waste(self, num_tokens: int) -> None:
        """Drafted tokens that are thrown away, at the mean time of a token."""
        if num_tokens > 0 and self.num_tokens:
            self.num_wasted += num_tokens
            wasted_nanos = self.wasted_nanos + num_tokens * self.busy_nanos / self.num_tokens
            self.wasted_nanos = min(wasted_nanos, self.busy_nanos)
