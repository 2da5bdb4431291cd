"""Looking: whether a step asks a sequence's own sources for draft tokens at all.

Asking takes time on the engine's thread, which delays every sequence of the step, and for many a
text it brings nothing. The rule for any action (design.md 8): a sequence is asked while what that
brought lately exceeds what asking and its rows cost. The others are asked in turn, within a small
share of the time, to see whether their texts have changed. Pure; times in microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Tokens hoped for from a sequence that was never asked; how much the latest time counts.
_HOPE, _RATE = 0.3, 0.2
# Of the time, for asking where it has not paid; and so many sequences at once.
_SHARE, _MOST_AT_ONCE = 0.01, 4
# How fast a mean time follows, and how many times itself it believes in.
_UP, _DOWN, _CLIP = 0.05, 0.25, 3.0


@dataclass(slots=True)
class Interest:
    """What asking one sequence's sources brought lately, less what it cost. In tokens."""

    net: float = _HOPE
    # Steps since it was asked.
    num_rested: int = 0

    @property
    def pays(self) -> bool:
        return self.net > 0.0

    def asked(self, num_accepted: int, cost: float) -> None:
        """`cost`: tokens that the step could have made in the time of asking and of the rows."""
        self.num_rested = 0
        self.net += _RATE * (num_accepted - cost - self.net)

    def rested(self) -> None:
        self.num_rested += 1


@dataclass(slots=True)
class Looking:
    """One per engine."""

    # Of asking one sequence; 0: not known yet.
    cost_us: float = 0.0
    # Of a step that asks nobody.
    _blind_us: float = 0.0
    _saved_us: float = 0.0

    def choose(self, interests: Sequence[Interest], allowed_us: float) -> list[bool]:
        """Which of these sequences to ask in this step; all together may take so long."""
        asks = [interest.pays for interest in interests]
        others = [index for index, pays in enumerate(asks) if not pays]
        others.sort(key=lambda index: -interests[index].num_rested)
        num_tried = int(self._saved_us / self.cost_us) if self.cost_us else len(others)
        for index in others[:num_tried]:
            asks[index] = True
        if sum(asks) * self.cost_us >= allowed_us:
            # The most promising ones that fit.
            best = sorted(range(len(asks)), key=lambda index: -interests[index].net * asks[index])
            num_fitting = int(allowed_us / self.cost_us) if self.cost_us else 0
            for index in best[num_fitting:]:
                asks[index] = False
        return asks

    def measured(self, look_us: float, num_asked: int, num_tried: int, step_us: float) -> None:
        """After a step that asked so many, `num_tried` of them although it had not paid.

        `look_us`: of choosing the step's draft tokens, and of learning from what became of them.
        """
        if not num_asked:
            self._blind_us = _towards(self._blind_us, look_us)
        else:
            self.cost_us = _towards(self.cost_us, max(look_us - self._blind_us, 0.0) / num_asked)
        saved_us = self._saved_us + _SHARE * step_us - num_tried * self.cost_us
        self._saved_us = min(max(saved_us, 0.0), _MOST_AT_ONCE * self.cost_us)


def _towards(mean_us: float, value_us: float) -> float:
    """Slowly up and quickly down: hiccups, and all that is done for the first time, are long."""
    if not mean_us:
        return value_us
    value_us = min(value_us, _CLIP * mean_us)
    return mean_us + (_UP if value_us > mean_us else _DOWN) * (value_us - mean_us)
