"""paceline compare: plain against speculative decoding, interleaved, on a running gateway."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.cli import calls, flags, output
from paceline.cli.answer import Answer
from paceline.cli.comparison import Pair, Row, pooled
from paceline.cli.prompts import BUILT_IN, BadPrompts, Prompt, read_prompts
from paceline.client import GatewayClient
from paceline.events import DraftPolicy, Request
from paceline.params import SamplingParams, Speculation

EXIT_NOT_IDENTICAL = 1


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
        int, typer.Option(callback=flags.uint64, metavar="N", help="Seed of every answer.")
    ] = 1,
    pairs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Pairs per prompt and temperature.")
    ] = 2,
    draft_tokens: flags.DraftTokens = 0,
    as_json: flags.Json = False,
) -> None:
    """Measure plain against speculative decoding on a running gateway.

    Every prompt is answered plain, speculative, plain, speculative ...,
    greedily and at one temperature, after one token to warm up. The rates are
    tokens over the whole time of a request.

    [bold]Examples[/bold]

      paceline compare

      paceline compare --prompts own.jsonl --limit 20 --max-tokens 128 --json

    Exit codes: 1 an answer differs or a request was refused, 2 a bad flag,
    3 no gateway answers.
    """
    try:
        chosen = list(BUILT_IN) if prompts is None else read_prompts(prompts)
    except BadPrompts as error:
        raise typer.BadParameter(str(error)) from None
    requests = [
        (_label(number, prompt), heat, _request(prompt, heat, max_tokens, seed, draft_tokens))
        for number, prompt in enumerate(chosen[: limit or None], start=1)
        for heat in (0.0, temperature)
    ]
    calls.run(_compare(gateway, requests, pairs, as_json=as_json))


def _label(number: int, prompt: Prompt) -> str:
    return f"{number} {prompt.workload}".strip()


def _request(
    prompt: Prompt, temperature: float, max_tokens: int, seed: int, draft_tokens: int
) -> Request:
    return Request(
        prompt=prompt.messages,
        params=SamplingParams(temperature=temperature, max_tokens=max_tokens),
        seed=seed,
        draft=DraftPolicy(Speculation.AUTO, draft_tokens),
        workload=prompt.workload,
    )


async def _compare(
    gateway: str, requests: Sequence[tuple[str, float, Request]], num_pairs: int, *, as_json: bool
) -> int:
    rows = []
    async with GatewayClient(gateway) as client:
        with _progress(len(requests) * num_pairs) as begin:
            for label, temperature, request in requests:
                # Both sides then find the prompt in the verifier's cache.
                await _answer(client, _plain(request, max_tokens=1))
                pairs = []
                for _ in range(num_pairs):
                    begin(f"{label}, temperature {temperature:g}")
                    plain = await _answer(client, _plain(request))
                    pairs.append(Pair(plain, await _answer(client, request)))
                rows.append(Row(label, temperature, pairs))
    total = pooled(rows)
    if as_json:
        prompts = [row.as_json() for row in rows]
        print(json.dumps({"prompts": prompts, "pooled": total.as_json()}))
    else:
        output.console().print(_table([*rows, total]))
    if total.identical:
        return 0
    differing = ", ".join(
        f"{row.label} at temperature {row.temperature:g}" for row in rows if not row.identical
    )
    output.print_error(f"speculative answers differ from plain ones: {differing}")
    return EXIT_NOT_IDENTICAL


def _plain(request: Request, *, max_tokens: int | None = None) -> Request:
    params = request.params
    if max_tokens is not None:
        params = replace(params, max_tokens=max_tokens)
    return replace(request, params=params, draft=DraftPolicy(Speculation.OFF))


async def _answer(client: GatewayClient, request: Request) -> Answer:
    answer = Answer()
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            answer.add(event)
    return answer


@contextmanager
def _progress(num_pairs: int) -> Iterator[Callable[[str], None]]:
    """A bar at a terminal, a line per pair elsewhere. Yields what is called as a pair begins."""
    console = output.console(stderr=True)
    begun = 0
    bar = Progress(
        TextColumn("comparing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=num_pairs)

    def begin(description: str) -> None:
        nonlocal begun
        bar.update(task, completed=begun, description=description)
        begun += 1
        if not console.is_terminal:
            output.print_note(f"comparing {begun}/{num_pairs}: {description}")

    with bar:
        yield begin


def _table(rows: Sequence[Row]) -> Table:
    table = Table(
        title="Plain against speculative decoding", title_justify="left", header_style="bold"
    )
    table.add_column("prompt", no_wrap=True)
    for name in (
        "temperature",
        "plain\ntokens/s",
        "speculative\ntokens/s",
        "ratio\n(median)",
        "rounds",
        "acceptance_\nrate",
        "mean_\nacceptance_\nlength",
        "identical",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        if row.temperature is None:
            table.add_section()
        totals = row.totals
        table.add_row(
            row.label,
            "" if row.temperature is None else f"{row.temperature:g}",
            f"{row.plain_tokens_per_s:.1f}",
            f"{row.speculative_tokens_per_s:.1f}",
            f"{row.ratio:.2f}",
            str(totals.num_rounds),
            f"{totals.acceptance_rate:.2f}",
            f"{totals.mean_acceptance_length:.2f}",
            "yes" if row.identical else "NO",
        )
    return table
