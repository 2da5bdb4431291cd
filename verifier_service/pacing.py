"""Pacing of one sequence: whether its drafter is to draft, and what it may spend on a round.

On: the drafter drafts, and the rule (rule.py) decides each step. Off: the drafter rests, told so in
the commit, and is looked at now and then by a probe of a few rounds. Between two switches lies at
least a second. Pure: times come in as numbers, all in microseconds.
"""

from dataclasses import dataclass, field
from enum import Enum

from paceline.rounds import PlainReason, TokenSource
from verifier_service.acceptance import Acceptance, Priors
from verifier_service.arrival import Arrival
from verifier_service.exposure import Exposure
from verifier_service.ledger import Ledger
from verifier_service.looking import Interest
from verifier_service.rule import ANY_STAKE, Stake
from verifier_service.shadow import Shadow
from verifier_service.shrunk import Shrunk
from verifier_service.verdict import Verdict

_DWELL_US = 1_000_000.0
# A probe: rounds at most, and what it may lose, in plain steps.
_PROBE_ROUNDS = 6
_PROBE_LOSS = 0.25
# From one probe to the next; doubled after each that failed.
_PROBE_AFTER_US, _PROBE_LIMIT_US = 1_000_000.0, 2_000_000.0
# Probes may cost the first share of the time, so dear ones are rarer; the one after giving up the
# second.
_PROBE_SHARE, _FIRST_PROBE_SHARE = 0.004, 0.1
# Speculation that gains less than this share of a step is not worth a drafter's time.
_LEAST_GAIN = 0.005
# A prospect must exceed the one that speculation was given up with by so much.
_BETTER = 1.5
_GAIN_RATE = 0.03
# Of what is left of a budget, for one step.
_STAKE_SHARE = 1 / 6
# Of an expected gain: expectations are noisy, and what looks best is often overrated.
_GAIN_SHARE = 0.7
# A gain worth telling others of, in plain steps.
_TOLD_GAIN = 2.0


class Mode(Enum):
    """Whether the drafter drafts for the sequence."""

    ON = "on"
    OFF = "off"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class RoundCost:
    """A round of one sequence. Times are the step's; `accepted` counts delivered draft tokens.

    source, tested, stood: of the drafter's own tokens, how many were compared and would stand.

    rows_us, drafting_us: what draft rows of all sequences, and drafters at work, added to the step.
    row_share: of those rows, how many were this sequence's. waited: the wait was for its draft too.
    look_us: what asking the sequences' own sources took, look_share of it for this one's, if it
    has_own.
    """

    source: TokenSource
    tested: int
    stood: int
    accepted: int
    wait_us: float
    rows_us: float
    drafting_us: float
    plain_us: float
    row_share: float = 1.0
    waited: bool = True
    look_us: float = 0.0
    look_share: float = 0.0
    has_own: bool = False
    # Draft tokens expected to stand of those that pacing wished for; time of all such rows, and its
    # share of it.
    hoped: float = 0.0
    wished_us: float = 0.0
    wished_share: float = 0.0


