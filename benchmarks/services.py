"""Service processes for benchmarks: started, and stopped again whatever happens."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
_START_S = 180.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that is ready."""

    process: subprocess.Popen[str]
    # host:port, from its READY line.
    address: str

    def cpu_s(self) -> float:
        """CPU time of all its threads so far, in ticks of the kernel's clock (10 ms)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def launched(
    *command: str, env: Mapping[str, str] | None = None, silent: bool = False
) -> Iterator[Launched]:
    """`python COMMAND` until the end of the block, with `env` added to the environment.

    `silent`: its stderr is shown only if it does not start.
    """
    with contextlib.ExitStack() as files:
        log = files.enter_context(tempfile.TemporaryFile("w+")) if silent else None
        yield from _launched(command, env or {}, log)


def _launched(
    command: Sequence[str], env: Mapping[str, str], log: IO[str] | None
) -> Iterator[Launched]:
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        cwd=ROOT,
    )
    watchdog = threading.Timer(_START_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        ready = next((line for line in lines if line.startswith("READY ")), None)
        if ready is None:
            raise RuntimeError(f"{' '.join(command)} did not start{_tail(log)}")
        watchdog.cancel()
        yield Launched(process, ready.split()[2])
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(log: IO[str] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    return ": ..." + log.read()[-2000:]


@contextlib.contextmanager
def service(*command: str) -> Iterator[str]:
    """As `launched`, silent; the address alone."""
    with launched(*command, silent=True) as process:
        yield process.address
