"""Confidence: how often guesses of a kind turn out right, in one sequence.

An online estimate per bucket that starts at a measured prior and forgets slowly, so that a source
which fails on this text soon counts less. Answers that have something in common may share what
they start at. Knows no tokens.
"""

from collections.abc import Mapping

from paceline.lookup.guesses import Bucket

# A prior counts as much as this many guesses; older guesses fade by this factor with each new one.
_PRIOR_WEIGHT = 20.0
_FADE = 0.98
# Of a kind that was never measured.
_UNKNOWN = 0.1
_MOST_TRUST = 1.2
# Guesses that the first trust counts as.
_TRUST_GUESSES = 10.0


class Confidences:
    """P(a guess is the target's token), by bucket."""

    def __init__(
        self,
        priors: Mapping[Bucket, float],
        *,
        fade: float = _FADE,
        trust: float = 1.0,
        shared: "Confidences | None" = None,
    ) -> None:
        """With `shared`, which learns too, priors and trust begin as they are there."""
        self._priors = priors
        self._fade = fade
        self._trust = trust
        self._shared = shared
        self._counts: dict[Bucket, tuple[float, float]] = {}  # right, all
        # Of guesses that were taken: right ones, and how many were expected to be.
        self._right = self._expected = 0.0

    def of_one(self) -> "Confidences":
        """Of one answer among those that share these."""
        return Confidences(self._priors, shared=self)

    def __getitem__(self, bucket: Bucket) -> float:
        counts = self._counts.get(bucket)
        return counts[0] / counts[1] if counts else self._prior(bucket)

    def learn(self, bucket: Bucket, *, right: bool) -> None:
        """One guess of this kind was right or wrong."""
        counts = self._counts.get(bucket)
        if counts is None:
            counts = (self._prior(bucket) * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
        self._counts[bucket] = (counts[0] * self._fade + right, counts[1] * self._fade + 1.0)
        if self._shared is not None:
            self._shared.learn(bucket, right=right)

    @property
    def trust(self) -> float:
        """How many of the guesses taken are right, for each that was expected to be. The best of
        many are taken, and what looks best is often overrated."""
        prior = self._trust if self._shared is None else self._shared.trust
        right = self._right + prior * _TRUST_GUESSES
        return min(right / (self._expected + _TRUST_GUESSES), _MOST_TRUST)

    def tested(self, expected: float, *, right: bool) -> None:
        """After one position, guesses for which had been taken; `expected` to be right."""
        self._right = self._right * self._fade + right
        self._expected = self._expected * self._fade + expected
        if self._shared is not None:
            self._shared.tested(expected, right=right)

    def _prior(self, bucket: Bucket) -> float:
        if self._shared is not None:
            return self._shared[bucket]
        return self._priors.get(bucket, _UNKNOWN)
