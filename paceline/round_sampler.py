"""Which rounds get a span when not all do. Gateway and verifier pick the same ones.

Pure. Knows no spans.
"""

from collections import deque

from paceline.rounds import PlainReason, RoundReport

FIRST_ROUNDS = 8
EVERY_ROUNDS = 16
STREAK_ROUNDS = 4
SLOW_WINDOW = 64
SLOW_MIN_ROUNDS = 20
SLOW_QUANTILE = 0.95
FALLBACKS = (PlainReason.NO_DRAFTER, PlainReason.NO_DRAFT, PlainReason.BUDGET)


def is_regular(round_number: int) -> bool:
    """The first 8 and every 16th: known before a round has happened."""
    return round_number <= FIRST_ROUNDS or round_number % EVERY_ROUNDS == 0


class RoundSampler:
    """Picks the rounds of one answer that get a span when not all do.

    The first 8, every 16th, and the odd ones: the drafter fell out, nothing was accepted after a
    streak of acceptance, or slower than 95 % of the last rounds.
    """

    def __init__(self) -> None:
        self._streak = 0
        self._had_block = False
        self._recent_us: deque[int] = deque(maxlen=SLOW_WINDOW)

    def picks(self, report: RoundReport) -> bool:
        """Whether this round gets a span. Called once for every round, in order."""
        duration_us = report.wait_us + report.verify_us
        odd = (
            (self._had_block and report.plain_reason in FALLBACKS)
            or (
                self._streak >= STREAK_ROUNDS
                and report.num_drafted > 0
                and report.num_accepted == 0
            )
            or self._is_slow(duration_us)
        )
        self._had_block = report.num_drafted > 0
        if report.num_drafted:
            self._streak = self._streak + 1 if report.num_accepted else 0
        self._recent_us.append(duration_us)
        return odd or is_regular(report.round)

    def _is_slow(self, duration_us: int) -> bool:
        if len(self._recent_us) < SLOW_MIN_ROUNDS:
            return False
        ordered = sorted(self._recent_us)
        return duration_us > ordered[int(SLOW_QUANTILE * (len(ordered) - 1))]
