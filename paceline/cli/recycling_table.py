"""paceline recycling-table: what a target tends to say, from its own answers, in one small file."""

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import flags, output
from paceline.cli.bench_inputs import writable

EXIT_FAILED = 1


def command(
    answers: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", file_okay=False, help="Work folder of `paceline distill`: answers."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="Where it goes.")],
    target: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="Whose answers: embedded, a folder, a GGUF file or a hub id."
        ),
    ] = "embedded",
    max_contexts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Contexts kept, those seen most often.")
    ] = 40_000,
    as_json: flags.Json = False,
) -> None:
    """Make a table of what a target tends to say, for its first minutes.

    It holds what may follow one token, and two. A verifier drafts from what
    its target said lately, and in its first minutes that is nothing: the
    table stands in for it. No answer changes. It is made of the answers that
    `paceline distill` has left in its work folder, but for the held-out ones.

    [bold]Examples[/bold]

      paceline distill --out draft --minutes 10

      paceline recycling-table --answers draft-work --out own.table

      python -m verifier_service --recycling-table own.table

    Exit codes: 1 there are no answers of this target, 2 a bad flag.
    """
    writable(out)
    # By name, at run time: it loads torch.
    run = importlib.import_module("paceline.distill.table_file")
    try:
        made = run.make_table(answers, out, target, max_contexts)
    except run.FAILURES as error:
        output.print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        print(json.dumps(made))
    else:
        print(
            f"{made['contexts']} contexts from {made['answers']} answers of "
            f"{made['answer_tokens']} tokens, {made['bytes'] / 1e6:.2f} MB: {made['out']}"
        )
