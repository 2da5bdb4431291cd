"""The ledger of one sequence: time lost to speculation, and how much of it may be lost. Pure."""

from dataclasses import dataclass

DEFAULT_BUDGET_US = 30_000.0
DEFAULT_BUDGET_SHARE = 0.02


@dataclass(slots=True)
class Ledger:
    """Debt may reach `budget_us`, or `budget_share` of the time so far, whichever is more.

    What was gained pays for losses later, but for no more than one budget: an answer that has
    gained a lot must notice soon when its drafter turns bad.
    """

    budget_us: float = DEFAULT_BUDGET_US
    budget_share: float = DEFAULT_BUDGET_SHARE
    # All losses less all gains, for reports.
    total_us: float = 0.0
    elapsed_us: float = 0.0
    _debt_us: float = 0.0

    def add(self, lost_us: float, elapsed_us: float) -> None:
        self.total_us += lost_us
        self.elapsed_us += elapsed_us
        self._debt_us = max(self._debt_us + lost_us, -self.budget_us)

    @property
    def allowance_us(self) -> float:
        """What may still be lost now; 0 when the budget is spent."""
        limit = max(self.budget_us, self.budget_share * self.elapsed_us)
        return max(limit - self._debt_us, 0.0)

    @property
    def is_spent(self) -> bool:
        return self.allowance_us <= 0.0
