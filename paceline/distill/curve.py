"""The training curve: what was measured when. Kept as JSON beside the model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement on answers that the student never learnt from."""

    step: int
    progress: float
    seconds: float
    # Tokens of the target's answers learnt from so far, repetitions included.
    num_tokens: int
    # Mean KL per token since the point before; None before the first step.
    loss: float | None
    held_out_loss: float
    # Share of tokens, each after the target's own tokens, that the student would have proposed:
    # of answers at temperature 0, and at 1 with the answer's own noise.
    match_t0: float
    match_t1: float
    # What match_t1 is expected to be, whatever the noise; a lower bound.
    expected_t1: float


def write_curve(path: Path, points: list[Point]) -> None:
    path.write_text(json.dumps([asdict(point) for point in points], indent=1), encoding="utf-8")
