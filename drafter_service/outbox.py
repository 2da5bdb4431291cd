"""What waits to be written to one stream: everything that waits leaves in one message.

Filled from the drafting thread, emptied on the event loop. Knows no messages.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from drafter_service.updates import Block, Lost


@dataclass(slots=True)
class Outgoing:
    """What is written next. `is_drain`: no new sequences, please."""

    blocks: list[Block] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    is_drain: bool = False


class Outbox:
    """A queue between the engine and a writer. All but `deliver` is for the event loop."""

    def __init__(self, max_entries: int) -> None:
        """When more than `max_entries` wait, `overflowed` is set and no more are taken."""
        self.overflowed = asyncio.Event()
        self._max_entries = max_entries
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._waiting = Outgoing()

    def deliver(self, blocks: Sequence[Block], lost: Sequence[Lost]) -> None:
        """Adds to what waits. For the drafting thread."""
        self._loop.call_soon_threadsafe(self._put, blocks, lost)

    def drain(self) -> None:
        self._waiting.is_drain = True
        self._filled.set()

    async def take(self) -> Outgoing:
        """All that waits, once anything does."""
        await self._filled.wait()
        self._filled.clear()
        taken, self._waiting = self._waiting, Outgoing()
        return taken

    def _put(self, blocks: Sequence[Block], lost: Sequence[Lost]) -> None:
        waiting = self._waiting
        if len(waiting.blocks) + len(waiting.lost) > self._max_entries:
            self.overflowed.set()
            return
        waiting.blocks += blocks
        waiting.lost += lost
        self._filled.set()
