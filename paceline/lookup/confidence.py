"""Confidence: how often guesses of a kind turn out right, in one sequence.

An online estimate per bucket that starts at a measured prior and forgets slowly, so that a source
which fails on this text soon counts less. Knows no tokens.
"""

from collections.abc import Mapping

from paceline.lookup.guesses import Bucket

# A prior counts as much as this many guesses; older guesses fade by this factor with each new one.
_PRIOR_WEIGHT = 20.0
_FADE = 0.98
# Of a kind that was never measured.
_UNKNOWN = 0.1


class Confidences:
    """P(a guess is the target's token), by bucket."""

    def __init__(self, priors: Mapping[Bucket, float]) -> None:
        self._priors = priors
        self._counts: dict[Bucket, tuple[float, float]] = {}  # right, all

    def __getitem__(self, bucket: Bucket) -> float:
        counts = self._counts.get(bucket)
        return counts[0] / counts[1] if counts else self._priors.get(bucket, _UNKNOWN)

    def learn(self, bucket: Bucket, *, right: bool) -> None:
        """One guess of this kind was right or wrong."""
        counts = self._counts.get(bucket)
        if counts is None:
            counts = (self._priors.get(bucket, _UNKNOWN) * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
        self._counts[bucket] = (counts[0] * _FADE + right, counts[1] * _FADE + 1.0)
