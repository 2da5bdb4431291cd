"""The rule: an action is taken iff its probability-weighted extra tokens exceed what it costs.

rho is the rate of the whole step, in tokens per microsecond: a row or a wait of one sequence delays
all that share the forward, so it is weighed against the tokens of all (ratio-optimal stopping; see
docs/design.md). Pure: probabilities and a fit of step time in, numbers of rows and waits out.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from verifier_service.step_time import StepShape, StepTime

# Extra tokens must exceed their cost by this much: estimates are noisy.
_MARGIN = 1.05
# What "must not slow" allows the rows of others, as a share of a step.
_BYSTANDER_SHARE = 0.01
_MAX_MOMENTS = 4


@dataclass(frozen=True, slots=True)
class Hand:
    """One sequence's draft tokens at hand: P(it and all before it stand), descending.

    `allowance_us`: what the step may cost it at most, its own expected gain counted.
    """

    survival: Sequence[float] = ()
    allowance_us: float = math.inf


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
    num_draft = [0] * len(hands)
    taken: list[tuple[int, float, float]] = []
    plain_us = step_time.predict(plain)
    tokens, time_us, rows = float(len(hands)), wait_us + plain_us, plain.rows
    heap = [(-hand.survival[0], index) for index, hand in enumerate(hands) if hand.survival]
    heapq.heapify(heap)
    while heap and len(taken) < max_rows:
        probability, index = -heap[0][0], heap[0][1]
        row_us = step_time.row_us(rows)
        if probability * time_us <= _MARGIN * tokens * row_us:
            break
        tokens, time_us, rows = tokens + probability, time_us + row_us, rows + 1
        taken.append((index, probability, row_us))
        num_draft[index] += 1
        survival = hands[index].survival
        if num_draft[index] < len(survival):
            heapq.heapreplace(heap, (-survival[num_draft[index]], index))
        else:
            heapq.heappop(heap)
    gains = [1.0 + sum(h.survival[:n]) for h, n in zip(hands, num_draft, strict=True)]
    while taken and _costs_too_much(hands, gains, plain_us, time_us - wait_us):
        index, probability, row_us = taken.pop()
        num_draft[index] -= 1
        gains[index] -= probability
        tokens, time_us, rows = tokens - probability, time_us - row_us, rows - 1
    price = tokens * step_time.row_us(rows) / time_us if time_us > 0 else 0.0
    return Plan(num_draft, tokens, time_us - wait_us, min(price, 1.0))


def _costs_too_much(
    hands: Sequence[Hand], gains: Sequence[float], plain_us: float, time_us: float
) -> bool:
    """Whether the step would cost a sequence more than it has left to lose."""
    if time_us <= plain_us * (1 + _BYSTANDER_SHARE):
        return False
    return any(
        time_us - gain * plain_us > hand.allowance_us
        for hand, gain in zip(hands, gains, strict=True)
    )


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
    allowance_us: float = math.inf

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
            self.allowance_us,
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
