"""Step time: how long a forward takes, fitted online to what shares it.

T = base + row * rows + knee * (rows past 16) + context * tokens + sequence * sequences + drafting;
the last one paid while a drafter is at work, for it may be at work on the same cores (arXiv
2406.14066 fits the first terms offline). A Kalman filter whose coefficients drift: what is not
observed grows uncertain, which says when a plain step is worth making to look. Pure; microseconds.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

# On the CPUs and GPUs at hand, rows are nearly free up to about here and cost arithmetic beyond.
KNEE = 16


class StepShape(NamedTuple):
    """What shares a forward. `context`: tokens in the caches of all its sequences."""

    rows: int
    context: int
    sequences: int
    drafting: bool

    def with_rows(self, rows: int) -> "StepShape":
        return self._replace(rows=rows)


# Standard deviations before anything is known, and of the drift per step, in shares of a step:
# base, row, row beyond the knee, 1,000 tokens of context, sequence, drafting.
_PRIOR = (1.0, 0.02, 0.03, 0.05, 0.1, 0.15)
_DRIFT = (0.002, 0.0002, 0.0003, 0.0005, 0.0006, 0.001)
_SIZE = len(_PRIOR)
# Noise of one measurement: first guess and limits.
_NOISE, _MIN_NOISE, _MAX_NOISE = 0.05, 0.01, 0.3
# A residual counts for at most so many standard deviations.
_CLIP = 3.0
# The machine has changed pace when this many steps in a row are off by this share.
_CHANGE_STEPS, _CHANGE_SHARE = 5, 0.15
# Beside a drafter, that adds so much to the standard deviations of the coefficients.
_DOUBT = (0.5, 0.05, 0.05, 0.1, 0.1, 1.0)
# Of a drafter that comes when the pace of plain decoding is known: on the same cores it may well
# double a step, and must be found out by the first.
_NEW_DRAFTING = 0.5


class StepTime:
    """The fit. Steps with prefill rows are no part of it: their rows cost something else."""

    def __init__(self) -> None:
        self._unit_us = 0.0
        self._theta = [0.0] * _SIZE
        self._cov = [
            [_PRIOR[i] ** 2 if i == j else 0.0 for j in range(_SIZE)] for i in range(_SIZE)
        ]
        self._noise2 = _NOISE**2
        self._ratios: deque[float] = deque(maxlen=_CHANGE_STEPS)

    @property
    def is_known(self) -> bool:
        return self._unit_us > 0.0

    def add(self, shape: StepShape, time_us: float) -> None:
        """One measured step."""
        if time_us <= 0.0:
            return
        if not self.is_known:
            self._unit_us = time_us
            self._theta[0] = 1.0
        x = _features(shape)
        gains = [_dot(row, x) for row in self._cov]
        spread2 = _dot(gains, x)
        value = time_us / self._unit_us
        predicted = _dot(self._theta, x)
        if self._has_changed(value, predicted, spread2):
            self._adapt(drafting=shape.drafting)
            predicted = _dot(self._theta, x)
            gains = [_dot(row, x) for row in self._cov]
            spread2 = _dot(gains, x)
        total2 = spread2 + self._noise2
        bound = _CLIP * math.sqrt(total2)
        residual = min(max(value - predicted, -bound), bound)
        share = self._noise2 / total2
        self._noise2 += 0.05 * share * (residual**2 * share - self._noise2)
        self._noise2 = min(max(self._noise2, _MIN_NOISE**2), _MAX_NOISE**2)
        for i in range(_SIZE):
            self._theta[i] += gains[i] / total2 * residual
            for j in range(_SIZE):
                self._cov[i][j] -= gains[i] * gains[j] / total2
            if self._cov[i][i] < _PRIOR[i] ** 2:
                self._cov[i][i] += _DRIFT[i] ** 2

    def predict(self, shape: StepShape) -> float:
        """Time of such a step; 0 before the first one."""
        if not self.is_known:
            return 0.0
        return max(_dot(self._theta, _features(shape)), 0.05) * self._unit_us

    def row_us(self, rows: int) -> float:
        """Time of one more row in a step that has `rows`; never negative.

        A row before the knee is never dearer than one behind it, whatever a fit of few shapes says.
        """
        slope = self._theta[1] + (self._theta[2] if rows >= KNEE else min(self._theta[2], 0.0))
        return max(slope, 0.0) * self._unit_us

    @property
    def row_doubt_us(self) -> float:
        """Standard error of the time of a row."""
        return math.sqrt(max(self._cov[1][1], 0.0)) * self._unit_us

    @property
    def drafting_us(self) -> float:
        """What a drafter at work adds to a step; never negative."""
        return max(self._theta[5], 0.0) * self._unit_us

    @property
    def drafting_error(self) -> float:
        """Standard error of `drafting_us`, as a share of a plain step; 1 before the first step."""
        return math.sqrt(max(self._cov[5][5], 0.0)) if self.is_known else 1.0

    def forget_drafting(self) -> None:
        """Another drafter has come: what the last one cost says nothing of it."""
        self._theta[5] = 0.0
        for i in range(_SIZE):
            self._cov[i][5] = self._cov[5][i] = 0.0
        self._cov[5][5] = (_NEW_DRAFTING if self.is_known else _PRIOR[5]) ** 2

    def relative_error(self, shape: StepShape) -> float:
        """Standard error of `predict`, as a share of it; 1 before the first step."""
        if not self.is_known:
            return 1.0
        x = _features(shape)
        spread = math.sqrt(max(_dot([_dot(row, x) for row in self._cov], x), 0.0))
        return spread * self._unit_us / self.predict(shape)

    def _has_changed(self, value: float, predicted: float, spread2: float) -> bool:
        """Whether several steps in a row were off, where the fit was sure of itself."""
        if predicted <= 0.0 or spread2 > self._noise2:
            return False
        self._ratios.append(value / predicted)
        ratios = sorted(self._ratios)
        if len(ratios) < _CHANGE_STEPS:
            return False
        return ratios[1] > 1 + _CHANGE_SHARE or ratios[-2] < 1 - _CHANGE_SHARE

    def _adapt(self, *, drafting: bool) -> None:
        """Rescale everything: the whole machine has become slower or faster.

        A drafter that has become dear looks the same: beside one all is open again, until steps
        without it tell.
        """
        middle = sorted(self._ratios)[len(self._ratios) // 2]
        self._ratios.clear()
        if not drafting:
            self._theta = [value * middle for value in self._theta]
            return
        for i in range(_SIZE):
            self._cov[i][i] += _DOUBT[i] ** 2


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        float(shape.rows),
        float(max(shape.rows - KNEE, 0)),
        shape.context / 1000.0,
        float(shape.sequences),
        float(shape.drafting),
    )


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(map(float.__mul__, a, b))
