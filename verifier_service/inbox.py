"""The inbox: what other threads ask of the engine, run on its own thread between steps.

Knows no sequence and no model; a command is a call without arguments.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

Command = Callable[[], None]


class Inbox:
    """`tell` and `tell_of_blocks` from any thread; `read` and `read_blocks` on one."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        # Blocks apart: they are also taken between a forward and its commits.
        self._blocks: deque[Command] = deque()
        self._wake = threading.Condition()

    def tell(self, command: Command) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def tell_of_blocks(self, command: Command) -> None:
        with self._wake:
            self._blocks.append(command)
            self._wake.notify()

    def read(self, *, block: bool, timeout_s: float) -> None:
        """Run the commands that came in; with `block`, wait for at least one (or the timeout)."""
        with self._wake:
            if block and not self._commands and not self._blocks:
                self._wake.wait(timeout_s)
            commands, self._commands = self._commands, deque()
        _obey(commands)
        self.read_blocks()

    def read_blocks(self) -> None:
        """Draft tokens that came during a forward still belong to its epoch: before the commit."""
        with self._wake:
            commands, self._blocks = self._blocks, deque()
        _obey(commands)


def _obey(commands: Iterable[Command]) -> None:
    for command in commands:
        try:
            command()
        except Exception:
            # One command is about one sequence or one link: the others go on.
            log.exception("a command failed")
