"""paceline health: the standard gRPC health check, for containers and scripts."""

from typing import Annotated

import typer

from paceline.cli import calls, flags, output
from paceline.client import is_serving
from paceline.client_errors import Unreachable
from paceline.server import Refusal


def command(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", callback=flags.address, help="The service.")
    ],
    service: Annotated[
        str,
        typer.Option(metavar="NAME", help="A gRPC service there; unset: the whole server."),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds to wait.")] = 3.0,
) -> None:
    """Ask a service whether it is serving.

    [bold]Examples[/bold]

      paceline health 127.0.0.1:7002

    Exit codes: 0 it is, 1 it is not or does not answer, 2 a bad flag.
    """
    calls.run(_check(address, service, timeout))


async def _check(address: str, service: str, timeout_s: float) -> int:
    try:
        serving = await is_serving(address, service, timeout_s)
    except Unreachable:
        output.print_error(f"nothing answers at {address}")
        return 1
    except Refusal as refusal:
        output.print_error(calls.describe(refusal))
        return 1
    print("serving" if serving else "not serving")
    return 0 if serving else 1
