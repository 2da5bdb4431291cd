"""Service processes for benchmarks: started, and stopped again whatever happens."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_START_S = 180.0


@dataclass(frozen=True)
class Service:
    process: subprocess.Popen[str]
    # host:port, from its READY line.
    address: str


@contextlib.contextmanager
def running(
    *command: str, env: Mapping[str, str] | None = None, silent: bool = False
) -> Iterator[Service]:
    """`python COMMAND` until the end of the block, with `env` added to the environment.

    `silent`: its stderr is thrown away.
    """
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if silent else None,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        cwd=ROOT,
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
        yield Service(process, ready.split()[2])
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
    """`python COMMAND` until the end of the block; its address."""
    with running(*command) as started:
        yield started.address
