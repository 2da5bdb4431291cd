"""Service processes for benchmarks: started, and stopped again whatever happens."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_START_S = 180.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that is ready."""

    address: str
    pid: int

    def cpu_s(self) -> float:
        """CPU time of all its threads so far, in ticks of the kernel's clock (10 ms)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def launched(*command: str) -> Iterator[Launched]:
    """`python COMMAND` until the end of the block, up when its READY line is read."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
    )
    watchdog = threading.Timer(_START_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        ready = next((line for line in lines if line.startswith("READY ")), None)
        if ready is None:
            raise RuntimeError(f"{' '.join(command)} did not start")
        watchdog.cancel()
        yield Launched(ready.split()[2], process.pid)
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def service(*command: str) -> Iterator[str]:
    """As `launched`; the address alone."""
    with launched(*command) as process:
        yield process.address
