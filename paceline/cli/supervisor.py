"""Keeps the services of `paceline up` running: started in order, drained in reverse order.

A service that the others can do without is started again when it ends, later each time; the end
of any other one ends them all. Knows no service by name.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.cli.processes import ServiceProcess, Spec, StartFailed, describe_exit

# A service drains for 10 s by its own default.
DRAIN_S = 15.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
# One that ran this long has recovered: the next pause is the first one again.
_RECOVERED_S = 60.0


class Narrator(Protocol):
    """Tells the person what goes on."""

    def note(self, line: str) -> None: ...

    def failed(self, line: str, log: Path) -> None: ...

    def waiting(self, name: str, log: Path) -> contextlib.AbstractAsyncContextManager[None]: ...


async def supervise(
    specs: Sequence[Spec],
    run_dir: Path,
    narrator: Narrator,
    on_ready: Callable[[Mapping[str, str]], None],
    *,
    drain_s: float = DRAIN_S,
    first_pause_s: float = _FIRST_PAUSE_S,
) -> int:
    """Runs the services until a signal; returns 0 then, 1 when one failed. A second one kills."""
    running: dict[str, ServiceProcess] = {}
    async with _signals() as signals:
        try:
            work = asyncio.create_task(
                _run(specs, run_dir, narrator, on_ready, running, first_pause_s)
            )
            return await _until(signals.first, work)
        finally:
            in_order = [running[spec.name] for spec in reversed(specs) if spec.name in running]
            drain = asyncio.create_task(_drain(in_order, narrator, drain_s))
            await _until(signals.second, drain)


async def _run(
    specs: Sequence[Spec],
    run_dir: Path,
    narrator: Narrator,
    on_ready: Callable[[Mapping[str, str]], None],
    running: dict[str, ServiceProcess],
    first_pause_s: float,
) -> int:
    """Starts all, then watches them. Returns 1 when one failed, else never. Fills `running`."""
    addresses: dict[str, str] = {}
    for spec in specs:
        log = run_dir / f"{spec.name}.log"
        process = await ServiceProcess.start(spec, addresses, log)
        running[spec.name] = process
        try:
            async with narrator.waiting(spec.name, log):
                addresses[spec.name] = await process.ready()
        except StartFailed as error:
            narrator.failed(str(error), log)
            return 1
    on_ready(addresses)
    watches = {
        asyncio.create_task(
            _keep(spec, running, addresses, narrator, first_pause_s)
            if spec.restarts
            else _end(running[spec.name], narrator)
        )
        for spec in specs
    }
    try:
        done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        for watch in done:
            watch.result()
        return 1
    finally:
        await _cancel(watches)


async def _end(process: ServiceProcess, narrator: Narrator) -> None:
    exit_code = await process.wait()
    narrator.failed(f"{process.name} ended ({describe_exit(exit_code)})", process.log)


async def _keep(
    spec: Spec,
    running: dict[str, ServiceProcess],
    addresses: Mapping[str, str],
    narrator: Narrator,
    first_pause_s: float,
) -> None:
    """Starts a service again whenever it ends, with a longer pause each time. Never returns."""
    pause_s = first_pause_s
    started_at = time.monotonic()
    while True:
        process = running[spec.name]
        exit_code = await process.wait()
        if time.monotonic() - started_at > _RECOVERED_S:
            pause_s = first_pause_s
        narrator.note(
            f"{spec.name} ended ({describe_exit(exit_code)}); starting it again in {pause_s:g} s"
        )
        await process.stop(0)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        started_at = time.monotonic()
        # The same address as before: the others know it.
        process = await ServiceProcess.start(spec, addresses, process.log, append=True)
        running[spec.name] = process
        with contextlib.suppress(StartFailed):
            await process.ready()
            narrator.note(f"{spec.name} is ready again")


async def _drain(processes: Sequence[ServiceProcess], narrator: Narrator, drain_s: float) -> int:
    """Stops them one after another; cancelled, it kills the rest."""
    try:
        for process in processes:
            async with narrator.waiting(f"{process.name} to drain", process.log):
                await process.stop(drain_s)
        return 0
    finally:
        for process in processes:
            await process.stop(0)


async def _until(event: asyncio.Event, work: asyncio.Task[int]) -> int:
    """The result of the work; 0 when the event came first, which cancels it."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return 0
    finally:
        await _cancel({work, waiting})


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Signals:
    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()

    def arrived(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


@contextlib.asynccontextmanager
async def _signals() -> AsyncIterator[_Signals]:
    """Counts the signals that ask for an end, a hang-up too unless it is ignored (nohup)."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    signals = _Signals()
    for number in numbers:
        loop.add_signal_handler(number, signals.arrived)
    try:
        yield signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
