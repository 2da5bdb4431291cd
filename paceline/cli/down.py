"""paceline down: ends a running `paceline up`, which drains its services."""

import typer

from paceline.cli import flags, output, run_folder

# Three services, each with its time to drain.
_TIMEOUT_S = 60.0


def command(run_dir: flags.RunDir = None) -> None:
    """Stop the services that `paceline up` started.

    [bold]Examples[/bold]

      paceline down

    Exit codes: 0 they have ended or none ran, 1 they would not end.
    """
    try:
        pid = run_folder.end_holder(run_dir or run_folder.default_run_dir(), _TIMEOUT_S)
    except TimeoutError as error:
        output.print_error(str(error))
        raise typer.Exit(1) from None
    print("nothing runs" if pid is None else f"process {pid} and its services have ended")
