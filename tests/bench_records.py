"""Made-up samples of a benchmark, from laws that a test knows: no server, no clock."""

import random
from collections.abc import Sequence

from paceline.bench.document import Circumstances
from paceline.bench.sample import Arm, Delivery, Load, LoadKind, Sample, Trial
from paceline.rounds import RoundReport, SpeculationTotals, TokenSource

ALONE = Load(LoadKind.CLOSED, 1)
STEP_US = 20_000
# Draft tokens per round, and what a drafted round takes in plain steps.
DRAFTED = 4
ROUND_STEPS = 1.2

# Category -> chance that a draft token is accepted, and what proposes it.
CATEGORIES = {
    "coding": (0.75, TokenSource.DRAFT_MODEL),
    "summarisation": (0.92, TokenSource.PROMPT_LOOKUP),
    "qa": (0.45, TokenSource.DRAFT_MODEL),
    "creative": (0.05, TokenSource.DRAFT_MODEL),
}


def answer(
    trial: Trial,
    arm: Arm,
    *,
    num_tokens: int = 48,
    ttft_us: int = 30_000,
    start_us: int = 0,
    error: str = "",
    token_offset: int = 0,
    slowness: float = 1.0,
) -> Sample:
    """One answer; the speculative one drafts by its category's law, seeded by the trial."""
    if error:
        return Sample(trial, arm, start_us, 1_000, error=error)
    draws = random.Random(f"{trial.prompt}/{trial.temperature}/{trial.pair}")
    chance, source = CATEGORIES.get(trial.category, (0.5, TokenSource.RECYCLED))
    chance *= 1.0 - 0.4 * (trial.temperature > 0) + draws.uniform(-0.05, 0.05)
    deliveries, totals, done, at_us = [], SpeculationTotals(), 0, ttft_us
    while done < num_tokens:
        drafted = DRAFTED if arm is Arm.SPECULATIVE and draws.random() < 0.9 else 0
        accepted = 0
        while accepted < drafted and draws.random() < chance:
            accepted += 1
        output = min(accepted + 1, num_tokens - done)
        last = TokenSource.PLAIN
        if drafted:
            last = TokenSource.BONUS if accepted == drafted else TokenSource.RECOVERED
        report = RoundReport(
            round=totals.num_rounds + 1,
            num_drafted=drafted,
            num_tested=min(accepted + 1, drafted),
            num_accepted=accepted,
            num_output=output,
            source=source if drafted else TokenSource.UNSPECIFIED,
        )
        totals.add_round(report)
        sources = (*[source] * accepted, last)[:output]
        deliveries.append(Delivery(at_us, sources, report))
        done += output
        steps = ROUND_STEPS if drafted else 1.0
        at_us += round(STEP_US * steps * slowness * draws.uniform(0.9, 1.1))
    tokens = tuple(token_offset + index for index in range(num_tokens))
    end_us = deliveries[-1].at_us + 500
    return Sample(trial, arm, start_us, end_us, tuple(deliveries), tokens, totals)


def records(
    *,
    categories: Sequence[str] = tuple(CATEGORIES),
    prompts: int = 6,
    temperatures: Sequence[float] = (0.0,),
    loads: Sequence[Load] = (ALONE,),
) -> list[Sample]:
    """Both arms of `prompts` prompts per category, temperature and load."""
    samples, now = [], 0
    for load in loads:
        block = 0
        for number in range(prompts * len(categories)):
            category = categories[number % len(categories)]
            for temperature in temperatures:
                trial = Trial(number, category, temperature, 0, load, block)
                block += 1
                for arm in Arm:
                    slow = 1.0 + 0.05 * load.value
                    sample = answer(trial, arm, start_us=now, slowness=slow)
                    now += sample.duration_us
                    samples.append(sample)
    return samples


HOW = Circumstances(
    began="2026-11-30T12:00:00+00:00",
    command="paceline bench --prompts '<own>.jsonl'",
    machine="Linux x86_64",
    cores=2,
    python="3.11.0",
    paceline="0.1.0",
    target="127.0.0.1:7000",
    model="tiny",
    numerics="exact",
    prompts="the project's own",
    num_prompts=24,
    temperatures=(0.0, 0.8),
    loads=("1 at a time",),
    pairs=1,
    max_tokens=48,
    seed=1,
    warm_up=2,
    speculation="auto",
    draft_tokens=0,
)
