"""Service processes for benchmarks: started, and stopped again whatever happens."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_START_S = 180.0


@contextlib.contextmanager
def service(*command: str) -> Iterator[str]:
    """`python COMMAND` until the end of the block; its address, from its READY line."""
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
        yield ready.split()[2]
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
