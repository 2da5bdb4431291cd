"""Arrival: when the next draft tokens of a sequence may be expected. Pure; microseconds."""

import math
from dataclasses import dataclass, replace

_RATE = 0.2
_HIT_RATE, _RECENT_RATE = 0.1, 0.4
# Before the first answer: a drafter is tried with a short wait.
_FIRST_LATENCY_US = 2_000.0
# After so many of those it is found out by what comes during steps: longer waits would cost more.
_MOST_MISSED = 2
# For the jitter of two processes on shared cores.
_SLACK_US = 500.0


@dataclass(slots=True)
class Arrival:
    """Time from a commit to the first draft tokens, their number, and the pace of those after."""

    latency_us: float = _FIRST_LATENCY_US
    deviation_us: float = _FIRST_LATENCY_US / 2
    num_first: float = 1.0
    # Time per token after the first block of an epoch; None: none has come yet.
    pace_us: float | None = None
    # Share of answers that proposed anything, in the long run and as of late: a lookup has nothing
    # for a while, and then something for a while.
    hit_rate: float = 0.9
    recent_hits: float = 0.9
    is_known: bool = False
    # Waits in vain before anything was known.
    num_missed: int = 0

    def copy(self) -> "Arrival":
        """For another sequence."""
        return replace(self, recent_hits=self.hit_rate)

    @property
    def chance(self) -> float:
        """That the next answer proposes anything; a run of hits raises no hopes."""
        return min(self.hit_rate, self.recent_hits)

    def answered(self, latency_us: float, num_tokens: int) -> None:
        """The first block after a commit, empty or not, came this long after it."""
        hit = num_tokens > 0
        self.hit_rate += _HIT_RATE * (hit - self.hit_rate)
        self.recent_hits += _RECENT_RATE * (hit - self.recent_hits)
        if not num_tokens:
            return
        if not self.is_known:
            self.latency_us, self.deviation_us = latency_us, latency_us / 4
            self.num_first = num_tokens
            self.is_known = True
            return
        error = latency_us - self.latency_us
        self.deviation_us += _RATE * (abs(error) - self.deviation_us)
        self.latency_us += _RATE * error
        self.num_first += _RATE * (num_tokens - self.num_first)

    def followed(self, gap_us: float, num_tokens: int) -> None:
        """More tokens of the same epoch, this long after those before."""
        pace_us = gap_us / num_tokens
        self.pace_us = (
            pace_us if self.pace_us is None else self.pace_us + _RATE * (pace_us - self.pace_us)
        )

    def missed(self, waited_us: float) -> None:
        """None came within a wait: expect them later, until it is not worth a wait."""
        self.num_missed += 1
        self.latency_us = max(2 * self.latency_us, waited_us)
        self.deviation_us = max(self.deviation_us, self.latency_us / 4)

    @property
    def slack_us(self) -> float:
        """How much later than expected is still in time."""
        return 2 * self.deviation_us + _SLACK_US

    def expected_us(self, num_ready: int, num_wanted: int, since_us: float) -> float:
        """Time from now until `num_wanted` tokens are there, `num_ready` are; inf: never.

        `since_us`: since the commit when nothing is there, else since the last tokens came.
        """
        if num_wanted <= num_ready:
            return 0.0
        if num_ready == 0:
            if not self.is_known and self.num_missed >= _MOST_MISSED:
                return math.inf
            at_us = self.latency_us
            more = num_wanted - max(self.num_first, 1.0)
        else:
            at_us, more = 0.0, float(num_wanted - num_ready)
        if more > 0:
            if self.pace_us is None:
                return math.inf
            at_us += more * self.pace_us
        # What is overdue may come at any moment, or not at all.
        return max(at_us - since_us, self.deviation_us / 2)

    def num_within(self, time_us: float, limit: int) -> int:
        """How many tokens come within this time after a commit."""
        if self.latency_us > time_us:
            return 0
        count = self.num_first
        if self.pace_us is not None:
            count += (time_us - self.latency_us) / max(self.pace_us, 1.0)
        return min(int(count), limit)
