"""The rule: an action is taken iff its probability-weighted extra tokens exceed what it costs.

rho is the rate of the whole step, in tokens per microsecond: a row or a wait of one sequence delays
all that share the forward, so it is weighed against the tokens of all (ratio-optimal stopping; see
docs/design.md). Pure: probabilities and a fit of step time in, numbers of rows and waits out.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verifier_service.step_time import StepShape, StepTime

# Extra tokens must exceed their cost by this much: estimates are noisy.
_MARGIN = 1.05
# What "must not slow" allows draft rows in any case, as a share of a step.
_BYSTANDER_SHARE = 0.01
_MAX_MOMENTS = 4


@dataclass(frozen=True, slots=True)
class Stake:
    """What the draft rows of a step may add to it, as far as one sequence is concerned.

    us: in any case. gain_us: what it expects to gain in a step on average. It puts up with `share`
    of that besides, or of what it expects to gain in this one, if that is more.
    """

    us: float = math.inf
    gain_us: float = 0.0
    share: float = 0.0

    def allows_us(self, gain_us: float) -> float:
        """gain_us: expected in this step."""
        return self.us + self.share * max(gain_us, self.gain_us)


ANY_STAKE = Stake()


@dataclass(frozen=True, slots=True)
class Hand:
    """One sequence's draft tokens at hand: P(it and all before it stand), descending."""

    survival: Sequence[float] = ()
    stake: Stake = ANY_STAKE


