"""Measures a plan on a gateway: what `paceline bench` and `paceline compare` share."""

import asyncio
import os
import platform
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
import typer

from paceline import __version__
from paceline.bench.analysis import analyse
from paceline.bench.document import Circumstances
from paceline.bench.plan import Plan, Question
from paceline.bench.result import ALL, Result
from paceline.bench.runner import Runner
from paceline.bench.sample import Sample
from paceline.cli import bench_output, calls, output
from paceline.cli.prompts import Prompt
from paceline.client import GatewayClient
from paceline.server import Refusal

EXIT_DIFFERENT = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Measured:
    result: Result
    samples: list[Sample]
    how: Circumstances
    interrupted: bool

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return EXIT_INTERRUPTED
        complete = self.result.num_pairs > 0 and self.result.identical
        return 0 if complete else EXIT_DIFFERENT


def questions(prompts: list[Prompt]) -> list[Question]:
    """Raises BadParameter for a category that would be taken for all of them."""
    if any(prompt.workload == ALL for prompt in prompts):
        raise typer.BadParameter(f"no category may be called {ALL}", param_hint="--prompts")
    return [Question(prompt.messages, prompt.workload) for prompt in prompts]


async def measure(what: str, target: str, plan: Plan, prompts: str) -> Measured:
    """Runs the plan. Interrupted by Ctrl-C, it gives what was measured until then.

    Raises Unreachable when no gateway answers at the start, and CancelledError when interrupted
    before anything was measured.
    """
    began = datetime.now(UTC).isoformat(timespec="seconds")
    samples: list[Sample] = []
    refused: set[grpc.StatusCode] = set()
    interrupted = False
    async with GatewayClient(target) as client:
        models = await client.list_models()
        with bench_output.progress(what, plan.num_answers) as show:

            def on_sample(sample: Sample) -> None:
                samples.append(sample)
                show(sample)

            def on_refusal(refusal: Refusal) -> None:
                if refusal.code not in refused:
                    refused.add(refusal.code)
                    output.print_note(f"a request is refused: {calls.describe(refusal)}")

            try:
                await Runner(client, plan, on_sample, on_refusal).run()
            except asyncio.CancelledError:
                if not samples:
                    raise
                interrupted = True
    if interrupted:
        output.print_note(f"interrupted after {len(samples)} of {plan.num_answers} answers")
    how = Circumstances(
        began=began,
        command=shlex.join(["paceline", *sys.argv[1:]]),
        machine=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 0,
        python=platform.python_version(),
        paceline=__version__,
        target=target,
        model=", ".join(model.name for model in models),
        numerics=", ".join(sorted({model.numerics for model in models if model.numerics})),
        prompts=prompts,
        num_prompts=len(plan.questions),
        temperatures=tuple(plan.temperatures),
        loads=tuple(load.label for load in plan.loads),
        pairs=plan.pairs,
        max_tokens=plan.max_tokens,
        seed=plan.seed,
        warm_up=plan.warm_up,
        speculation=plan.policy.speculation.name.lower(),
        draft_tokens=plan.policy.max_draft_tokens,
    )
    return Measured(analyse(samples), samples, how, interrupted)
