"""Tells the person at the terminal what `paceline up` waits for, on stderr."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from paceline.cli.processes import last_lines

# What takes longer than this is told; without a terminal, again after each further pause.
_QUIET_S = 2.0
_PAUSE_S = 10.0
_LOG_LINES = 20
# Date, time, level and logger of paceline.server.set_up_logging; libraries write other lines.
_LOGGED = re.compile(r"\d{4}-\S+ \S+ [A-Z] [\w.]+: (.+)")


class TerminalNarrator:
    """A spinner at a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, line: str) -> None:
        self._console.print(f"paceline: {line}", style="yellow", soft_wrap=True)

    def failed(self, line: str, log: Path) -> None:
        """Says what failed, with the end of its log."""
        self._console.print(f"paceline: {line}", style="red", soft_wrap=True)
        lines = last_lines(log, _LOG_LINES)
        self._console.print(f"last lines of {log}:" if lines else f"{log} is empty")
        for logged in lines:
            self._console.print(f"  {logged}", style="dim", soft_wrap=True)

    @contextlib.asynccontextmanager
    async def waiting(self, name: str, log: Path) -> AsyncIterator[None]:
        telling = asyncio.create_task(self._tell(name, log))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    async def _tell(self, name: str, log: Path) -> None:
        began = time.monotonic()

        def line() -> str:
            elapsed = f"waiting for {name}, {time.monotonic() - began:.0f} s"
            message = _last_message(log)
            return f"{elapsed}: {message}" if message else elapsed

        await asyncio.sleep(_QUIET_S)
        if not self._console.is_terminal:
            while True:
                self.note(line())
                await asyncio.sleep(_PAUSE_S)
        with self._console.status("") as status:
            while True:
                text = Text(line())
                text.truncate(self._console.width - 4, overflow="ellipsis")
                status.update(text)
                await asyncio.sleep(0.5)


def _last_message(log: Path) -> str:
    """What the service last said itself; empty when it has said nothing."""
    found = [match[1] for line in last_lines(log, _LOG_LINES) if (match := _LOGGED.match(line))]
    return found[-1] if found else ""
