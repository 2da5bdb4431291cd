"""paceline bench: what speculation is worth on a workload, measured on any running gateway."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.bench.document import document
from paceline.bench.plan import Plan
from paceline.bench.report import page
from paceline.bench.sample import Load, LoadKind
from paceline.cli import bench_inputs, bench_output, calls, flags, output
from paceline.cli.bench_run import Measured, measure, questions
from paceline.events import DraftPolicy


def command(
    target: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="PACELINE_GATEWAY",
            callback=flags.address,
            help="The gateway to measure.",
        ),
    ] = flags.DEFAULT_GATEWAY,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Own chats: objects with messages and a category. Unset: 72 of nine categories.",
            show_default=False,
        ),
    ] = None,
    categories: Annotated[
        str, typer.Option(metavar="A,B", help="Only these categories; unset: all.")
    ] = "",
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Only the first N of a category; 0: all.")
    ] = 0,
    temperature: Annotated[
        str,
        typer.Option(
            metavar="T,T", callback=bench_inputs.temperatures, help="Temperatures; 0 is greedy."
        ),
    ] = "0,0.8",
    pairs: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Pairs per prompt, temperature and load."),
    ] = 1,
    max_tokens: flags.MaxTokens = 128,
    concurrency: Annotated[
        str,
        typer.Option(
            metavar="N,N",
            callback=bench_inputs.concurrency,
            help="Requests at a time; the first is the one reported by category.",
        ),
    ] = "1",
    rate: Annotated[
        str,
        typer.Option(
            metavar="R,R",
            callback=bench_inputs.rates,
            help="Also: requests per second, Poisson, timed from the intended start.",
        ),
    ] = "",
    speculation: Annotated[
        flags.SpeculationChoice, typer.Option(help="Of the speculative arm: auto or fixed.")
    ] = flags.SpeculationChoice.AUTO,
    draft_tokens: flags.DraftTokens = 0,
    warm_up: Annotated[
        int, typer.Option(min=0, metavar="N", help="Pairs answered first and not counted.")
    ] = 2,
    seed: Annotated[
        int,
        typer.Option(callback=flags.uint64, metavar="N", help="Of answers, order and arrivals."),
    ] = 1,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            callback=bench_inputs.writable,
            help="Write JSON (docs/bench.md); - makes it the last line of stdout.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=bench_inputs.writable,
            help="Write a report with figures, one self-contained page.",
            show_default=False,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=bench_inputs.writable,
            file_okay=False,
            help="Write the figures as PNG.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure what speculation is worth on a workload, and report it.

    Every prompt is answered plain and speculative in turn, with the same
    seed. By category: latencies, speed-up with a 95 % interval over prompts,
    acceptance, break-even, and a verdict. Prompts are in the verifier's
    cache when they are measured, for both. A failed request is counted and
    ends nothing; Ctrl-C reports what was measured until then.

    [bold]Examples[/bold]

      paceline bench --limit 2 --max-tokens 64

      paceline bench --prompts own.jsonl --temperature 0 --html report.html

      paceline bench --concurrency 1,4,8 --rate 2 --json out.json --plots plots

    Exit codes: 1 an answer differs or no pair is complete, 2 a bad flag,
    3 no gateway answers.
    """
    if speculation is flags.SpeculationChoice.OFF:
        raise typer.BadParameter("off compares plain with plain", param_hint="--speculation")
    chosen = bench_inputs.chosen(prompts, categories, limit)
    figures = _figures() if html or plots else None
    loads = [Load(LoadKind.CLOSED, number) for number in bench_inputs.numbers(concurrency)]
    loads += [Load(LoadKind.OPEN, number) for number in bench_inputs.numbers(rate)]
    plan = Plan(
        questions=questions(chosen),
        temperatures=list(dict.fromkeys(bench_inputs.numbers(temperature))),
        loads=list(
            dict.fromkeys([*loads, *(Load(LoadKind.OPEN, n) for n in bench_inputs.numbers(rate))])
        ),
        pairs=pairs,
        max_tokens=max_tokens,
        seed=seed,
        warm_up=warm_up,
        policy=DraftPolicy(speculation.value_on_the_wire, draft_tokens),
    )
    source = "the project's own" if prompts is None else prompts.name
    calls.run(_bench(target, plan, source, json_file, html, plots, figures))


def _figures() -> Any:
    """The module that draws; at run time, because it needs the extra `bench`."""
    try:
        return importlib.import_module("paceline.bench.figures")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("paceline"):
            raise
        output.print_error(
            "figures need matplotlib; install it with: pip install 'paceline[bench]'"
        )
        raise typer.Exit(2) from None


async def _bench(
    target: str,
    plan: Plan,
    source: str,
    json_file: Path | None,
    html: Path | None,
    plots: Path | None,
    figures: Any,
) -> int:
    measured = await measure("measuring", target, plan, source)
    bench_output.print_result(measured.result, with_latencies=True)
    if html is not None:
        _write(html, page(measured.result, measured.how, figures.draw_svg(measured.result)))
    if plots is not None:
        plots.mkdir(exist_ok=True)
        _write_all(plots, figures.draw_png(measured.result))
    if json_file is not None:
        _write_json(json_file, measured)
    return measured.exit_code


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    output.print_note(f"wrote {path}")


def _write_all(folder: Path, images: Mapping[str, bytes]) -> None:
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(image)
    output.print_note(f"wrote {len(images)} figures to {folder}")


def _write_json(path: Path, measured: Measured) -> None:
    text = json.dumps(document(measured.result, measured.samples, measured.how))
    if path == bench_inputs.STDOUT:
        print(text)
    else:
        _write(path, text + "\n")
