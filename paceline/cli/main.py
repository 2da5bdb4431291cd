"""The `paceline` command and its list of sub-commands.

A sub-command's module is imported when it is invoked, so that `paceline --help` and `paceline up`
load neither gRPC nor anything behind it.
"""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from paceline import __version__

# Name -> the first line of its help. Each is the function `command` of the module of that name.
COMMANDS = {
    "up": "Start gateway, verifier and drafter on this machine.",
    "down": "Stop the services that `paceline up` started.",
    "generate": "Ask for one answer and stream it, or for several with --n.",
    "chat": "Hold a conversation in the terminal.",
    "rounds": "Watch rounds as they happen.",
    "bench": "Measure what speculation is worth on a workload, and report it.",
    "top": "Show the running answers and what speculation gains them.",
    "trace": "Show the rounds of one answer as a tree.",
    "compare": "Measure plain against speculative decoding on a running gateway.",
    "certify": "Prove that a gateway's answers do not depend on speculation.",
    "distill": "Make a draft model for a target from the target's own answers.",
    "recycling-table": "Make a table of what a target tends to say, for its first minutes.",
    "doctor": "Check what this machine and model can promise, and how fast.",
    "keys": "Add, list or remove API keys of a gateway.",
    "health": "Ask a service whether it is serving.",
}


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """The click command of a sub-command."""
    module = importlib.import_module(f"paceline.cli.{name.replace('-', '_')}")
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name=name)(module.command)
    return typer.main.get_command(single)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Begin with: paceline up, then: paceline generate 'Why is the sky blue?' --rounds",
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Lossless speculative sampling as services."""


if __name__ == "__main__":
    app()
