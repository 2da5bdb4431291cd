"""Pacing under a virtual clock: regret against the best fixed policy, and time against plain.

The production pacing, mailbox and epochs meet a grid of acceptance x drafter cost x network delay x
sequences at once, and cells whose acceptance, drafter or load changes on the way. Prints the worst
cells; the last line is JSON; a PNG goes to --plots. `--quick` takes every third cell. `--scale`
does none of this: it asks how many verifiers a drafter can serve (pacing_scale.py).
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from pacing_grid import SHARE, Outcome, changing_cells, run, steady_cells
from pacing_scale import table
from simulation import Policy


def say(policy: Policy) -> str:
    if not policy.num_draft:
        return "plain" if policy.num_draft == 0 else "pacing"
    waits = "waits" if policy.waits else "never waits"
    return f"{policy.num_draft} tokens, {waits}, {policy.num_draft * policy.ahead} ahead"


def line(outcome: Outcome) -> str:
    regret = "      " if outcome.regret is None else f"{outcome.regret:6.1%}"
    return (
        f"{outcome.cell.name:<48} {regret}  {outcome.speed_up:5.2f}x  "
        f"{outcome.best_speed_up:5.2f}x {say(outcome.best):<30} {outcome.over_us / 1e3:9.0f} ms"
    )


def plot(outcomes: Sequence[Outcome], folder: Path) -> Path:
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    steady = [outcome for outcome in outcomes if outcome.regret is not None]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for outcome in steady:
        colour = "tab:blue" if outcome.cell.num_sequences == 1 else "tab:orange"
        left.scatter(outcome.best_speed_up, outcome.speed_up, s=16, color=colour)
    most = max(outcome.best_speed_up for outcome in steady)
    left.plot([1, most], [1, most], linewidth=0.8, color="grey")
    left.set_xlabel("best fixed policy: speed against plain")
    left.set_ylabel("pacing: speed against plain")
    left.set_title("one sequence (blue), several (orange)")
    right.hist([100 * (outcome.regret or 0.0) for outcome in steady], bins=30)
    right.axvline(5, linewidth=0.8, color="grey")
    right.set_xlabel("regret, %")
    right.set_ylabel("cells")
    figure.tight_layout()
    path = folder / "pacing_sim.png"
    figure.savefig(path, dpi=130)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every third cell")
    parser.add_argument("--plots", type=Path, default=Path("build"), help="folder of the PNG")
    parser.add_argument("--scale", action="store_true", help="how many verifiers a drafter serves")
    arguments = parser.parse_args()
    if arguments.scale:
        print(json.dumps(table()))
        return
    stride = 3 if arguments.quick else 1
    started_s = time.monotonic()
    steady_todo, changing_todo = list(steady_cells())[::stride], list(changing_cells())
    outcomes = []
    for number, cell in enumerate([*steady_todo, *changing_todo], 1):
        outcomes.append(run(cell, is_steady=number <= len(steady_todo)))
        if number % 10 == 0:
            took_s = time.monotonic() - started_s
            print(f"{number} cells, {took_s:.0f} s", flush=True)
    steady = sorted(
        (o for o in outcomes if o.regret is not None), key=lambda o: o.regret or 0.0, reverse=True
    )
    print(f"\n{'cell':<48} regret  pacing   best fixed policy {'over the bound':>33}")
    for outcome in steady[:12]:
        print(line(outcome))
    print("\nacceptance, drafter or load changes")
    for outcome in outcomes:
        if outcome.regret is None:
            print(line(outcome))
    worst_over = max(outcomes, key=lambda outcome: outcome.over_us)
    print(f"\nnearest to the bound of plain x {SHARE} + 30 ms\n{line(worst_over)}")
    summary = {
        "cells": len(outcomes),
        "worst_regret": round(steady[0].regret or 0.0, 4),
        "cells_over_5_percent": sum((o.regret or 0.0) > 0.05 for o in steady),
        "worst_over_ms": round(worst_over.over_us / 1e3, 1),
        "most_switches_per_s": round(max(o.most_switches_per_s for o in outcomes), 2),
        "plot": str(plot(outcomes, arguments.plots)),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
