"""Asks a gateway what a plan says and times the answers. Knows no statistics.

A request that fails is a sample with an error; it ends nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

from paceline.bench.plan import Block, Plan
from paceline.bench.sample import Arm, Delivery, LoadKind, Sample, Trial
from paceline.client import GatewayClient
from paceline.client_errors import Unreachable
from paceline.events import Delta, Finished, Request
from paceline.rounds import SpeculationTotals
from paceline.server import Refusal

# Called with every sample as it is complete, and with every refusal.
OnSample = Callable[[Sample], None]
OnRefusal = Callable[[Refusal], None]


class Runner:
    """Asks one gateway; hands every sample to `on_sample` as it is complete."""

    def __init__(
        self, client: GatewayClient, plan: Plan, on_sample: OnSample, on_refusal: OnRefusal
    ) -> None:
        self._client = client
        self._plan = plan
        self._on_sample = on_sample
        self._on_refusal = on_refusal
        self._began_s = time.monotonic()

    async def run(self) -> None:
        """All blocks of the plan, warm-up first."""
        blocks = list(self._plan.blocks())
        warming = [trial for block in blocks for trial in block.trials][: self._plan.warm_up]
        for trial in warming:
            for arm in Arm:
                await self._forgotten(self._plan.practice(trial, arm))
        for block in blocks:
            for trial in block.trials:
                await self._forgotten(self._plan.warming(trial))
            for arm in block.arms:
                await self._run_arm(block, arm)

    def _since_began_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _run_arm(self, block: Block, arm: Arm) -> None:
        if block.load.kind is LoadKind.OPEN:
            await self._open_loop(block, arm)
        else:
            await self._closed_loop(block.trials, arm, int(block.load.value))

    async def _closed_loop(self, trials: Sequence[Trial], arm: Arm, num_workers: int) -> None:
        waiting = iter(trials)

        async def work() -> None:
            for trial in waiting:
                self._on_sample(await self._ask(trial, arm, self._since_began_s()))

        async with asyncio.TaskGroup() as workers:
            for _ in range(num_workers):
                workers.create_task(work())

    async def _open_loop(self, block: Block, arm: Arm) -> None:
        begin_s = self._since_began_s()

        async def arrive(trial: Trial, intended_s: float) -> None:
            await asyncio.sleep(max(0.0, intended_s - self._since_began_s()))
            self._on_sample(await self._ask(trial, arm, intended_s))

        async with asyncio.TaskGroup() as arrivals:
            for trial, arrival_s in zip(block.trials, block.arrivals_s, strict=True):
                arrivals.create_task(arrive(trial, begin_s + arrival_s))

    async def _forgotten(self, request: Request) -> None:
        # What is wrong with it shows when it is measured.
        try:
            await _collect(self._client, request, lambda: 0)
        except (Refusal, Unreachable):
            return

    async def _ask(self, trial: Trial, arm: Arm, intended_s: float) -> Sample:
        def elapsed_us() -> int:
            return round((self._since_began_s() - intended_s) * 1e6)

        start_us = round(intended_s * 1e6)
        try:
            deliveries, token_ids, totals = await _collect(
                self._client, self._plan.request(trial, arm), elapsed_us
            )
        except Refusal as refusal:
            self._on_refusal(refusal)
            return Sample(trial, arm, start_us, elapsed_us(), error=refusal.code.name)
        except Unreachable:
            return Sample(trial, arm, start_us, elapsed_us(), error="UNREACHABLE")
        return Sample(trial, arm, start_us, elapsed_us(), deliveries, token_ids, totals)


async def _collect(
    client: GatewayClient, request: Request, elapsed_us: Callable[[], int]
) -> tuple[tuple[Delivery, ...], tuple[int, ...], SpeculationTotals]:
    """The answer's deliveries of at least one token, its token ids and its counters."""
    deliveries: list[Delivery] = []
    token_ids: list[int] = []
    totals = SpeculationTotals()
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            if isinstance(event, Delta) and event.token_ids:
                deliveries.append(Delivery(elapsed_us(), tuple(event.sources), event.round))
                token_ids += event.token_ids
            elif isinstance(event, Finished):
                totals = event.totals
    return tuple(deliveries), tuple(token_ids), totals
