"""A verifier and its drafters under a virtual clock: the production pacing, mailbox and epochs.

Nothing here computes a token: whether a draft token is right is a coin per position, so all
policies meet the same text. Times in microseconds.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.rounds import TokenSource
from verifier_service.mailbox import Block, Commit, Mailbox
from verifier_service.pacer import Pacer, View
from verifier_service.pacing import Pacing, RoundCost
from verifier_service.step_time import KNEE, StepShape

VOCABULARY = 8
RIGHT, WRONG = 1, 0
PROMPT = 100


@dataclass(frozen=True)
class Cell:
    """One point of the grid. acceptance: of the draft token at a position of the answer."""

    name: str
    acceptance: Callable[[int], float]
    draft_us: float = 4_000.0
    delay_us: float = 500.0
    num_sequences: int = 1
    num_tokens: int = 400
    limit: int = 8
    # All draft tokens of a commit at once, as a lookup gives them.
    at_once: bool = False
    base_us: float = 40_000.0
    row_us: float = 150.0
    knee_us: float = 400.0
    sequence_us: float = 600.0
    context_us: float = 0.002
    # Share that a drafter at work adds to every step.
    interference: float = 0.0
    noise: float = 0.02
    # Seconds of sleep of the drafter, and other load: functions of the time.
    is_asleep: Callable[[float], bool] = field(default=lambda now_us: False)
    slowdown: Callable[[float], float] = field(default=lambda now_us: 1.0)
    # When each sequence arrives.
    arrivals_us: Sequence[float] = ()
    # Tokens of each, if not all are of num_tokens.
    lengths: Sequence[int] = ()
    seed: int = 0

    def step_us(self, shape: StepShape, now_us: float) -> float:
        time_us = (
            self.base_us
            + self.row_us * shape.rows
            + self.knee_us * max(shape.rows - KNEE, 0)
            + self.sequence_us * shape.sequences
            + self.context_us * shape.context
        )
        busy = 1 + self.interference * shape.drafting
        return time_us * busy * self.slowdown(now_us)


@dataclass(frozen=True)
class Policy:
    """Fixed: always this many draft tokens, waiting for them or not. None: production pacing.

    ahead: how often the block length the drafter may run ahead.
    """

    num_draft: int | None = None
    waits: bool = False
    ahead: int = 1


PACED = Policy()
PLAIN = Policy(0)


class Drafter:
    """Runs ahead of one sequence; what it sends arrives `delay_us` later."""

    def __init__(self, cell: Cell, coins: Sequence[bool], limit: int, now_us: float) -> None:
        self._cell, self._coins = cell, coins
        self._inbox: deque[tuple[float, Commit, int]] = deque()
        self._clock_us = self._busy_since_us = now_us + cell.delay_us
        self._position = PROMPT
        self._epoch, self._limit = 1, limit
        self._tokens: list[int] = []
        self._num_sent = 0
        self._outbox: list[tuple[float, Block]] = []

    def commit(self, commit: Commit, limit: int, now_us: float) -> None:
        self._inbox.append((now_us + self._cell.delay_us, commit, limit))

    def blocks(self, until_us: float) -> list[tuple[float, Block]]:
        """(arrival, block) of all that arrive up to then, in order."""
        self._run(until_us - self._cell.delay_us)
        due = [entry for entry in self._outbox if entry[0] <= until_us]
        self._outbox = [entry for entry in self._outbox if entry[0] > until_us]
        return due

    def next_arrival_us(self, after_us: float) -> float:
        """When something arrives next, or may; infinite if nothing is under way."""
        self._run(after_us)
        if self._outbox:
            return self._outbox[0][0]
        done_us = self._done_us()
        pending_us = self._inbox[0][0] if self._inbox else math.inf
        return max(min(done_us, pending_us) + self._cell.delay_us, after_us + 50.0)

    def _done_us(self) -> float:
        if len(self._tokens) >= self._limit:
            return math.inf
        start_us = self._busy_since_us
        while self._cell.is_asleep(start_us):
            start_us += 20_000.0
        return start_us + self._cell.draft_us

    def _run(self, until_us: float) -> None:
        while True:
            done_us = self._done_us()
            commit_us = self._inbox[0][0] if self._inbox else math.inf
            if min(done_us, commit_us) > until_us:
                return
            if commit_us <= done_us:
                self._take(*self._inbox.popleft())
                continue
            self._busy_since_us = done_us
            count = self._limit - len(self._tokens) if self._cell.at_once else 1
            for _ in range(count):
                self._tokens.append(self._draw())
            self._send(done_us)

    def _draw(self) -> int:
        position = self._position + len(self._tokens)
        right = not self._tokens or self._tokens[-1] == RIGHT
        coin = position - PROMPT < len(self._coins) and self._coins[position - PROMPT]
        # A chain that has left the text does not come back to it.
        return RIGHT if right and coin else WRONG

    def _send(self, now_us: float) -> None:
        fresh = self._tokens[self._num_sent :]
        if fresh:
            base = self._position + self._num_sent
            sources = [TokenSource.DRAFT_MODEL] * len(fresh)
            block = Block(0, self._epoch, base, fresh, sources)
            self._outbox.append((now_us + self._cell.delay_us, block))
        self._num_sent = len(self._tokens)

    def _take(self, at_us: float, commit: Commit, limit: int) -> None:
        count = commit.num_agreed + len(commit.token_ids)
        keeps = all(token == RIGHT for token in self._tokens[:count])
        idle = len(self._tokens) >= self._limit
        if keeps and len(self._tokens) >= count:
            self._tokens = self._tokens[count:]
            self._num_sent = max(self._num_sent - count, 0)
        else:
            self._tokens, self._num_sent = [], 0
            idle = True
        self._position = commit.base_position + count
        self._limit = limit
        if commit.epoch != self._epoch:
            self._epoch, self._num_sent = commit.epoch, 0
        if idle:
            self._busy_since_us = max(self._busy_since_us, at_us)
        self._send(at_us)


class Sequence_:
    """One answer in the simulation."""

    def __init__(self, cell: Cell, index: int, pacing: Pacing, limit: int, now_us: float) -> None:
        rng = random.Random(1000 * cell.seed + index)
        self.num_tokens = cell.lengths[index] if cell.lengths else cell.num_tokens
        self.coins = [rng.random() < cell.acceptance(i) for i in range(self.num_tokens + 64)]
        self.pacing = pacing
        self.mailbox = Mailbox(PROMPT, VOCABULARY, 2 * cell.limit)
        self.mailbox.restart()
        self.drafter = Drafter(cell, self.coins, limit, now_us)
        self.index, self.started_us = index, now_us
        self.output = 0
        self.half_us = self.finished_us = 0.0
        self.committed_us = self.arrived_us = self.heard_us = now_us
        self.answered_epoch = 0
        # The drafter has used all its credit: what comes next was not being drafted meanwhile.
        self.limit, self.was_full = limit, False
        self.epochs = {1: (now_us, PROMPT)}
        self.waited = False
        self.is_told = limit > 0
        self.switched_us: list[float] = []

    @property
    def num_left(self) -> int:
        return self.num_tokens - self.output

    def receive(self, until_us: float) -> None:
        for at_us, block in self.drafter.blocks(until_us):
            receipt = self.mailbox.offer(block)
            gap_us, self.heard_us = at_us - self.heard_us, at_us
            arrival = self.pacing.arrival
            if block.epoch > self.answered_epoch:
                self.answered_epoch = block.epoch
                sent_us, position = self.epochs.pop(block.epoch)
                arrival.answered(at_us - sent_us, len(block.token_ids))
                if receipt is receipt.STALE and block.base_position == position:
                    tested, right = compare(block.token_ids, PROMPT + self.output - position)
                    if tested:
                        self.pacing.overheard(block.sources[0], tested, right)
            elif block.epoch == self.answered_epoch and not self.was_full:
                arrival.followed(gap_us, len(block.token_ids))
            if receipt is receipt.KEPT:
                self.arrived_us = at_us
            self.was_full = len(self.mailbox) >= self.limit


def compare(token_ids: Sequence[int], num_known: int) -> tuple[int, int]:
    """(tested, right) of late draft tokens, of which the first `num_known` can be judged."""
    right = 0
    for token in token_ids[:num_known]:
        if token != RIGHT:
            return right + 1, right
        right += 1
    return right, right


@dataclass
class Result:
    """What a run gave: per sequence, from its arrival to its end and over its second half."""

    times_us: list[float]
    second_half_us: list[float]
    # When each sequence was switched on or off.
    switched_us: list[list[float]]
    # Of each round: (time, sequence, draft tokens, accepted).
    rounds: list[tuple[float, int, int, int]]

    @property
    def mean_us(self) -> float:
        return sum(self.times_us) / len(self.times_us)

    @property
    def steady_us(self) -> float:
        return sum(self.second_half_us) / len(self.second_half_us)


def simulate(cell: Cell, policy: Policy = PACED, pacer: Pacer | None = None) -> Result:
    """Runs all sequences of a cell to their ends."""
    return _Run(cell, policy, pacer or Pacer()).run()


class _Run:
    def __init__(self, cell: Cell, policy: Policy, pacer: Pacer) -> None:
        self.cell, self.policy, self.pacer = cell, policy, pacer
        self.now_us = 0.0
        self.rng = random.Random(cell.seed)
        self.price = 0.0
        times = cell.arrivals_us or [0.0] * cell.num_sequences
        self.coming = deque(enumerate(times))
        self.running: list[Sequence_] = []
        self.all: list[Sequence_] = []
        self.rounds: list[tuple[float, int, int, int]] = []

    @property
    def is_paced(self) -> bool:
        return self.policy.num_draft is None

    def _limit(self, sequence: Sequence_) -> int:
        left = max(sequence.num_left - 1, 0)
        if not self.is_paced:
            return min((self.policy.num_draft or 0) * self.policy.ahead, left)
        return min(self.pacer.credit(sequence.pacing, self.cell.limit, self.price), left)

    def run(self) -> Result:
        while self.coming or self.running:
            self._admit()
            self._step()
        return Result(
            [s.finished_us - s.started_us for s in self.all],
            [s.finished_us - s.half_us for s in self.all],
            [s.switched_us for s in self.all],
            self.rounds,
        )

    def _admit(self) -> None:
        if not self.running and self.coming:
            self.now_us = max(self.now_us, self.coming[0][1])
        while self.coming and self.coming[0][1] <= self.now_us:
            index, _ = self.coming.popleft()
            pacing = self.pacer.pacing("")
            if self.is_paced:
                limit = self.pacer.credit(pacing, self.cell.limit, self.price)
            else:
                limit = (self.policy.num_draft or 0) * self.policy.ahead
            sequence = Sequence_(self.cell, index, pacing, limit, self.now_us)
            self.running.append(sequence)
            self.all.append(sequence)

    def _view(self, sequence: Sequence_) -> View:
        ready = len(sequence.mailbox)
        limit = max(min(self.cell.limit, sequence.num_left - 1), 0)
        since_us = sequence.arrived_us if ready else sequence.committed_us
        source = TokenSource.DRAFT_MODEL if ready else None
        return View(
            pacing=sequence.pacing,
            num_ready=ready,
            limit=limit,
            source=source,
            expects=sequence.is_told and ready < limit,
            since_us=self.now_us - since_us,
            stake=sequence.pacing.stake(has_own=False, is_drafting=sequence.is_told),
        )

    def _shape(self, num_rows: int) -> StepShape:
        context = sum(PROMPT + s.output for s in self.running)
        is_drafting = any(s.is_told for s in self.running)
        return StepShape(num_rows, context, len(self.running), is_drafting)

    def _receive(self) -> None:
        for sequence in self.running:
            sequence.receive(self.now_us)

    def _wait(self, plain: StepShape) -> float:
        start_us = self.now_us
        if self.is_paced:
            wait = self.pacer.wait([self._view(s) for s in self.running], plain, 256)
            deadline_us, wanted = start_us + wait.wait_us, wait.num_wanted
        elif self.policy.waits and self.policy.num_draft:
            deadline_us = start_us + 1e6
            wanted = [min(self._limit(s), self.policy.num_draft) for s in self.running]
        else:
            return 0.0
        for sequence in self.running:
            sequence.waited = False
        while self.now_us < deadline_us:
            short = [s for s, n in zip(self.running, wanted, strict=True) if len(s.mailbox) < n]
            if not short:
                break
            soonest_us = min(s.drafter.next_arrival_us(self.now_us) for s in short)
            self.now_us = min(soonest_us, deadline_us)
            self._receive()
        waited_us = self.now_us - start_us
        if self.is_paced and wanted:
            for sequence, count in zip(self.running, wanted, strict=True):
                sequence.waited = count > 0
                if count and not len(sequence.mailbox):
                    sequence.pacing.arrival.missed(self.now_us - sequence.committed_us)
        return waited_us

    def _step(self) -> None:
        self._receive()
        plain = self._shape(len(self.running))
        waited_us = self._wait(plain)
        views = [self._view(s) for s in self.running]
        if self.is_paced:
            plan = self.pacer.plan(views, plain, 256 - plain.rows)
            counts, self.price = plan.num_draft, plan.min_probability
        else:
            most = self.policy.num_draft or 0
            counts = [min(len(s.mailbox), self._limit(s), most) for s in self.running]
        drafts = [s.mailbox.peek(n) for s, n in zip(self.running, counts, strict=True)]
        shape = plain.with_rows(plain.rows + sum(counts))
        true_us = self.cell.step_us(shape, self.now_us)
        noise = self.cell.noise
        step_us = true_us * math.exp(self.rng.gauss(0.0, noise))
        self.now_us += step_us
        self._receive()
        plain_us = rows_us = drafting_us = 0.0
        if self.is_paced:
            self.pacer.measured(shape, plain, step_us, prefill=False)
            plain_us, rows_us, drafting_us = self.pacer.costs(shape, plain, step_us)
        for sequence, view, draft in zip(list(self.running), views, drafts, strict=True):
            accepted = tested = 0
            for token in draft.token_ids:
                tested += 1
                if token != RIGHT:
                    break
                accepted += 1
            sequence.output += accepted + 1
            self.rounds.append((self.now_us, sequence.index, len(draft.token_ids), accepted))
            if self.is_paced:
                cost = RoundCost(
                    source=TokenSource.DRAFT_MODEL,
                    tested=tested,
                    stood=accepted,
                    accepted=accepted,
                    wait_us=waited_us,
                    rows_us=rows_us,
                    drafting_us=drafting_us,
                    plain_us=plain_us,
                    row_share=len(draft.token_ids) / max(sum(counts), 1),
                    waited=sequence.waited,
                )
                self.pacer.learn(view, cost, self.now_us, self.price)
                if sequence.pacing.num_switches > len(sequence.switched_us):
                    sequence.switched_us.append(self.now_us)
            if not sequence.half_us and 2 * sequence.num_left <= sequence.num_tokens:
                sequence.half_us = self.now_us
            if sequence.num_left <= 0:
                sequence.finished_us = self.now_us
                self.running.remove(sequence)
                continue
            commit = sequence.mailbox.commit([RIGHT] * (accepted + 1))
            limit = self._limit(sequence)
            sequence.is_told = limit > 0
            sequence.limit = limit
            sequence.committed_us = self.now_us
            sequence.epochs.setdefault(commit.epoch, (self.now_us, PROMPT + sequence.output))
            if not len(sequence.mailbox):
                sequence.arrived_us = self.now_us
            sequence.drafter.commit(commit, limit, self.now_us)
