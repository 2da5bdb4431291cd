"""How many verifiers a drafter can serve: a formula, and queues under a virtual clock.

Verifiers step without ever waiting; drafters run ahead within their credit, one forward for all
sequences that have some left. Simpler than simulation.py: the draft length is fixed, so what pacing
would save is not saved. Times in microseconds.
"""

import heapq
import itertools
import math
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

Indices = NDArray[numpy.int64]
SIZES = (1, 3, 10, 30, 100, 300, 1_000)
_WARM_US, _MEASURED_US = 400_000.0, 1_000_000.0


@dataclass(frozen=True)
class Plant:
    """A deployment. num_dialled: drafters that each verifier deals its sequences out to.
    message_us: what sending or taking one message costs a drafter."""

    num_verifiers: int = 1
    num_drafters: int = 1
    num_dialled: int = 1
    num_sequences: int = 16
    num_draft: int = 4
    acceptance: float = 0.7
    base_us: float = 40_000.0
    row_us: float = 150.0
    draft_us: float = 2_000.0
    draft_row_us: float = 50.0
    message_us: float = 45.0
    delay_us: float = 500.0

    def step_us(self, num_drafted: int) -> float:
        return self.base_us + self.row_us * (self.num_sequences + num_drafted)

    @property
    def verifiers_per_drafter(self) -> float:
        """At most so many before drafts come late. In one step of a verifier the drafter does
        `num_draft` forwards over all its sequences; each verifier sends it one message and is sent
        one after each forward."""
        step_us = self.step_us(self.num_sequences * self.num_draft)
        messages_us = self.message_us * self.num_dialled
        each_us = self.num_draft * (self.draft_row_us * self.num_sequences + messages_us)
        return (step_us - self.num_draft * self.draft_us) / (each_us + messages_us)


@dataclass(frozen=True)
class Load:
    """speed_up: tokens per second against plain. in_time: share of rounds with draft tokens.
    busy: share of the drafters' time. used: share of drafted tokens that became output."""

    speed_up: float
    in_time: float
    busy: float
    used: float


class _Drafter:
    def __init__(self, sequences: Indices) -> None:
        self.sequences = sequences
        # Sequences of the forward under way; None: idle.
        self.active: Indices | None = None
        self.inbox: list[tuple[Indices, Indices, Indices]] = []
        self.busy_us = 0.0