@dataclass
class Pacing:
    """What one sequence has learned of its drafter, and its ledger."""

    priors: Priors = field(default_factory=Priors)
    workload: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    arrival: Arrival = field(default_factory=Arrival)
    verdict: Verdict = field(default_factory=Verdict)
    # Expected of a step's own draft tokens, in the mean of the steps that wished for any.
    gain: Shrunk = field(default_factory=Shrunk)
    interest: Interest = field(default_factory=Interest)
    exposure: Exposure = field(default_factory=Exposure)
    shadow: Shadow = field(default_factory=Shadow)
    mode: Mode = Mode.ON
    # Why it is off.
    reason: PlainReason = PlainReason.UNSPECIFIED
    num_switches: int = 0

    def __post_init__(self) -> None:
        self.acceptance = Acceptance(self.priors, self.workload)
        # What a round of speculation gained lately, a drafter's interference not counted.
        self.gain_us: float | None = None
        self._switched_us = float("-inf")
        self._prospect_us = 0.0
        self._probe_at_us = 0.0
        self._probe_after_us = _PROBE_AFTER_US
        self._probe_left = 0
        # What the present probe has gained.
        self._account_us = 0.0
        self._probe_loss_us = 0.0
        # Gained since others were told.
        self._untold_us = 0.0
        if self.verdict.is_off:
            self.mode, self.reason = Mode.OFF, self.verdict.reason
            # The first prospect that it sees is what a better one must exceed.
            self._prospect_us = float("inf")

    @property
    def drafts(self) -> bool:
        """Whether the drafter is to draft."""
        return self.mode is not Mode.OFF

    @property
    def is_spent(self) -> bool:
        """Its own speculation has cost what it may, and this is no probe."""
        return self.ledger.is_spent and self.mode is not Mode.PROBE

    @property
    def has_shadow(self) -> bool:
        """Whether what its draft tokens would bring is looked at, for they are not verified."""
        return self.is_spent or self.ledger.left_us <= 0.0

    def usable(self, num_ready: int) -> int:
        """How many of the draft tokens at hand may be considered at all."""
        return 0 if self.is_spent else num_ready

    @property
    def may_wait(self) -> bool:
        """Whether a step may wait for this sequence's drafter at all."""
        return self.mode is Mode.ON and not self.ledger.is_spent

    def stake(self, *, has_own: bool, is_drafting: bool) -> Stake:
        """What the draft rows of a step, its own and those of others, may cost it.

        A part of what is left of its budget: who bets it all on one step cannot win it back. More
        with sources of its own that promise to win it back. With a drafter alone, anything.
        """
        if is_drafting and not has_own:
            return ANY_STAKE
        left_us = self.ledger.left_us
        if not has_own or self.is_spent:
            return Stake(_STAKE_SHARE * left_us)
        share = _GAIN_SHARE if left_us > 0.0 else self.exposure.value
        return Stake(_STAKE_SHARE * left_us, self.gain.mean, share)

    def ended(self) -> None:
        """The answer is complete."""
        self.exposure.ended(lost_too_much=self.ledger.lost_too_much)

    def prospect_us(self, limit: int, min_probability: float, plain_us: float) -> float:
        """What a full block would gain at the present price of a row."""
        return plain_us * sum(
            max(p - min_probability, 0.0) for p in self.acceptance.survival(limit)
        )

    def learn(self, cost: RoundCost) -> None:
        """After a round."""
        if cost.tested:
            self.acceptance.learn(cost.source, cost.tested, cost.stood)
        own_us = cost.rows_us * cost.row_share + cost.look_us * cost.look_share
        own_us += cost.wait_us if cost.waited else 0.0
        gained_us = cost.accepted * cost.plain_us - own_us
        drafting_us = cost.drafting_us * self.drafts
        lost_us = drafting_us - gained_us
        overhead_us = cost.wait_us + cost.rows_us + cost.drafting_us + cost.look_us
        others_us = overhead_us - own_us - drafting_us
        self.ledger.add(
            lost_us, others_us, cost.plain_us + overhead_us, staked_us=own_us + drafting_us
        )
        if cost.has_own and cost.wished_us + cost.look_us > 0.0:
            self.gain.add(cost.hoped * cost.plain_us)
        if self.mode is Mode.PROBE:
            self._probe_left -= 1
            self._account_us -= lost_us
        elif self.mode is Mode.ON and self.gain_us is not None:
            self.gain_us += _GAIN_RATE * (gained_us - self.gain_us)
            self._untold_us = max(self._untold_us - lost_us, 0.0)
            if self._untold_us > _TOLD_GAIN * cost.plain_us:
                self._untold_us = 0.0
                self.verdict.gained()

    def overheard(self, source: TokenSource, num_tested: int, num_right: int) -> None:
        """Draft tokens came too late, and so many of them would have stood: evidence for free."""
        self.acceptance.learn(source, num_tested, num_right)

    def consider(
        self, now_us: float, prospect_us: float, drafting_us: float, plain_us: float
    ) -> None:
        """Switch, probe, or go on: after a round, given what a block now promises and costs."""
        least_us = max(drafting_us, _LEAST_GAIN * plain_us)
        if self.gain_us is None:
            self.gain_us = max(min(0.3 * plain_us, prospect_us), 2 * least_us)
        may_switch = now_us - self._switched_us >= _DWELL_US
        if self.mode is Mode.ON:
            probe_us = _PROBE_ROUNDS * drafting_us / _FIRST_PROBE_SHARE
            if may_switch and self.ledger.is_spent:
                self._switch(Mode.OFF, now_us, PlainReason.BUDGET, prospect_us, probe_us)
            elif may_switch and self.gain_us < least_us:
                self._switch(Mode.OFF, now_us, PlainReason.NOT_WORTH, prospect_us, probe_us)
        elif self.mode is Mode.OFF:
            self._prospect_us = min(self._prospect_us, max(prospect_us, least_us))
            if now_us >= self._next_probe_us:
                self.mode = Mode.PROBE
                # One at a time, for all.
                self.verdict.probe_at_us = now_us + self._probe_after_us
                self.acceptance.loosen()
                self._probe_left = _PROBE_ROUNDS
                self._account_us = 0.0
                loss_us = _PROBE_LOSS * plain_us + _PROBE_ROUNDS * drafting_us
                self._probe_loss_us = min(loss_us, 2 * self.ledger.budget_us)
            elif (
                may_switch
                and not self.ledger.is_spent
                and prospect_us > _BETTER * self._prospect_us + least_us
            ):
                # The price of a row has fallen: a burst is over.
                self._switch(Mode.ON, now_us, PlainReason.UNSPECIFIED, prospect_us)
                self.gain_us = max(min(0.3 * plain_us, prospect_us), 2 * least_us)
        elif may_switch and self._has_proven(plain_us):
            self._probe_after_us = _PROBE_AFTER_US
            self.ledger.trust()
            self.verdict.gained()
            self._switch(Mode.ON, now_us, PlainReason.UNSPECIFIED, prospect_us)
            self.gain_us = max(self._account_us / _PROBE_ROUNDS, 2 * least_us)
        elif self._probe_left <= 0 or self._account_us < -self._probe_loss_us:
            self.mode = Mode.OFF
            cost_us = max(-self._account_us, 0.0)
            self._probe_at_us = now_us + max(self._probe_after_us, cost_us / _PROBE_SHARE)
            self.verdict.gave_up(self.reason, self._probe_at_us)
            self._probe_after_us = min(2 * self._probe_after_us, _PROBE_LIMIT_US)

    @property
    def _next_probe_us(self) -> float:
        shared_us = self.verdict.probe_at_us if self.verdict.is_off else 0.0
        return max(self._probe_at_us, shared_us)

    def _has_proven(self, plain_us: float) -> bool:
        """The probe gained a step, or something by its end."""
        return self._account_us > (plain_us if self._probe_left > 0 else 0.0)

    def _switch(
        self,
        mode: Mode,
        now_us: float,
        reason: PlainReason,
        prospect_us: float,
        probe_after_us: float = 0.0,
    ) -> None:
        self.mode, self.reason = mode, reason
        self._switched_us = now_us
        self._prospect_us = prospect_us
        self._probe_at_us = now_us + max(self._probe_after_us, probe_after_us)
        if mode is Mode.OFF:
            self.verdict.gave_up(reason, self._probe_at_us)
        self.num_switches += 1
