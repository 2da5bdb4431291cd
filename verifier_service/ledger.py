"""The ledger of one sequence: time lost to speculation, and how much of it may be lost. Pure."""

from dataclasses import dataclass

DEFAULT_BUDGET_US = 30_000.0
DEFAULT_BUDGET_SHARE = 0.02
# Gains are kept for so many rounds of what a round with a stake costs lately.
_BANK_ROUNDS, _STAKE_RATE = 4.0, 0.1
# Of the time, what draft rows may cost whatever is left (rule.py).
_ANYWAY_SHARE = 0.01


@dataclass(slots=True)
class Ledger:
    """Debt may reach `budget_us`, or `budget_share` of the time so far, whichever is more.

    Two debts: of the sequence's own speculation, and with what the rows and waits of others in the
    same steps cost it. What was gained pays for losses later, but for no more than one budget or a
    few rounds: an answer that has gained a lot must notice soon when its drafter turns bad, yet not
    give up on one whose blocks are dear, and fail now and then. For what others may still cost it
    all gains count: the answer as a whole is not to be slower.
    """

    budget_us: float = DEFAULT_BUDGET_US
    budget_share: float = DEFAULT_BUDGET_SHARE
    # All losses less all gains: for reports, and for what others may still cost.
    total_us: float = 0.0
    elapsed_us: float = 0.0
    _debt_us: float = 0.0
    _own_us: float = 0.0
    # Of the total, since a probe gained.
    _forgiven_us: float = 0.0
    # What a round of its speculation costs lately, before what it gains.
    _stake_us: float = 0.0

    def add(
        self, own_us: float, others_us: float, elapsed_us: float, staked_us: float = 0.0
    ) -> None:
        """A round lost so much by its own speculation, which cost `staked_us` before what it
        gained, and by that of others."""
        self.total_us += own_us + others_us
        self.elapsed_us += elapsed_us
        if staked_us > 0.0:
            rate = _STAKE_RATE if self._stake_us else 1.0
            self._stake_us += rate * (staked_us - self._stake_us)
        bank_us = max(self.budget_us, _BANK_ROUNDS * self._stake_us)
        self._debt_us = max(self._debt_us + own_us + others_us, -bank_us)
        self._own_us = max(self._own_us + own_us, -bank_us)

    def trust(self) -> None:
        """A probe gained: half a budget may be lost anew, whatever was lost before."""
        self._own_us = min(self._own_us, self._limit_us - self.budget_us / 2)
        self._forgiven_us = max(
            self._forgiven_us, self.total_us - self._limit_us + self.budget_us / 2
        )

    @property
    def _limit_us(self) -> float:
        return max(self.budget_us, self.budget_share * self.elapsed_us)

    @property
    def allowance_us(self) -> float:
        """What may still be lost now."""
        return max(self._limit_us - self._debt_us, 0.0)

    @property
    def is_spent(self) -> bool:
        """Its own speculation has cost too much."""
        return self._own_us >= self._limit_us

    @property
    def lost_too_much(self) -> bool:
        """More than the budget, and than what a step may cost in any case."""
        return self.total_us > self._limit_us + _ANYWAY_SHARE * self.elapsed_us

    @property
    def left_us(self) -> float:
        """What the rows of others may still cost it, all gains counted."""
        return max(self._limit_us + self._forgiven_us - self.total_us, 0.0)
