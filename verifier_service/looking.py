"""Looking: whether a step asks a sequence's own sources for draft tokens at all.

Asking takes time on the engine's thread, which delays every sequence of the step, and for many a
text it brings nothing. The rule for any action (design.md 8): a sequence is asked while what was
expected of it lately exceeds what asking and its rows cost. The others are asked in turn, within a
small share of the time, to see whether their texts have changed. Pure; times in microseconds.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

from verifier_service.shrunk import Pool, Shrunk

# Tokens hoped for from asking where nothing is known, and how many times that hope is worth.
_HOPE, _HOPE_WEIGHT, _HOPE_FADE = 0.3, 16.0, 0.995
_FADE = 0.95
# Of the time, for asking where it has not paid; and so many sequences at once.
_SHARE, _MOST_AT_ONCE = 0.01, 4
# How fast a mean time follows, and how many times itself it believes in.
_UP, _DOWN, _CLIP = 0.05, 0.25, 3.0
# How fast the speed-up follows.
_SPEED_RATE = 0.05


def new_hope() -> Pool:
    """What asking brings the sequences of a workload that nothing is known of."""
    return Pool(_HOPE * _HOPE_WEIGHT, _HOPE_WEIGHT, _HOPE_FADE)


@dataclass(slots=True)
class Interest:
    """What was expected of asking one sequence's sources lately, less its cost. In tokens."""

    # What it brought the sequences of the workload.
    hope: InitVar[Pool | None] = None
    # Steps since it was asked.
    num_rested: int = 0
    net: Shrunk = field(init=False)

    def __post_init__(self, hope: Pool | None) -> None:
        self.net = Shrunk(hope or new_hope(), fade=_FADE)

    @property
    def pays(self) -> bool:
        return self.net.mean > 0.0

    def asked(self, num_tokens: float, cost: float) -> None:
        """num_tokens: what was to be expected of it; cost: tokens that the step could have made in
        the time of asking and of the rows."""
        self.num_rested = 0
        self.net.add(num_tokens - cost)

    def rested(self) -> None:
        self.num_rested += 1


@dataclass(slots=True)
class Looking:
    """One per engine."""

    # Of asking one sequence; 0: not known yet.
    cost_us: float = 0.0
    # Tokens per time lately, over those of plain decoding.
    speed_up: float = 1.0
    _saved_us: float = 0.0
    # The present step cannot ask all that pay.
    _is_tight: bool = False

    def choose(
        self, interests: Sequence[Interest], allowed_us: float, is_shielded: Sequence[bool] = ()
    ) -> list[bool]:
        """Which of these sequences to ask in this step.

        Those that pay, if all together may take so long, and others within the share. If not, those
        within that share who are shielded from the rows of others, if any are: what they would gain
        themselves may change that.
        """
        asks = [interest.pays for interest in interests]
        self._is_tight = sum(asks) * self.cost_us > allowed_us
        num_tried = max(int(self._saved_us / self.cost_us), 0) if self.cost_us else len(asks)
        others = [i for i, pays in enumerate(asks) if not pays or self._is_tight]
        if self._is_tight and any(is_shielded):
            others = [index for index in others if is_shielded[index]]
            asks = [False] * len(asks)
        others.sort(key=lambda index: -interests[index].num_rested)
        for rank, index in enumerate(others):
            asks[index] = rank < num_tried
        return asks

    def asked(self, look_us: float, rows_us: float, *, pays: bool) -> None:
        """One sequence was asked, which took so long, and its draft rows so much."""
        if self.cost_us:
            look_us = min(look_us, _CLIP * self.cost_us)
        if self._is_tight or not pays:
            self._saved_us -= look_us + rows_us
        # Slowly up and quickly down: hiccups, and all that is done for the first time, are long.
        rate = _UP if look_us > self.cost_us > 0.0 else _DOWN if self.cost_us else 1.0
        self.cost_us += rate * (look_us - self.cost_us)

    def measured(self, step_us: float, plain_us: float, tokens_per_sequence: float) -> None:
        """After a step; `plain_us`: what it had taken without speculation."""
        saved_us = self._saved_us + _SHARE * step_us
        self._saved_us = min(saved_us, _MOST_AT_ONCE * self.cost_us)
        if step_us > 0.0:
            speed_up = tokens_per_sequence * plain_us / step_us
            self.speed_up += _SPEED_RATE * (speed_up - self.speed_up)

    def tokens_in(self, time_us: float, num_sequences: int, plain_us: float) -> float:
        """What a step of these could make in that time, as fast as it went lately."""
        return max(self.speed_up, 1.0) * num_sequences * time_us / plain_us if plain_us else 0.0
