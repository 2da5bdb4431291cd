"""The training loop: AdamW on the KL of the target from the student, resumable, seeded.

What a step does depends on the weights, the seed and the step's number alone, so a run that was
interrupted ends where it would have ended. Knows no target and no file but its checkpoint.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.distill.checkpoint import read_state, restore, save_checkpoint
from paceline.distill.curve import Point
from paceline.distill.evaluation import evaluate
from paceline.distill.examples import Example, collate
from paceline.distill.losses import divergence
from paceline.distill.schedule import batches, learning_rate
from paceline.distill.student import Student

# Measurements of a run, besides the one before its first step; a checkpoint goes with each.
_POINTS = 12
_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.05
_CLIP = 1.0
DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Training:
    """How to train. The run ends after `steps`, or without them after `seconds`."""

    seed: int
    device: str
    # "auto": what a step is faster in. Weights are float32 in any case.
    dtype: str
    batch_size: int
    peak_rate: float
    steps: int | None
    seconds: float


class Trainer:
    """One run. `resumes` says whether it goes on where an earlier one was interrupted."""

    def __init__(
        self,
        student: Student,
        examples: Sequence[Example],
        held_out: Sequence[Example],
        training: Training,
        checkpoint: Path,
        identity: dict[str, Any],
    ) -> None:
        """identity: all that the run depends on; a checkpoint of another is not gone on with."""
        self._student = student
        self._examples = examples
        self._held_out = held_out
        self._training = training
        self._checkpoint = checkpoint
        self._identity = identity
        self._optimizer = torch.optim.AdamW(
            student.trained.values(),
            lr=0.0,
            betas=_BETAS,
            weight_decay=_WEIGHT_DECAY,
            # On a GPU it wants its step counts there, and saves nothing.
            fused=training.device == "cpu",
        )
        self.points: list[Point] = []
        self._step, self._num_tokens, self._seconds = 0, 0, 0.0
        state = read_state(checkpoint)
        self.resumes = state is not None and state["identity"] == identity
        if state and self.resumes:
            restore(checkpoint, student.trained, self._optimizer)
            self.points = [Point(**point) for point in state["points"]]
            last = self.points[-1]
            self._step, self._num_tokens = last.step, last.num_tokens
            self._seconds = last.seconds
            self.dtype: str = state["dtype"]
        else:
            self.dtype = self._faster_dtype() if training.dtype == "auto" else training.dtype
        student.hold_shared(getattr(torch, self.dtype))

    def run(
        self, stepped: Callable[[float, float], None], measured: Callable[[Point], None]
    ) -> None:
        """stepped: told of progress and loss; measured: of each point. Fills `points`."""
        training = self._training
        started = time.monotonic() - self._seconds
        if not self.points:
            measured(self._measure(0.0, None, started))
        progress = self.points[-1].progress
        lengths = [len(example.input_ids) for example in self._examples]
        order = batches(lengths, training.batch_size, training.seed, self._step)
        losses: list[tuple[float, float]] = []
        while progress < 1.0:
            before = progress
            chosen = [self._examples[index] for index in next(order)]
            losses.append(self._learn(chosen, learning_rate(progress, training.peak_rate)))
            self._step += 1
            self._num_tokens += sum(len(example.output) for example in chosen)
            if training.steps is not None:
                progress = self._step / training.steps
            else:
                progress = min(1.0, (time.monotonic() - started) / training.seconds)
            stepped(progress, losses[-1][0] / max(losses[-1][1], 1e-9))
            if int(progress * _POINTS) > int(before * _POINTS):
                mean = sum(kl for kl, _ in losses) / max(sum(w for _, w in losses), 1e-9)
                measured(self._measure(progress, mean, started))
                losses = []

    def _learn(self, examples: Sequence[Example], rate: float) -> tuple[float, float]:
        """(KL sum, weight sum) before the step."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        kl, weight = self._backward(examples, self.dtype)
        torch.nn.utils.clip_grad_norm_(self._student.trained.values(), _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return kl, weight

    def _backward(self, examples: Sequence[Example], dtype: str) -> tuple[float, float]:
        batch = collate(examples, self._training.device)
        with self._precision(dtype):
            logits = self._student.logits(batch.input_ids, batch.rows)
        kl, weight = divergence(logits, batch.columns, batch.logprobs)
        (kl / weight.clamp(min=1e-6)).backward()  # type: ignore[no-untyped-call]
        return float(kl.detach()), float(weight)

    def _precision(self, dtype: str) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = torch.autocast(
            self._training.device.split(":")[0], torch.bfloat16, enabled=dtype == "bfloat16"
        )
        return context

    def _measure(self, progress: float, loss: float | None, started: float) -> Point:
        """A point of the curve, and a checkpoint."""
        found = evaluate(
            self._student,
            self._held_out,
            batch_size=self._training.batch_size,
            device=self._training.device,
            precision=self._precision(self.dtype),
        )
        self._seconds = time.monotonic() - started
        point = Point(
            self._step,
            progress,
            self._seconds,
            self._num_tokens,
            loss,
            found.held_out_loss,
            found.match_t0,
            found.match_t1,
            found.expected_t1,
        )
        self.points.append(point)
        save_checkpoint(
            self._checkpoint,
            self._student.trained,
            self._optimizer,
            {
                "identity": self._identity,
                "dtype": self.dtype,
                "points": [asdict(point) for point in self.points],
            },
        )
        return point

    def _faster_dtype(self) -> str:
        """What forward and backward of one batch are faster in, here and now."""
        examples = self._examples[: self._training.batch_size]
        times = {}
        for dtype in DTYPES:
            self._backward(examples, dtype)
            start = time.perf_counter()
            self._backward(examples, dtype)
            times[dtype] = time.perf_counter() - start
        self._optimizer.zero_grad(set_to_none=True)
        return min(DTYPES, key=lambda dtype: times[dtype])