@dataclass(frozen=True, slots=True)
class Wish:
    """Draft tokens of each sequence, how many of them are expected to stand, the time of all."""

    num_draft: list[int] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    rows_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Draft tokens of each sequence, the expected tokens and time of the step.

    A draft token less likely than `min_probability` is not worth a row in this step.
    """

    num_draft: list[int]
    num_tokens: float
    time_us: float
    min_probability: float
    # Plain on purpose, to see how long that takes.
    is_probe: bool = False
    # What would have been chosen without stakes.
    wish: Wish = field(default_factory=Wish)


def plan_rows(
    hands: Sequence[Hand],
    plain: StepShape,
    step_time: StepTime,
    max_rows: int,
    wait_us: float = 0.0,
) -> Plan:
    """The draft tokens that maximise tokens per time, after a wait of this length.

    plain: the step without draft tokens. Takes the likeliest token first and stops when the next
    one would lower the rate, which is exact for rows that never get cheaper.
    """
    taken: list[_Row] = []
    plain_us = step_time.predict(plain)
    tokens, time_us = float(len(hands)), wait_us + plain_us
    counts = [0] * len(hands)
    heap = [(-hand.survival[0], index) for index, hand in enumerate(hands) if hand.survival]
    heapq.heapify(heap)
    while heap and len(taken) < max_rows:
        probability, index = -heap[0][0], heap[0][1]
        row_us = step_time.row_us(plain.rows + len(taken))
        if probability * time_us <= _MARGIN * tokens * row_us:
            break
        tokens, time_us = tokens + probability, time_us + row_us
        taken.append(_Row(index, probability, row_us))
        counts[index] += 1
        survival = hands[index].survival
        if counts[index] < len(survival):
            heapq.heapreplace(heap, (-survival[counts[index]], index))
        else:
            heapq.heappop(heap)
    wish = _wish(taken, len(hands))
    kept = _within_stakes(taken, hands, wish.tokens, plain_us, step_time.row_doubt_us)
    chosen = _wish(kept, len(hands))
    tokens, time_us = len(hands) + sum(chosen.tokens), wait_us + plain_us + chosen.rows_us
    price = tokens * step_time.row_us(plain.rows + len(kept)) / time_us if time_us > 0 else 0.0
    return Plan(chosen.num_draft, tokens, time_us - wait_us, min(price, 1.0), wish=wish)


class _Row(NamedTuple):
    """A draft token: of which sequence, how likely it stands, what it adds to the step."""

    sequence: int
    probability: float
    time_us: float


def _wish(rows: Sequence[_Row], num_sequences: int) -> Wish:
    num_draft, tokens = [0] * num_sequences, [0.0] * num_sequences
    for index, probability, _ in rows:
        num_draft[index] += 1
        tokens[index] += probability
    return Wish(num_draft, tokens, sum(row.time_us for row in rows))


def _within_stakes(
    taken: Sequence[_Row],
    hands: Sequence[Hand],
    tokens: Sequence[float],
    plain_us: float,
    doubt_us: float,
) -> list[_Row]:
    """The rows that cost nobody more than it may: those of others are taken back first, and the
    least likely ones. What a row costs may not be known yet, and a stake must do for the worst."""
    kept, gains = list(taken), list(tokens)
    extra_us = sum(row.time_us + doubt_us for row in kept)
    while kept and extra_us > _BYSTANDER_SHARE * plain_us:
        allowed_us, loser = min(
            (hand.stake.allows_us(gain * plain_us), index)
            for index, (hand, gain) in enumerate(zip(hands, gains, strict=True))
        )
        if extra_us <= allowed_us:
            break
        others = [row for row in kept if row.sequence != loser]
        doomed = others or kept[-1:]
        least_us = max(allowed_us, _BYSTANDER_SHARE * plain_us)
        while doomed and extra_us > least_us:
            row = doomed.pop()
            kept.remove(row)
            gains[row.sequence] -= row.probability
            extra_us -= row.time_us + doubt_us
    return kept


@dataclass(frozen=True, slots=True)
class Prospect:
    """One sequence of a step that may wait.

    survival: of all draft tokens it may use. arrivals_us[i]: when token i is there, from now on; 0
    for those at hand, ascending; none for tokens that are not expected. chance: that anything
    comes, if nothing is there yet. num_in_step: draft tokens that come during a step that begins
    with none, and continue it.
    """

    survival: Sequence[float]
    arrivals_us: Sequence[float]
    chance: float = 1.0
    num_in_step: int = 0
    stake: Stake = ANY_STAKE

    @property
    def is_empty(self) -> bool:
        return not self.arrivals_us or self.arrivals_us[0] > 0.0

    @property
    def certainty(self) -> float:
        """P(what is expected comes)."""
        return self.chance if self.is_empty else 1.0

    @property
    def promise(self) -> float:
        """Expected extra tokens if all of it came."""
        return self.certainty * sum(self.survival[: len(self.arrivals_us)])

    def hand(self, within_us: float) -> Hand:
        """The draft tokens there by then."""
        return Hand(
            [
                p * self.certainty
                for p, at_us in zip(self.survival, self.arrivals_us, strict=False)
                if at_us <= within_us
            ],
            self.stake,
        )

    @property
    def stays(self) -> float:
        """P(a step that had draft tokens leaves some that stand in place for the next)."""
        count = min(self.num_in_step, len(self.survival))
        return self.survival[count - 1] * self.survival[0] if count else 0.0

    @property
    def extra(self) -> float:
        """Tokens that those of one step without a wait give the next."""
        return self.chance * sum(self.survival[: self.num_in_step])

    def carry(self, num_used: int, within_us: float) -> float:
        """P(tokens that come during a step stand in place for the next), less if few come."""
        in_time = sum(at_us <= within_us for at_us in self.arrivals_us)
        if in_time <= num_used + 1 or self.extra <= 0.0:
            return 0.0
        stand = self.survival[num_used] * self.certainty
        return stand * min(sum(self.survival[: in_time - num_used - 1]) / self.extra, 1.0)


@dataclass(frozen=True, slots=True)
class Wait:
    """How long to wait at most, and for how many draft tokens of each sequence in all."""

    wait_us: float
    num_wanted: list[int]


def best_wait(
    prospects: Sequence[Prospect],
    plain: StepShape,
    step_time: StepTime,
    max_rows: int,
    max_wait_us: float,
) -> Wait:
    """The wait that earns most; 0 when a step at once does.

    Going on at once does not lose what arrives during the step: if the first token of it stands,
    the next step has draft tokens in place. What that is worth depends on how the steps to come
    are done, always waiting or never; the better of the two sets rho and that worth.
    """
    moments = sorted(
        {at for prospect in prospects for at in prospect.arrivals_us if 0.0 < at <= max_wait_us}
    )
    if not moments:
        return Wait(0.0, [])
    stride = math.ceil(len(moments) / _MAX_MOMENTS)
    options = [(0.0, plan_rows([p.hand(0.0) for p in prospects], plain, step_time, max_rows))]
    for at_us in moments[::-stride]:
        hands = [prospect.hand(at_us) for prospect in prospects]
        options.append((at_us, plan_rows(hands, plain, step_time, max_rows, at_us)))
    rho, longest_us = max(
        (plan.num_tokens / (at_us + plan.time_us), at_us) for at_us, plan in options
    )
    if longest_us == 0.0:
        return Wait(0.0, [])
    never_rho = _rate_without_waits(prospects, plain, step_time)
    if never_rho > rho:
        rho = never_rho
        worths = [p.extra / (1 + p.survival[0] - p.stays) if p.extra else 0.0 for p in prospects]
    else:
        # The wait is saved only if no other sequence needs it.
        all_stay = math.prod(prospect.stays for prospect in prospects)
        worths = [rho * longest_us * all_stay / p.stays if p.stays else 0.0 for p in prospects]

    def earns(option: tuple[float, Plan]) -> float:
        at_us, plan = option
        end_us = at_us + plan.time_us
        carried = sum(
            worth * prospect.carry(used, end_us)
            for worth, prospect, used in zip(worths, prospects, plan.num_draft, strict=True)
            if worth
        )
        return plan.num_tokens + carried - rho * end_us

    wait_us, plan = max(options, key=earns)
    return Wait(wait_us, plan.num_draft if wait_us > 0.0 else [])


def _rate_without_waits(
    prospects: Sequence[Prospect], plain: StepShape, step_time: StepTime
) -> float:
    """Tokens per time in the long run if no step ever waits.

    A sequence has draft tokens in place, or not; each step takes it from one to the other.
    """
    tokens, rows = float(len(prospects)), float(plain.rows)
    for prospect in prospects:
        if not prospect.extra:
            continue
        comes = prospect.survival[0] * prospect.chance
        in_place = comes / (comes + 1 - prospect.stays)
        tokens += in_place * prospect.extra
        rows += in_place * prospect.num_in_step
    return tokens / step_time.predict(plain.with_rows(round(rows)))
