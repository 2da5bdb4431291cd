"""Which answers are asked in which order. Pure: the same plan gives the same order.

Plain and speculative take turns in short blocks, so that whatever else the machine does meets both,
and the arm that goes first alternates. A block at one request at a time is one prompt.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.bench.sample import Arm, Load, LoadKind, Trial
from paceline.events import ChatMessage, DraftPolicy, Request
from paceline.params import SamplingParams, Speculation

# Blocks of more than one prompt: long enough that their ragged end is a small part.
_PROMPTS_PER_WORKER = 3
_PROMPTS_PER_WINDOW = 16
# One that hangs must not hang the run.
_TIMEOUT_MS = 300_000


@dataclass(frozen=True, slots=True)
class Question:
    """A chat to be answered, and the label its answers are reported by."""

    messages: tuple[ChatMessage, ...]
    category: str


@dataclass(frozen=True, slots=True)
class Block:
    """Trials that run together, first all in one arm, then all in the other.

    `arrivals_s` are the intended starts of an open load, from the start of the arm.
    """

    load: Load
    trials: tuple[Trial, ...]
    arms: tuple[Arm, Arm]
    arrivals_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Every trial of a load is asked `pairs` times in both arms."""

    questions: Sequence[Question]
    temperatures: Sequence[float]
    loads: Sequence[Load]
    pairs: int = 1
    max_tokens: int = 128
    seed: int = 1
    warm_up: int = 2
    policy: DraftPolicy = field(default_factory=DraftPolicy)

    @property
    def num_answers(self) -> int:
        """Measured ones; what warms up is not counted."""
        trials = len(self.questions) * len(self.temperatures) * len(self.loads) * self.pairs
        return trials * len(Arm)

    def blocks(self) -> Iterator[Block]:
        """Categories come mixed: none has a part of the run to itself."""
        order = list(range(len(self.questions)))
        random.Random(self.seed).shuffle(order)
        for load in self.loads:
            size = _block_size(load)
            number = 0
            for group in range(0, len(order), size):
                prompts = order[group : group + size]
                for heat, temperature in enumerate(self.temperatures):
                    for pair in range(self.pairs):
                        trials = tuple(
                            self._trial(prompt, temperature, pair, load, number)
                            for prompt in prompts
                        )
                        # Every temperature and every pair number begins with each arm in turn.
                        plain_first = (group // size + heat + pair) % 2 == 0
                        arms = (Arm.PLAIN, Arm.SPECULATIVE)
                        yield Block(
                            load,
                            trials,
                            arms if plain_first else arms[::-1],
                            _arrivals(load, len(trials), self.seed, number),
                        )
                        number += 1

    def _trial(self, prompt: int, temperature: float, pair: int, load: Load, block: int) -> Trial:
        category = self.questions[prompt].category
        return Trial(prompt, category, temperature, pair, load, block)

    def request(self, trial: Trial, arm: Arm) -> Request:
        """Pairs of one prompt have seeds of their own; the arms of a pair share theirs."""
        question = self.questions[trial.prompt]
        plain = arm is Arm.PLAIN
        policy = replace(self.policy, forget=self.policy.forget or self._repeats)
        return Request(
            prompt=question.messages,
            params=SamplingParams(temperature=trial.temperature, max_tokens=self.max_tokens),
            seed=(self.seed + trial.pair) % 2**64,
            draft=DraftPolicy(Speculation.OFF) if plain else policy,
            workload=question.category,
            timeout_ms=_TIMEOUT_MS,
        )

    @property
    def _repeats(self) -> bool:
        """A prompt is asked more than once: what was answered before must not help."""
        return len(self.temperatures) * len(self.loads) * self.pairs > 1

    def practice(self, trial: Trial, arm: Arm) -> Request:
        """The request of a trial that does not count, and of which nothing is kept."""
        request = self.request(trial, arm)
        return replace(request, draft=replace(request.draft, forget=True))

    def warming(self, trial: Trial) -> Request:
        """One token, so that both arms find the prompt in the verifier's cache."""
        request = self.request(trial, Arm.PLAIN)
        return replace(request, params=replace(request.params, max_tokens=1))


def _block_size(load: Load) -> int:
    if load.kind is LoadKind.OPEN:
        return _PROMPTS_PER_WINDOW
    workers = int(load.value)
    return 1 if workers == 1 else _PROMPTS_PER_WORKER * workers


def _arrivals(load: Load, count: int, seed: int, block: int) -> tuple[float, ...]:
    """Poisson arrivals; both arms get the same ones. Empty for a closed load."""
    if load.kind is LoadKind.CLOSED:
        return ()
    draws = random.Random(f"{seed}/{load.value!r}/{block}")
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += draws.expovariate(load.value)
    return tuple(times)
