"""paceline rounds: every round of the gateway's requests, as it happens."""

import json
from contextlib import aclosing
from typing import Annotated

import typer

from paceline.cli import calls, flags, output
from paceline.client import GatewayClient
from paceline.events import WatchedRound


def command(
    gateway: flags.Gateway = flags.DEFAULT_GATEWAY,
    request_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Of this request only.", show_default=False)
    ] = "",
    as_json: flags.Json = False,
) -> None:
    """Watch rounds as they happen.

    One line per round, until Ctrl-C.

    [bold]Examples[/bold]

      paceline rounds

      paceline rounds --json | jq '.accepted'

    Exit codes: 0 on Ctrl-C, 1 refused, 2 a bad flag, 3 no gateway answers.
    """
    calls.run(_watch(gateway, request_id, as_json=as_json), on_interrupt=0)


async def _watch(gateway: str, request_id: str, *, as_json: bool) -> int:
    num_missed = 0
    async with (
        GatewayClient(gateway) as client,
        aclosing(client.watch_rounds(request_id)) as rounds,
    ):
        async for watched in rounds:
            print(_json_line(watched) if as_json else _line(watched), flush=True)
            if watched.num_missed > num_missed and not as_json:
                output.print_note(f"{watched.num_missed - num_missed} rounds missed")
            num_missed = watched.num_missed
    return 0


def _line(watched: WatchedRound) -> str:
    report = watched.round
    times = " ".join(
        f"{name} {us / 1000:.1f}"
        for name, us in (
            ("draft", report.draft_us),
            ("wait", report.wait_us),
            ("verify", report.verify_us),
        )
    )
    return (
        f"{watched.id}  round {report.round:>4}  {output.origin(report):<18}  "
        f"{report.num_accepted}/{report.num_tested}/{report.num_drafted} "
        f"accepted/tested/drafted, {report.num_output} output, {times} ms"
        + (f"  [{watched.workload}]" if watched.workload else "")
    )


def _json_line(watched: WatchedRound) -> str:
    return json.dumps(
        {
            "id": watched.id,
            "workload": watched.workload,
            **output.round_fields(watched.round),
            "missed": watched.num_missed,
        }
    )
