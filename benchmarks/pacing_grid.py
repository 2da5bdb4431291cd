"""The grid of the pacing simulation: cells, fixed policies, and what pacing makes of a cell."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulation import PACED, PLAIN, Cell, Policy, Result, simulate

from verifier_service.pacer import Pacer

ACCEPTANCES = (0.02, 0.4, 0.6, 0.8, 0.95)
DRAFT_US = (1_000.0, 8_000.0, 40_000.0)
DELAYS_US = (200.0, 5_000.0, 25_000.0)
# Total time may exceed plain's by this.
SHARE, MARGIN_US = 1.02, 30_000.0
FIXED = [
    Policy(num_draft, waits, ahead)
    for num_draft in (1, 2, 4, 8)
    for waits in (False, True)
    for ahead in (1, 2)
    if ahead == 2 or num_draft == 8
]


@dataclass(frozen=True)
class Outcome:
    """One cell. regret: of a warmed-up service, over the second half, against the best policy."""

    cell: Cell
    regret: float | None
    over_us: float
    speed_up: float
    best_speed_up: float
    best: Policy
    most_switches_per_s: float


def constant(acceptance: float) -> Callable[[int], float]:
    return lambda position: acceptance


def alternating(first: float, second: float, period: int) -> Callable[[int], float]:
    return lambda position: second if position // period % 2 else first


def flapping(period_us: float) -> Callable[[float], bool]:
    return lambda now_us: now_us // period_us % 2 == 1


def burst(start_us: float, end_us: float, factor: float) -> Callable[[float], float]:
    return lambda now_us: factor if start_us <= now_us < end_us else 1.0


def steady_cells() -> Iterator[Cell]:
    for acceptance, draft_us, delay_us in itertools.product(ACCEPTANCES, DRAFT_US, DELAYS_US):
        name = f"a {acceptance:g}, {draft_us / 1e3:g} ms a token, delay {delay_us / 1e3:g} ms"
        one = Cell(name, constant(acceptance), draft_us=draft_us, delay_us=delay_us)
        yield one
        if draft_us < 40_000 and acceptance != 0.6:
            yield replace(one, name=f"{name}, 8 at once", num_sequences=8, num_tokens=120)
    for acceptance in ACCEPTANCES:
        lookup = Cell(f"a {acceptance:g}, lookup", constant(acceptance), 500.0, at_once=True)
        yield lookup
        yield replace(lookup, name=f"{lookup.name}, 16 at once", num_sequences=16, num_tokens=120)
        # A machine where arithmetic is the limit: every row costs a quarter of a step.
        yield replace(lookup, name=f"{lookup.name}, dear rows", base_us=10_000.0, row_us=4_000.0)
        # A drafter on the same cores.
        yield replace(
            lookup,
            name=f"a {acceptance:g}, 20 ms a token, +30 % a step",
            at_once=False,
            draft_us=20_000.0,
            interference=0.3,
            num_tokens=800,
        )


def changing_cells() -> Iterator[Cell]:
    for first, second in ((0.8, 0.05), (0.05, 0.8), (0.95, 0.4)):
        name = f"a {first:g} and {second:g} by turns"
        yield Cell(name, alternating(first, second, 100), num_tokens=800)
    yield Cell("asleep every other 5 s", constant(0.9), is_asleep=flapping(5e6), num_tokens=800)
    yield Cell("200 ms a block", constant(0.8), draft_us=200_000.0, at_once=True)
    yield Cell("a noisy machine", constant(0.7), noise=0.15)
    yield Cell("twice as slow for 4 s", constant(0.7), slowdown=burst(3e6, 7e6, 2.0))
    calm = Cell("a burst of 15 on one", constant(0.8), num_sequences=16, num_tokens=300)
    yield replace(calm, row_us=2_500.0, arrivals_us=(0.0, *[4e6] * 15))


def run(cell: Cell, *, is_steady: bool) -> Outcome:
    plain = simulate(cell, PLAIN)
    pacer = Pacer()
    cold = simulate(cell, PACED, pacer)
    over_us = max(
        ours - SHARE * theirs - MARGIN_US
        for ours, theirs in zip(cold.times_us, plain.times_us, strict=True)
    )
    switches = max(
        len(switched_us) / max(time_us / 1e6, 1.0)
        for switched_us, time_us in zip(cold.switched_us, cold.times_us, strict=True)
    )
    if not is_steady:
        speed_up = plain.mean_us / cold.mean_us
        return Outcome(cell, None, over_us, speed_up, speed_up, PACED, switches)
    warm = simulate(cell, PACED, pacer)
    results: list[tuple[Policy, Result]] = [(PLAIN, plain)]
    results += [(policy, simulate(cell, policy)) for policy in FIXED]
    best, result = min(results, key=lambda entry: entry[1].steady_us)
    return Outcome(
        cell=cell,
        regret=warm.steady_us / result.steady_us - 1,
        over_us=over_us,
        speed_up=plain.steady_us / warm.steady_us,
        best_speed_up=plain.steady_us / result.steady_us,
        best=best,
        most_switches_per_s=switches,
    )
