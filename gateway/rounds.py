"""Rounds as they pass: what a cut leaves of one, which get a span, and who watches them.

Knows no spans and no messages.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.rounds import PlainReason, RoundReport

FIRST_ROUNDS = 8
EVERY_ROUNDS = 16
STREAK_ROUNDS = 4
SLOW_WINDOW = 64
SLOW_MIN_ROUNDS = 20
SLOW_QUANTILE = 0.95
WATCH_QUEUE = 256
FALLBACKS = (PlainReason.NO_DRAFTER, PlainReason.NO_DRAFT, PlainReason.BUDGET)


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


class RoundSampler:
    """Picks the rounds of one answer that get a span when not all do.

    The first 8, every 16th, and the odd ones: the drafter fell out, nothing was accepted after a
    streak of acceptance, or slower than 95 % of the last rounds.
    """

    def __init__(self) -> None:
        self._streak = 0
        self._had_block = False
        self._recent_us: deque[int] = deque(maxlen=SLOW_WINDOW)

    def picks(self, report: RoundReport) -> bool:
        """Whether this round gets a span. Called once for every round, in order."""
        duration_us = report.wait_us + report.verify_us
        odd = (
            (self._had_block and report.plain_reason in FALLBACKS)
            or (
                self._streak >= STREAK_ROUNDS
                and report.num_drafted > 0
                and report.num_accepted == 0
            )
            or self._is_slow(duration_us)
        )
        self._had_block = report.num_drafted > 0
        if report.num_drafted:
            self._streak = self._streak + 1 if report.num_accepted else 0
        self._recent_us.append(duration_us)
        return odd or report.round <= FIRST_ROUNDS or report.round % EVERY_ROUNDS == 0

    def _is_slow(self, duration_us: int) -> bool:
        if len(self._recent_us) < SLOW_MIN_ROUNDS:
            return False
        ordered = sorted(self._recent_us)
        return duration_us > ordered[int(SLOW_QUANTILE * (len(ordered) - 1))]


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
