"""paceline compare: the short form of `paceline bench`, on a handful of built-in prompts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.bench.document import document
from paceline.bench.plan import Plan
from paceline.bench.sample import Load, LoadKind
from paceline.cli import bench_output, calls, flags
from paceline.cli.bench_run import measure, questions
from paceline.cli.prompts import BUILT_IN, BadPrompts, read_prompts
from paceline.events import DraftPolicy
from paceline.params import Speculation


def command(
    gateway: flags.Gateway = flags.DEFAULT_GATEWAY,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Own prompts: objects with messages and, optionally, a category.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Only the first N prompts; 0: all.")
    ] = 0,
    max_tokens: flags.MaxTokens = 96,
    temperature: Annotated[
        float,
        typer.Option(min=0.01, max=100.0, metavar="T", help="Compared besides greedy decoding."),
    ] = 0.8,
    seed: Annotated[
        int, typer.Option(callback=flags.uint64, metavar="N", help="Seed of the first pair.")
    ] = 1,
    pairs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Pairs per prompt and temperature.")
    ] = 2,
    draft_tokens: flags.DraftTokens = 0,
    as_json: flags.Json = False,
) -> None:
    """Measure plain against speculative decoding on a running gateway.

    The short form of [bold]paceline bench[/bold]: six built-in prompts, greedily and
    at one temperature, one request at a time, plain and speculative in turn.
    --json prints the document that bench writes.

    [bold]Examples[/bold]

      paceline compare

      paceline compare --prompts own.jsonl --limit 20 --max-tokens 128 --json

    Exit codes: 1 an answer differs or no pair is complete, 2 a bad flag,
    3 no gateway answers.
    """
    try:
        chosen = list(BUILT_IN) if prompts is None else read_prompts(prompts)
    except BadPrompts as error:
        raise typer.BadParameter(str(error)) from None
    plan = Plan(
        questions=questions(chosen[: limit or None]),
        temperatures=(0.0, temperature),
        loads=(Load(LoadKind.CLOSED, 1),),
        pairs=pairs,
        max_tokens=max_tokens,
        seed=seed,
        warm_up=1,
        policy=DraftPolicy(Speculation.AUTO, draft_tokens),
    )
    source = "built in" if prompts is None else prompts.name
    calls.run(_compare(gateway, plan, source, as_json=as_json))


async def _compare(gateway: str, plan: Plan, source: str, *, as_json: bool) -> int:
    measured = await measure("comparing", gateway, plan, source)
    if as_json:
        print(json.dumps(document(measured.result, measured.samples, measured.how)))
    else:
        bench_output.print_result(measured.result, with_latencies=False)
    return measured.exit_code
