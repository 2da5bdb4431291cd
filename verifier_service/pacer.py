"""The pacer of a verifier: the rule applied to the sequences of a step, and what a step teaches.

Holds what sequences share: the fit of step time, priors of acceptance and arrival, and the plain
probes that keep the time of plain decoding known. Pure but for that state; times in microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.rounds import TokenSource
from verifier_service.acceptance import Priors
from verifier_service.arrival import Arrival
from verifier_service.ledger import DEFAULT_BUDGET_SHARE, DEFAULT_BUDGET_US, Ledger
from verifier_service.looking import Interest, Looking
from verifier_service.mailbox import Draft
from verifier_service.pacing import Mode, Pacing, RoundCost
from verifier_service.rule import (
    ANY_STAKE,
    Hand,
    Plan,
    Prospect,
    Stake,
    Wait,
    best_wait,
    plan_rows,
)
from verifier_service.shrunk import Shrunk
from verifier_service.step_time import StepShape, StepTime
from verifier_service.workloads import Workloads

# Longest wait for a draft, whatever the rule says: a step must never hang on a peer.
MAX_WAIT_US = 150_000.0
# A plain step is made when its time is known no better than this, and not more often than that.
_PLAIN_ERROR = 0.03
_STEPS_BETWEEN_PLAIN = 60
# Drafters rest for some steps when their interference is known no better than this.
_DRAFTING_ERROR = 0.06
_STEPS_BETWEEN_QUIET = 300
# Sooner when hardly anything is known of it.
_DOUBTFUL_ERROR, _STEPS_IN_DOUBT = 0.3, 16
_FIRST_QUIET = 8
# Of a plain step: a drafter that costs less may draft beside the reading of a prompt.
_CHEAP = 0.1
_QUIET_STEPS = 4
# A probe verifies so many draft tokens, as if each were so likely to stand.
_PROBE_TOKENS, _PROBE_HOPE = 4, 0.6
# Draft tokens less likely to be reached are not worth a drafter's time; some always are.
_LEAST_SURVIVAL, _LEAST_CREDIT = 0.03, 2


@dataclass(frozen=True, slots=True)
class View:
    """One sequence of a step, as pacing sees it.

    limit: the longest block that it could verify. source: of the draft tokens at hand. expects: a
    draft is under way that the step could still use; since_us: since the commit, or since the
    tokens at hand came. fixed: a fixed draft length was asked for; pacing does not interfere.
    """

    pacing: Pacing
    num_ready: int
    limit: int
    source: TokenSource | None = None
    expects: bool = False
    since_us: float = 0.0
    fixed: bool = False
    # Of the draft tokens of all sources, most likely first; None: only a drafter's, see num_ready.
    survival: Sequence[float] | None = None
    stake: Stake = ANY_STAKE
    # It drafts by itself, as pacing wants, and its budget for that is not spent.
    has_own: bool = False
    # It drafts by itself, and what that would gain is looked at while its budget is spent.
    is_shadowed: bool = False

    @property
    def num_drafted(self) -> int:
        """Draft tokens at hand that it could verify."""
        if self.survival is None:
            return min(self.num_ready, self.limit)
        return len(self.survival)


@dataclass
class Pacer:
    """One per engine."""

    budget_us: float = DEFAULT_BUDGET_US
    budget_share: float = DEFAULT_BUDGET_SHARE
    step_time: StepTime = field(default_factory=StepTime)
    priors: Priors = field(default_factory=Priors)
    workloads: Workloads = field(default_factory=Workloads)
    looking: Looking = field(default_factory=Looking)

    def __post_init__(self) -> None:
        self._since_plain = 0
        self._quiet_left = 0
        self.new_drafter()

    def new_drafter(self) -> None:
        """A drafter has come: its pace, its cost and what it is worth are open."""
        self._arrival = Arrival()
        self._since_quiet = _STEPS_BETWEEN_QUIET - _FIRST_QUIET
        self.workloads.new_drafter()
        self.step_time.forget_drafting()

    def pacing(self, workload: str) -> Pacing:
        """For a new sequence; it begins with what others have learned."""
        shared = self.workloads.of(workload)
        return Pacing(
            self.priors,
            workload,
            Ledger(self.budget_us, self.budget_share),
            self._arrival.copy(),
            shared.verdict,
            Shrunk(shared.gain),
            Interest(shared.hope),
            shared.exposure,
        )

    @property
    def is_quiet(self) -> bool:
        """Drafters rest for a few steps, to see how fast plain decoding is without them."""
        return self._quiet_left > 0

    def credit(
        self, pacing: Pacing, limit: int, min_probability: float, *, is_reading: bool = False
    ) -> int:
        """How far the drafter may run ahead of the commit; 0: rest.

        It begins after the first token unless it is known to cost next to nothing: on the same
        cores it would read the prompt while the target does, and no ledger would show that.
        Twice what a step is likely to verify at the present price of a row, so that a block that
        stands as a whole leaves some for the next; no further than is likely to be reached at all.
        """
        if not pacing.drafts or self.is_quiet or limit <= 0:
            return 0
        if is_reading and not self._is_cheap_beside:
            return 0
        if pacing.mode is Mode.PROBE:
            return min(limit, _PROBE_TOKENS)
        survival = pacing.acceptance.survival(2 * limit)
        reached = sum(p > _LEAST_SURVIVAL for p in survival)
        worth = sum(p > min_probability for p in survival[:limit])
        return max(min(2 * worth, reached), min(limit, _LEAST_CREDIT))

    @property
    def _is_cheap_beside(self) -> bool:
        if self.step_time.drafting_error > _DOUBTFUL_ERROR:
            return False
        plain_us = self.step_time.predict(StepShape(1, 0, 1, drafting=False))
        return self.step_time.drafting_us < _CHEAP * plain_us

    def plan(self, views: Sequence[View], plain: StepShape, max_rows: int) -> Plan:
        """How many of the draft tokens at hand each sequence is to verify."""
        hands = [self._hand(view) for view in views]
        plan = plan_rows(hands, plain, self.step_time, max_rows)
        is_probe = self._wants_plain(plan, plain)
        if is_probe:
            plan = Plan(
                [0] * len(views), float(len(views)), plan.time_us, plan.min_probability, is_probe
            )
        for index, view in enumerate(views):
            if view.fixed:
                plan.num_draft[index] = view.num_drafted
        return plan

    def wait(self, views: Sequence[View], plain: StepShape, max_rows: int) -> Wait:
        """Whether to wait before the step, how long at most, and for what."""
        if not self.step_time.is_known or self.is_quiet:
            return Wait(0.0, [])
        expecting = [view for view in views if view.expects and view.pacing.may_wait]
        if not expecting:
            return Wait(0.0, [])
        plain_us = self.step_time.predict(plain)
        prospects = [self._prospect(view, plain_us) for view in views]
        # The wait delays all: nobody may be made to lose more than is left to lose.
        allowed_us = min(
            view.pacing.ledger.allowance_us + plain_us * prospect.promise
            for view, prospect in zip(views, prospects, strict=True)
        )
        allowed_us = min(allowed_us, MAX_WAIT_US)
        wait = best_wait(prospects, plain, self.step_time, max_rows, allowed_us)
        if wait.wait_us <= 0.0:
            return wait
        slack_us = max(view.pacing.arrival.slack_us for view in expecting)
        return Wait(min(wait.wait_us + slack_us, allowed_us), wait.num_wanted)

    def _hand(self, view: View) -> Hand:
        pacing = view.pacing
        count = 0 if view.fixed else pacing.usable(view.num_drafted)
        survival = view.survival
        if survival is None:
            survival = pacing.acceptance.survival(count, view.source)
        if pacing.mode is not Mode.PROBE:
            return Hand(survival[:count], view.stake)
        # A probe looks at what the estimate has given up on.
        hoped = survival[: min(count, _PROBE_TOKENS)]
        return Hand([max(p, _PROBE_HOPE**n) for n, p in enumerate(hoped, 1)])

    def _prospect(self, view: View, step_us: float) -> Prospect:
        pacing = view.pacing
        if view.survival is not None and not view.expects:
            hand = view.survival[: pacing.usable(len(view.survival))]
            return Prospect(hand, [0.0] * len(hand), stake=view.stake)
        ready = pacing.usable(min(view.num_ready, view.limit))
        arrivals = [0.0] * ready
        in_step = 0
        if pacing.may_wait:
            for wanted in range(ready + 1, view.limit + 1 if view.expects else 0):
                at_us = pacing.arrival.expected_us(ready, wanted, view.since_us)
                if at_us > MAX_WAIT_US:
                    break
                arrivals.append(at_us)
            in_step = pacing.arrival.num_within(step_us, view.limit)
        return Prospect(
            pacing.acceptance.survival(view.limit, view.source),
            arrivals,
            pacing.arrival.chance,
            # The first of them is the token that the step itself chooses.
            max(in_step - 1, 0),
            view.stake,
        )

    def _wants_plain(self, plan: Plan, plain: StepShape) -> bool:
        """Whether this step is to be plain although draft tokens are at hand."""
        if self.is_quiet:
            return True
        if not any(plan.num_draft) or self._since_plain < _STEPS_BETWEEN_PLAIN:
            return False
        return self.step_time.relative_error(plain) > _PLAIN_ERROR

    def least_probability(self, plain: StepShape) -> float:
        """Below it no draft token can be worth a row in this step: rows get no cheaper."""
        plain_us = self.step_time.predict(plain)
        price = plain.sequences * self.step_time.row_us(plain.rows) / plain_us if plain_us else 0.0
        return min(price, 1.0)

    def measured(
        self, shape: StepShape, plain: StepShape, time_us: float, *, prefill: bool
    ) -> None:
        """A step took so long; `plain`: its shape without draft tokens."""
        if not prefill:
            # A drafter may still be at work in the first quiet step.
            if self._quiet_left != _QUIET_STEPS:
                self.step_time.add(shape, time_us)
            self._since_plain = 0 if shape.rows == plain.rows else self._since_plain + 1
        self._quiet_left = max(self._quiet_left - 1, 0)
        if not shape.drafting:
            self._since_quiet = 0
            return
        self._since_quiet += 1
        error = self.step_time.drafting_error
        if (self._since_quiet >= _STEPS_BETWEEN_QUIET and error > _DRAFTING_ERROR) or (
            self._since_quiet >= _STEPS_IN_DOUBT and error > _DOUBTFUL_ERROR
        ):
            self._quiet_left = _QUIET_STEPS
            self._since_quiet = 0

    def costs(
        self, shape: StepShape, plain: StepShape, time_us: float
    ) -> tuple[float, float, float]:
        """(plain_us, rows_us, drafting_us): of plain decoding, and of what speculation added.

        What was measured, kept near what the fit expects: a hiccup is not speculation's fault.
        """
        plain_us = self.step_time.predict(plain._replace(drafting=False))
        drafting_us = self.step_time.drafting_us if shape.drafting else 0.0
        if shape.rows == plain.rows:
            return plain_us, 0.0, drafting_us
        expected_us = max(
            self.step_time.predict(shape) - self.step_time.predict(plain),
            0.0,
        )
        extra_us = time_us - plain_us - drafting_us
        rows_us = min(max(extra_us, 0.5 * expected_us), 2 * expected_us + 0.01 * plain_us)
        return plain_us, rows_us, drafting_us

    def learn(self, view: View, cost: RoundCost, now_us: float, min_probability: float) -> None:
        """After a round of one sequence; what it learned of its drafter is kept for others."""
        pacing = view.pacing
        pacing.learn(cost)
        prospect_us = pacing.prospect_us(view.limit, min_probability, cost.plain_us)
        pacing.consider(now_us, prospect_us, self.step_time.drafting_us, cost.plain_us)
        if pacing.arrival.is_known:
            self._arrival = pacing.arrival.copy()

    def learn_of_looking(self, pacing: Pacing, cost: RoundCost, num_sequences: int) -> None:
        """After a round of a sequence whose own sources were asked in a step of so many."""
        look_us = cost.look_us * cost.look_share
        self.looking.asked(look_us, cost.rows_us * cost.row_share, pays=pacing.interest.pays)
        time_us = look_us + cost.wished_us * cost.wished_share
        in_tokens = self.looking.tokens_in(time_us, num_sequences, cost.plain_us)
        if cost.has_own:
            pacing.interest.asked(cost.hoped, in_tokens)

    def learn_of_shadow(
        self,
        pacing: Pacing,
        shadow: Draft,
        token_ids: Sequence[int],
        plain: StepShape,
        wished_us: float,
    ) -> None:
        """After a round that brought these; `shadow` only a spent budget forbade to verify. The
        rows that all wished for would have taken `wished_us`."""
        rows_us = len(shadow.token_ids) * self.step_time.row_us(plain.rows)
        pacing.shadow.watch(shadow.token_ids, shadow.parents, max(rows_us, wished_us))
        if pacing.shadow.committed(token_ids, self.step_time.predict(plain)):
            pacing.ledger.trust()
