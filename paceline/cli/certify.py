"""paceline certify: proves of a running gateway that speculation changes speed and nothing else."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.certify import certificate
from paceline.certify.asker import Progress as OnProgress
from paceline.certify.certificate import Plan
from paceline.certify.check import Check
from paceline.certify.equality import BUILT_IN, Prompt
from paceline.cli import calls, flags, output
from paceline.cli.prompts import BadPrompts, read_prompts

EXIT_FAILED = 1


def command(
    target: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="PACELINE_GATEWAY",
            callback=flags.address,
            help="The gateway to certify.",
        ),
    ] = flags.DEFAULT_GATEWAY,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Own prompts for equality: objects with messages.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Only the first N prompts; 0: all.")
    ] = 0,
    max_tokens: flags.MaxTokens = 24,
    samples: Annotated[
        int,
        typer.Option(min=50, metavar="N", help="Answers on each side of a distribution check."),
    ] = 300,
    seed: Annotated[
        int, typer.Option(callback=flags.uint64, metavar="N", help="All seeds follow from it.")
    ] = 1,
    allow_no_drafter: Annotated[
        bool,
        typer.Option("--allow-no-drafter", help="Pass although no draft token was verified."),
    ] = False,
    as_json: flags.Json = False,
) -> None:
    """Prove that a gateway's answers do not depend on speculation.

    Asks through the gateway alone, with speculation off, on, and on among
    others. equality: the same token ids. distribution: the same law, in both
    sampling modes (G-test). parameter: each has its effect, and the same one.
    Takes a minute or two; --json ends with one line of JSON.

    [bold]Examples[/bold]

      paceline certify

      paceline certify --target 10.0.0.7:7000 --samples 2000 --json

      paceline certify --prompts benchmarks/prompts.jsonl --limit 20

    Exit codes: 1 a check failed, 2 a bad flag, 3 no gateway answers.
    """
    chosen: list[Prompt] = list(BUILT_IN)
    if prompts is not None:
        try:
            chosen = [prompt.messages for prompt in read_prompts(prompts)]
        except BadPrompts as error:
            raise typer.BadParameter(str(error)) from None
    plan = Plan(
        prompts=chosen[: limit or None],
        max_tokens=max_tokens,
        samples=samples,
        seed=seed,
        allow_no_drafter=allow_no_drafter,
    )
    calls.run(_certify(target, plan, as_json=as_json))


async def _certify(target: str, plan: Plan, *, as_json: bool) -> int:
    with _progress() as on_progress:
        checks = await certificate.certify(target, plan, on_progress)
    passed = all(check.passed for check in checks)
    if as_json:
        print(json.dumps({"passed": passed, "checks": [asdict(check) for check in checks]}))
    else:
        output.console().print(_table(checks))
        failed = [check.name for check in checks if not check.passed]
        print(
            f"certified: {len(checks)} checks passed"
            if passed
            else f"not certified: {', '.join(failed)}"
        )
    return 0 if passed else EXIT_FAILED


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar at a terminal, a line per stage elsewhere."""
    console = output.console(stderr=True)
    bar = Progress(
        TextColumn("certifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=None)

    def on_progress(stage: str, num_done: int, total: int) -> None:
        bar.update(task, description=stage, completed=num_done, total=total)
        if not console.is_terminal and num_done == 0:
            output.print_note(f"certifying: {stage}")

    with bar:
        yield on_progress


def _table(checks: Sequence[Check]) -> Table:
    table = Table(title="Certificate", title_justify="left", header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("detail", overflow="fold")
    for check in checks:
        table.add_row(
            check.name,
            "passed" if check.passed else "FAILED",
            check.detail,
            style="" if check.passed else "red",
        )
    return table
