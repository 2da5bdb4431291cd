"""Runs a sub-command that talks to a service: errors become one line on stderr and an exit code."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import typer

from paceline.cli.output import print_error
from paceline.client_errors import Unreachable
from paceline.server import Refusal

EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130


def run(body: Coroutine[Any, Any, int], *, on_interrupt: int = EXIT_INTERRUPTED) -> None:
    """Runs `body`, which returns an exit code, and leaves with that code or the error's."""
    try:
        code = asyncio.run(body)
    except KeyboardInterrupt:
        code = on_interrupt
    except (Refusal, Unreachable) as error:
        code = report(error)
    raise typer.Exit(code)


def report(error: Refusal | Unreachable) -> int:
    """Prints the error; returns its exit code."""
    if isinstance(error, Unreachable):
        print_error(f"{error}; start one with: paceline up")
        return EXIT_UNREACHABLE
    print_error(describe(error))
    return EXIT_REFUSED


def describe(refusal: Refusal) -> str:
    """One line that names every field."""
    if refusal.violations:
        reason = "; ".join(f"{v.field}: {v.description}" for v in refusal.violations)
    else:
        reason = refusal.message or "no reason given"
    line = f"{refusal.code.name}: {reason}"
    if refusal.retry_after_s is not None:
        line += f" (retry after {refusal.retry_after_s:g} s)"
    return line
