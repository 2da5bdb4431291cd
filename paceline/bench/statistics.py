"""Quantiles, and ratios with a confidence interval. Pure; the same numbers give the same interval.

A ratio is of pooled sums, never a mean of ratios, and its interval comes from resampling whole
prompts with both of their arms: answers to one prompt are not independent of each other.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# Fewer prompts say too little of the spread between prompts for an interval.
MIN_UNITS = 5
_RESAMPLES = 2000
_SEED = 20261130


@dataclass(frozen=True, slots=True)
class Cost:
    """Time and tokens of one unit of resampling (a prompt, or a block) in both arms."""

    plain_us: float
    plain_tokens: float
    speculative_us: float
    speculative_tokens: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed-up; `low` and `high` are None where the units are too few for an interval."""

    value: float
    low: float | None = None
    high: float | None = None


def quantile(values: Sequence[float], q: float) -> float:
    """Between the two nearest ranks, linearly. Raises ValueError when there are no values."""
    if not values:
        raise ValueError("no values, no quantile")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def speed_up(units: Sequence[Cost]) -> Ratio | None:
    """Speculative tokens per time over plain tokens per time; None without time or tokens."""
    value = _ratio(units)
    if value is None or len(units) < MIN_UNITS:
        return None if value is None else Ratio(value)
    draws = random.Random(_SEED)
    resampled = [_ratio(draws.choices(units, k=len(units))) for _ in range(_RESAMPLES)]
    known = [ratio for ratio in resampled if ratio is not None]
    tail = (1.0 - CONFIDENCE) / 2.0
    return Ratio(value, quantile(known, tail), quantile(known, 1.0 - tail))


def _ratio(units: Sequence[Cost]) -> float | None:
    plain_us = sum(unit.plain_us for unit in units)
    plain_tokens = sum(unit.plain_tokens for unit in units)
    speculative_us = sum(unit.speculative_us for unit in units)
    speculative_tokens = sum(unit.speculative_tokens for unit in units)
    if not (plain_us and plain_tokens and speculative_us and speculative_tokens):
        return None
    return (speculative_tokens / speculative_us) / (plain_tokens / plain_us)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope by least squares; the slope is never negative.

    Raises ValueError when there are no points; where x does not vary the slope is 0.
    """
    if not points:
        raise ValueError("no points, no line")
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = max(slope, 0.0)
    return mean_y - slope * mean_x, slope
