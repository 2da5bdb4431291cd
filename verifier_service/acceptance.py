"""Acceptance: how likely draft tokens are to stand, by position in a block.

A sequence's own counts, by source, fade with each round; where they are few, those of all sequences
with the same workload label and source speak for them. Pure; knows no time.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from paceline.rounds import TokenSource

# What a source is worth before anything is known of it.
_UNKNOWN = 0.7
_MAX_POSITIONS = 16
_MAX_LABELS = 64
# Counts keep this much with each round of a sequence, and of all sequences together.
_FADE, _POOL_FADE = 0.96, 0.995
# How many tested tokens a prior is worth: of the pool, and of a sequence's mean at one position.
_PRIOR_TOKENS, _POSITION_TOKENS = 4.0, 6.0
_FLOOR, _CEILING = 0.01, 0.995


@dataclass(slots=True)
class Counts:
    """Tested and accepted tokens by position; older ones count for less."""

    fade: float
    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, num_tested: int, num_accepted: int) -> None:
        self.tested = [count * self.fade for count in self.tested]
        self.accepted = [count * self.fade for count in self.accepted]
        for position in range(num_tested):
            index = min(position, _MAX_POSITIONS - 1)
            if index == len(self.tested):
                self.tested.append(0.0)
                self.accepted.append(0.0)
            self.tested[index] += 1.0
            self.accepted[index] += position < num_accepted

    def shrink(self, num_tokens: float) -> None:
        """Keep the proportions, as if so many tokens had been tested at most."""
        total = sum(self.tested)
        if total > num_tokens:
            self.tested = [count * num_tokens / total for count in self.tested]
            self.accepted = [count * num_tokens / total for count in self.accepted]

    def mean(self, prior: float) -> float:
        return (sum(self.accepted) + _PRIOR_TOKENS * prior) / (sum(self.tested) + _PRIOR_TOKENS)

    def at(self, position: int, mean: float) -> float:
        """P(accepted | all before it were)."""
        index = min(position, _MAX_POSITIONS - 1)
        if index >= len(self.tested):
            return mean
        return (self.accepted[index] + _POSITION_TOKENS * mean) / (
            self.tested[index] + _POSITION_TOKENS
        )


class Priors:
    """What sequences that ended have taught those that begin. Labels come from clients: bounded."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, TokenSource], Counts] = OrderedDict()
        # The source that proposed last, to whomever.
        self.latest = TokenSource.UNSPECIFIED

    def counts(self, workload: str, source: TokenSource) -> Counts:
        """Shared by all sequences with this label; the label used longest ago is forgotten."""
        key = (workload, source)
        if key not in self._counts:
            self._counts[key] = Counts(_POOL_FADE)
            if len(self._counts) > _MAX_LABELS:
                self._counts.popitem(last=False)
        self._counts.move_to_end(key)
        return self._counts[key]


class Acceptance:
    """One sequence's estimate."""

    def __init__(self, priors: Priors, workload: str) -> None:
        self._priors = priors
        self._workload = workload
        self._own: dict[TokenSource, Counts] = {}
        # The source that proposed last: what a block still under way is likely to be.
        self._latest = priors.latest

    def learn(self, source: TokenSource, num_tested: int, num_accepted: int) -> None:
        self._latest = self._priors.latest = source
        self._own.setdefault(source, Counts(_FADE)).add(num_tested, num_accepted)
        self._priors.counts(self._workload, source).add(num_tested, num_accepted)

    def loosen(self) -> None:
        """Let what comes next weigh more than what was learned so far."""
        for counts in self._own.values():
            counts.shrink(_PRIOR_TOKENS)

    def survival(self, count: int, source: TokenSource | None = None) -> list[float]:
        """For each of the first `count` draft tokens, P(it and all before it are accepted).

        Without a source: of the one that proposed last.
        """
        source = self._latest if source is None else source
        pooled = self._priors.counts(self._workload, source).mean(_UNKNOWN)
        own = self._own.get(source) or Counts(_FADE)
        mean = own.mean(pooled)
        survival, alive = [], 1.0
        for position in range(count):
            alive *= min(max(own.at(position, mean), _FLOOR), _CEILING)
            survival.append(alive)
        return survival
