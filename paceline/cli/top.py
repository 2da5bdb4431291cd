"""paceline top: the running answers, their drafts, and what speculation gains them."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.cli import calls, flags, output
from paceline.cli.board import Board, Line
from paceline.client import GatewayClient
from paceline.verifier_status import VerifierStatus, verifier_status

_REFRESH_S = 0.5


def _addresses(texts: list[str]) -> list[str]:
    return [flags.address(text) for text in texts]


def command(
    gateway: flags.Gateway = flags.DEFAULT_GATEWAY,
    verifier: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT",
            callback=_addresses,
            help="Show this verifier's queue, drafters and tenants too. May be repeated.",
        ),
    ] = [],  # noqa: B006  typer's way to say a list; it copies it
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60.0, metavar="S", help="With --once: watch so long.")
    ] = 1.0,
    as_json: flags.Json = False,
) -> None:
    """Show the running answers and what speculation gains them.

    For each: acceptance rate, length of drafts, gain against plain decoding as the verifier's
    ledger estimates it, and what shares its steps.

    [bold]Examples[/bold]

      paceline top --verifier 127.0.0.1:7002

      paceline top --once --json | jq '.answers[].gain'

    Exit codes: 0 at the end or on Ctrl-C, 1 refused, 2 a bad flag, 3 no gateway answers.
    """
    shown_s = seconds if once or as_json else None
    calls.run(_top(gateway, verifier, shown_s, as_json=as_json), on_interrupt=0)


async def _top(
    gateway: str, verifiers: Sequence[str], shown_s: float | None, *, as_json: bool
) -> int:
    board = Board()
    async with GatewayClient(gateway) as client, _watching(client, board) as watcher:
        if shown_s is not None:
            # A watcher ends only by failing: its error is the answer then.
            await asyncio.wait([watcher], timeout=shown_s)
            if watcher.done():
                await watcher
            statuses = await _statuses(verifiers)
            if as_json:
                print(json.dumps(_as_dict(board, statuses)))
            else:
                output.console().print(_picture(board, statuses))
            return 0
        with Live(_picture(board, []), refresh_per_second=4) as live:
            while not watcher.done():
                live.update(_picture(board, await _statuses(verifiers)))
                await asyncio.wait([watcher], timeout=_REFRESH_S)
        await watcher
    return 0


@contextlib.asynccontextmanager
async def _watching(client: GatewayClient, board: Board) -> AsyncIterator["asyncio.Task[None]"]:
    async def watch() -> None:
        async with aclosing(client.watch_rounds()) as rounds:
            async for watched in rounds:
                board.add(watched, time.monotonic())

    task = asyncio.create_task(watch())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _statuses(verifiers: Sequence[str]) -> list[VerifierStatus]:
    found = await asyncio.gather(*(verifier_status(address) for address in verifiers))
    return [status for status in found if status is not None]


def _as_dict(board: Board, statuses: Sequence[VerifierStatus]) -> dict[str, object]:
    return {
        "answers": [line.as_dict() for line in board.lines(time.monotonic())],
        "verifiers": [asdict(status) for status in statuses],
        "missed": board.num_missed,
    }


def _picture(board: Board, statuses: Sequence[VerifierStatus]) -> Group:
    table = Table(box=None, pad_edge=False)
    for name in ("answer", "workload"):
        table.add_column(name)
    for name in ("rounds", "output", "accepted", "drafted", "gain"):
        table.add_column(name, justify="right")
    for name in ("latest round", "load"):
        table.add_column(name)
    for line in board.lines(time.monotonic()):
        table.add_row(*_cells(line))
    return Group(*(Text(_say(status)) for status in statuses), table)


def _cells(line: Line) -> list[str]:
    return [
        line.id,
        line.workload,
        str(line.totals.num_rounds),
        str(line.num_output),
        f"{line.totals.acceptance_rate:.0%}" if line.totals.num_tested else "",
        f"{line.mean_draft_length:.1f}" if line.totals.num_drafted_rounds else "",
        f"{line.gain:.2f}x",
        output.origin(line.latest),
        f"{line.latest.batch_sequences} sequences, {line.latest.batch_rows} rows",
    ]


def _say(status: VerifierStatus) -> str:
    drafters = ", ".join(
        f"{d.drafter or d.address} {d.state} ({d.num_sequences})" for d in status.drafters
    )
    return (
        f"{status.address}: {status.num_running} running, {status.num_waiting} waiting, "
        f"acceptance {status.totals.acceptance_rate:.0%}; drafters: {drafters or 'none'}"
    )
