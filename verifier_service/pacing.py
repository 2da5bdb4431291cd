"""Pacing: one rule for how much to speculate and how long to wait for a draft.

rho is what a sequence earns now, in tokens per microsecond. Verifying one more draft token, or
waiting for a drafter, is done iff its probability-weighted extra tokens exceed rho times its
marginal time (design.md 8; arXiv 2406.14066 fits the same time model). A ledger per sequence bounds
what speculation may cost. Pure: times come in as numbers. All times in microseconds.
"""

from dataclasses import dataclass, field

# A sequence may lose this much to speculation, or this share of its time, before it stops.
BUDGET_US = 30_000.0
BUDGET_SHARE = 0.02
# Plain rounds before a probe once the budget is spent; doubled after each probe that lost.
_PAUSE_ROUNDS = 16
_PAUSE_LIMIT = 512
# Added to a wait, for the jitter of two processes on shared cores.
_PATIENCE_US = 1_000.0
# Longest wait for a draft, whatever the rule says: a step must never hang on a peer.
MAX_WAIT_US = 20_000.0


class StepTime:
    """Online fit of a step's time: base + row * rows, by least squares with forgetting."""

    _FORGET = 0.98

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, rows: int, time_us: float) -> None:
        for name, value in (
            ("_n", 1.0),
            ("_x", rows),
            ("_y", time_us),
            ("_xx", rows * rows),
            ("_xy", rows * time_us),
        ):
            setattr(self, name, getattr(self, name) * self._FORGET + value)

    @property
    def is_known(self) -> bool:
        return self._n >= 1.0

    @property
    def row_us(self) -> float:
        """Marginal time of one more row; never negative."""
        spread = self._n * self._xx - self._x * self._x
        if spread <= 1e-6 * self._n * self._xx:
            return 0.0
        return max(0.0, (self._n * self._xy - self._x * self._y) / spread)

    def predict(self, rows: int) -> float:
        """Time of a step with this many rows; 0 before the first step."""
        if self._n == 0.0:
            return 0.0
        return self._y / self._n + self.row_us * (rows - self._x / self._n)


@dataclass(slots=True)
class Pacing:
    """What one sequence has learned of its drafter, and its ledger."""

    # Estimate of P(a tested draft token is accepted), and of the time from a commit to a draft.
    acceptance: float = 0.7
    latency_us: float = 0.0
    # Share of its answers that proposed anything: a lookup often has nothing.
    hit_rate: float = 0.5
    ledger_us: float = 0.0
    elapsed_us: float = 0.0
    _paused_rounds: int = field(default=0)
    _next_pause: int = field(default=_PAUSE_ROUNDS)

    def draft_length(self, available: int, rho: float, row_us: float) -> int:
        """How many of the draft tokens at hand are worth a row each."""
        if self._paused_rounds:
            return 0
        survival, length = 1.0, 0
        while length < available:
            survival *= self.acceptance
            if survival <= rho * row_us:
                break
            length += 1
        return length

    def wait_us(self, max_draft_tokens: int, rho: float) -> float:
        """How long to sit out for a draft that is on its way; 0 when it does not pay."""
        if self._paused_rounds or max_draft_tokens == 0:
            return 0.0
        a = self.acceptance
        expected = a * (1 - a**max_draft_tokens) / (1 - a) if a < 1 else float(max_draft_tokens)
        patience = 2 * self.latency_us + _PATIENCE_US
        worth = self.hit_rate * expected > rho * patience
        return min(patience, MAX_WAIT_US) if worth else 0.0

    @property
    def is_paused(self) -> bool:
        return self._paused_rounds > 0

    def answered(self, latency_us: float, num_tokens: int) -> None:
        """A draft, empty or not, arrived this long after the commit it continues."""
        self.hit_rate += 0.1 * ((num_tokens > 0) - self.hit_rate)
        known = self.latency_us > 0.0
        self.latency_us = 0.8 * self.latency_us + 0.2 * latency_us if known else latency_us

    def missed(self, waited_us: float) -> None:
        """A draft did not come within a wait: expect it later, until it is not worth a wait."""
        self.latency_us = max(2 * self.latency_us, waited_us)

    def learn(
        self, *, tested: int, accepted: int, output: int, time_us: float, plain_us: float
    ) -> None:
        """After a round: `time_us` it took, waiting included; `plain_us` for one plain token."""
        for index in range(tested):
            self.acceptance += 0.05 * ((1.0 if index < accepted else 0.0) - self.acceptance)
        # Never certain: a floor keeps probing possible, a ceiling keeps the rule finite.
        self.acceptance = min(max(self.acceptance, 0.02), 0.98)
        self.elapsed_us += time_us
        if self._paused_rounds:
            self._paused_rounds -= 1
            return
        lost_us = time_us - output * plain_us
        self.ledger_us += lost_us
        if self.ledger_us <= max(BUDGET_US, BUDGET_SHARE * self.elapsed_us):
            return
        # Over budget: a round that gains may be followed by another, one that loses may not.
        if lost_us > 0:
            self._paused_rounds = self._next_pause
            self._next_pause = min(2 * self._next_pause, _PAUSE_LIMIT)
        else:
            self._next_pause = _PAUSE_ROUNDS
