"""One service as a child process: its start, its ready line, its log, its end. No gRPC here:
gRPC and fork do not go together.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# For the callers of the gateway, not for the services, which refuse variables they do not know.
_OWN_VARIABLES = ("PACELINE_GATEWAY",)


@dataclass(frozen=True, slots=True)
class Spec:
    """A service to run. `command` gets the addresses of the services that are ready before it."""

    name: str
    command: Callable[[Mapping[str, str]], Sequence[str]]
    # Whether the others can do without it while it is started again.
    restarts: bool = False


class StartFailed(Exception):
    """The process ended before it was ready."""

    def __init__(self, name: str, exit_code: int) -> None:
        super().__init__(f"{name} ended before it was ready ({describe_exit(exit_code)})")
        self.name = name


class ServiceProcess:
    """A running service. `stop` must be awaited, whatever happened."""

    def __init__(self, spec: Spec, process: asyncio.subprocess.Process, log: Path) -> None:
        self.spec = spec
        self.log = log
        self._process = process
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read_stdout())

    @classmethod
    async def start(
        cls, spec: Spec, addresses: Mapping[str, str], log: Path, *, append: bool = False
    ) -> "ServiceProcess":
        """Starts the process, in a session of its own: Ctrl-C is for the parent alone."""
        child = [sys.executable, "-P", "-m", "paceline.cli.child", str(os.getpid())]
        with log.open("ab" if append else "wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *child,
                *spec.command(addresses),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES},
                start_new_session=True,
            )
        return cls(spec, process, log)

    @property
    def name(self) -> str:
        return self.spec.name

    async def ready(self) -> str:
        """The address of its ready line. Raises StartFailed when it ends without one."""
        waited: set[asyncio.Future[Any]] = {self._reader, self._address}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not self._address.done():
            raise StartFailed(self.name, await self._process.wait())
        return self._address.result()

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL when it has not ended in time. Cancelling it kills at once."""
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            pass
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            words = line.decode(errors="replace").split()
            if words[:2] == ["READY", self.name] and len(words) == 3 and not self._address.done():
                self._address.set_result(words[2])


def describe_exit(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log; empty when there is none."""
    try:
        return log.read_text(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