class _Run:
    """Positions count output tokens. wrong: of the first draft token that will not stand."""

    def __init__(self, plant: Plant) -> None:
        self.plant, self.now_us = plant, 0.0
        self.rng = numpy.random.default_rng(0)
        self.events: list[tuple[float, int, str, tuple[object, ...]]] = []
        self.order = itertools.count()
        size = plant.num_verifiers * plant.num_sequences
        self.committed, self.arrived, self.drafted, self.epoch, self.drafter_epoch = numpy.zeros(
            (5, size), numpy.int64
        )
        self.wrong = self.rng.geometric(1 - plant.acceptance, size) - 1
        self.limit = numpy.full(size, 2 * plant.num_draft)
        verifier, index = numpy.divmod(numpy.arange(size), plant.num_sequences)
        self.home = (verifier + index % plant.num_dialled) % plant.num_drafters
        self.drafters = [
            _Drafter(numpy.flatnonzero(self.home == number)) for number in range(plant.num_drafters)
        ]
        self.counts = {"rounds": 0, "in_time": 0, "tokens": 0, "accepted": 0, "drafted": 0}

    def at(self, delay_us: float, kind: str, *what: object) -> None:
        heapq.heappush(self.events, (self.now_us + delay_us, next(self.order), kind, what))

    def run(self, until_us: float) -> None:
        """Handles all events up to then; at first, everything begins at random moments."""
        if not self.events:
            for number in range(self.plant.num_verifiers):
                self.at(self.rng.uniform(0, self.plant.base_us), "begin", number)
            for drafter in self.drafters:
                self.at(0.0, "draft", drafter)
        while self.events[0][0] <= until_us:
            self.now_us, _, kind, what = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(*what)
        self.now_us = until_us

    def _begin(self, verifier: int) -> None:
        start = verifier * self.plant.num_sequences
        own = numpy.arange(start, start + self.plant.num_sequences)
        counts = numpy.clip(self.arrived[own] - self.committed[own], 0, self.plant.num_draft)
        self.at(self.plant.step_us(int(counts.sum())), "end", verifier, own, counts)

    def _end(self, verifier: int, own: Indices, counts: Indices) -> None:
        stood = numpy.clip(self.wrong[own] - self.committed[own], 0, counts)
        positions = self.committed[own] + stood + 1
        self.committed[own] = positions
        # What has not arrived, or is wrong, may not agree: a new epoch.
        anew = own[(self.arrived[own] < positions) | (self.wrong[own] < positions)]
        self.epoch[anew] += 1
        self.arrived[anew] = self.committed[anew]
        self.counts["rounds"] += len(own)
        self.counts["in_time"] += int((counts > 0).sum())
        self.counts["tokens"] += int((stood + 1).sum())
        self.counts["accepted"] += int(stood.sum())
        for number in numpy.unique(self.home[own]):
            told = own[self.home[own] == number]
            drafter = self.drafters[number]
            news = (told, self.committed[told], self.epoch[told])
            self.at(self.plant.delay_us, "told", drafter, news)
        self._begin(verifier)

    def _told(self, drafter: _Drafter, news: tuple[Indices, Indices, Indices]) -> None:
        drafter.inbox.append(news)
        if drafter.active is None:
            self._draft(drafter)

    def _draft(self, drafter: _Drafter) -> None:
        """The end of a forward, if one was under way, and the beginning of the next."""
        if drafter.active is not None:
            self.drafted[drafter.active] += 1
            self.counts["drafted"] += len(drafter.active)
            self._send(drafter.active)
        time_us = self.plant.message_us * len(drafter.inbox)
        for told, positions, epochs in drafter.inbox:
            self._take(told, positions, epochs)
        drafter.inbox.clear()
        own = drafter.sequences
        active = own[self.drafted[own] < self.limit[own]]
        if len(active):
            num_messages = len(numpy.unique(active // self.plant.num_sequences))
            time_us += self.plant.message_us * num_messages
            time_us += self.plant.draft_us + self.plant.draft_row_us * len(active)
            self.at(time_us, "draft", drafter)
        drafter.active = active if len(active) else None
        drafter.busy_us += time_us

    def _take(self, told: Indices, positions: Indices, epochs: Indices) -> None:
        self.limit[told] = positions + 2 * self.plant.num_draft
        stands = (self.drafted[told] >= positions) & (self.wrong[told] >= positions)
        anew, kept = told[~stands], told[stands & (epochs != self.drafter_epoch[told])]
        self.drafted[anew] = positions[~stands]
        chains = self.rng.geometric(1 - self.plant.acceptance, len(anew)) - 1
        self.wrong[anew] = positions[~stands] + chains
        self.drafter_epoch[told] = epochs
        if len(kept):
            self._send(kept)

    def _send(self, sent: Indices) -> None:
        tokens = (sent, self.drafted[sent], self.drafter_epoch[sent])
        self.at(self.plant.delay_us, "arrive", *tokens)

    def _arrive(self, sent: Indices, positions: Indices, epochs: Indices) -> None:
        fresh = epochs == self.epoch[sent]
        known = sent[fresh]
        self.arrived[known] = numpy.maximum(self.arrived[known], positions[fresh])


def load(plant: Plant) -> Load:
    """What a deployment does once it runs steadily."""
    run = _Run(plant)
    run.run(_WARM_US)
    before = dict(run.counts)
    busy_us = sum(drafter.busy_us for drafter in run.drafters)
    run.run(_WARM_US + _MEASURED_US)
    counts = {name: count - before[name] for name, count in run.counts.items()}
    busy_us = sum(drafter.busy_us for drafter in run.drafters) - busy_us
    sequences = plant.num_verifiers * plant.num_sequences
    return Load(
        speed_up=counts["tokens"] / _MEASURED_US * plant.step_us(0) / sequences,
        in_time=counts["in_time"] / counts["rounds"],
        busy=min(busy_us / _MEASURED_US / plant.num_drafters, 1.0),
        used=counts["accepted"] / max(counts["drafted"], 1),
    )


def drafters_needed(plant: Plant) -> Plant:
    """As few drafters as the formula allows; of more than one, each verifier dials two."""
    if plant.num_verifiers <= plant.verifiers_per_drafter:
        return plant
    paired = replace(plant, num_dialled=2)
    return replace(
        paired, num_drafters=math.ceil(paired.num_verifiers / paired.verifiers_per_drafter)
    )


def table() -> list[dict[str, float]]:
    """Prints what 1 to 1,000 verifiers need and get; the rows."""
    plant = Plant()
    print(
        f"{plant.num_sequences} sequences a verifier, {plant.num_draft} draft tokens, acceptance "
        f"{plant.acceptance}, step {plant.step_us(0) / 1e3:.1f} ms, draft forward "
        f"{plant.draft_us / 1e3:g} ms + {plant.draft_row_us / 1e3:g} ms a sequence\n"
        f"{'verifiers':>9} {'drafters':>8} {'dialled':>7}  speed  in time  busy  used"
    )
    rows = []

    def show(case: Plant) -> None:
        found = load(case)
        print(
            f"{case.num_verifiers:9d} {case.num_drafters:8d} {case.num_dialled:7d} "
            f"{found.speed_up:5.2f}x {found.in_time:8.0%} {found.busy:5.0%} {found.used:5.0%}",
            flush=True,
        )
        rows.append(
            {
                "verifiers": case.num_verifiers,
                "drafters": case.num_drafters,
                "dialled": case.num_dialled,
                "speed_up": round(found.speed_up, 3),
                "in_time": round(found.in_time, 3),
                "busy": round(found.busy, 3),
            }
        )

    print("as many drafters as the formula says")
    for size in SIZES:
        show(drafters_needed(replace(plant, num_verifiers=size)))
    print("one drafter, ever more verifiers")
    for size in (1, 2, 4, 6, 8, 10, 12, 16, 24, 48):
        show(replace(plant, num_verifiers=size))
    print("the same drafters, dialled by all")
    mesh = drafters_needed(replace(plant, num_verifiers=100))
    show(replace(mesh, num_dialled=min(mesh.num_drafters, plant.num_sequences)))
    return rows
