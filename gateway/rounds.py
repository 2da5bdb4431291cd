"""Rounds as they pass: what a cut leaves of one, and who watches them.

Knows no spans and no messages.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.rounds import RoundReport

WATCH_QUEUE = 256


def cut_round(report: RoundReport, num_tokens: int) -> RoundReport:
    """The round with the tokens after the first `num_tokens` neither delivered nor counted.

    All draft tokens stay counted as drafted: that work was done.
    """
    if num_tokens >= report.num_output:
        return report
    return replace(
        report,
        num_output=num_tokens,
        num_tested=min(report.num_tested, num_tokens),
        num_accepted=min(report.num_accepted, num_tokens),
    )


@dataclass(frozen=True, slots=True)
class SeenRound:
    """A round of some answer; num_missed counts those this watcher was too slow for."""

    id: str
    workload: str
    round: RoundReport
    num_missed: int


class Watcher:
    """One who watches. Reads at its own pace; what does not fit into its queue is counted."""

    def __init__(self, answer_id: str) -> None:
        self.answer_id = answer_id
        self._num_missed = 0
        # The answer's end takes a place of its own, so that it always fits.
        self._queue: asyncio.Queue[tuple[str, str, RoundReport] | None] = asyncio.Queue(
            WATCH_QUEUE + 1
        )

    def offer(self, answer_id: str, workload: str, report: RoundReport) -> None:
        if self._queue.qsize() >= WATCH_QUEUE:
            self._num_missed += 1
        else:
            self._queue.put_nowait((answer_id, workload, report))

    def end(self) -> None:
        if not self._queue.full():
            self._queue.put_nowait(None)

    async def next(self) -> SeenRound | None:
        """The next round, or None when the watched answer has ended."""
        seen = await self._queue.get()
        return None if seen is None else SeenRound(*seen, num_missed=self._num_missed)


class RoundHub:
    """Passes every round on to those who watch. Never waits for them."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._watchers: set[Watcher] = set()

    @contextlib.contextmanager
    def running(self, answer_id: str) -> Iterator[None]:
        """While an answer runs. Those who watch it alone are told of its end."""
        self._running.add(answer_id)
        try:
            yield
        finally:
            self._running.discard(answer_id)
            for watcher in self._watchers:
                if watcher.answer_id == answer_id:
                    watcher.end()

    def publish(self, answer_id: str, workload: str, report: RoundReport) -> None:
        for watcher in self._watchers:
            if watcher.answer_id in ("", answer_id):
                watcher.offer(answer_id, workload, report)

    @contextlib.contextmanager
    def watch(self, answer_id: str = "") -> Iterator[Watcher | None]:
        """A watcher of all answers or of one; None when that one does not run."""
        if answer_id and answer_id not in self._running:
            yield None
            return
        watcher = Watcher(answer_id)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """Ends every watch."""
        for watcher in self._watchers:
            watcher.end()
