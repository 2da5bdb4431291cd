"""Real service processes for tests: started on free ports, killed at will, never left behind."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from paceline.v1 import verifier_pb2, verifier_pb2_grpc

START_TIMEOUT_S = 120
# The package under test, and beside it the services that exist for tests alone.
_PATH = os.pathsep.join((str(Path(__file__).parents[1]), str(Path(__file__).parent)))
# Their usual ports are for one stack a machine.
METRICS_OFF = {
    f"PACELINE_{service}_METRICS_PORT": "0" for service in ("GATEWAY", "VERIFIER", "DRAFTER")
}
_ANY_HTTP_PORT = {"PACELINE_GATEWAY_HTTP_PORT": "0"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def metrics_env() -> dict[str, str]:
    """The environment that makes each service of one stack show its metrics on a free port."""
    return {name: str(free_port()) for name in METRICS_OFF}


class Process:
    """`python -m service`, up when its READY line is read."""

    def __init__(self, service: str, *flags: str, env: dict[str, str] | None = None) -> None:
        self.log: list[str] = []
        self._ready: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", service, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | METRICS_OFF | _ANY_HTTP_PORT | {"PYTHONPATH": _PATH} | (env or {}),
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip())
            if line.startswith("READY "):
                self._ready.put(line.split()[2])
        self._ready.put(None)

    def address(self) -> str:
        address = self._ready.get(timeout=START_TIMEOUT_S)
        assert address is not None, "did not start:\n" + "\n".join(self.log[-20:])
        return address

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP; returns once the kernel says that it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: self.is_frozen, what="the process stops")

    @property
    def is_frozen(self) -> bool:
        return self._status("State").startswith("T")

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def rss_bytes(self) -> int:
        return int(self._status("VmRSS").split()[0]) * 1024

    def _status(self, field: str) -> str:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(field))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Stack:
    """A verifier and a gateway, and a place for one drafter at a time."""

    def __init__(
        self, model: str, *, env: dict[str, str] | None = None, **settings: object
    ) -> None:
        self.model, self.env = model, env
        self.drafter_port = free_port()
        self.drafter: Process | None = None
        # What the tests of drafters look at is what drafters sent.
        settings.setdefault("local_sources", "")
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        self.verifier = Process(
            "verifier_service",
            "--port=0",
            f"--model={model}",
            f"--drafter=127.0.0.1:{self.drafter_port}",
            *flags,
            env=env,
        )
        self.gateway: Process | None = None

    def open(self) -> None:
        self.verifier_address = self.verifier.address()
        self.gateway = Process(
            "gateway", "--port=0", f"--verifier={self.verifier_address}", env=self.env
        )
        self.gateway_address = self.gateway.address()

    @property
    def http_url(self) -> str:
        """Of the gateway's HTTP door, which only its log names."""
        assert self.gateway is not None
        (url,) = (line.split()[-1] for line in self.gateway.log if " HTTP on " in line)
        return url

    def start_drafter(self, kind: str, *flags: str) -> None:
        self.stop_drafter()
        self.drafter = Process(
            "drafter_service",
            f"--port={self.drafter_port}",
            f"--drafter={kind}",
            *flags,
            env=self.env,
        )
        self.drafter.address()

    def measured(self) -> dict[str, int]:
        """The metrics ports by service, of a stack that was opened with `metrics_env`."""
        env = self.env or {}
        return {
            service.lower(): int(env[f"PACELINE_{service}_METRICS_PORT"])
            for service in ("GATEWAY", "VERIFIER", "DRAFTER")
        }

    def stop_drafter(self) -> None:
        if self.drafter is not None:
            self.drafter.close()
            self.drafter = None

    def status(self) -> verifier_pb2.GetStatusResponse:
        with grpc.insecure_channel(self.verifier_address) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            return stub.GetStatus(verifier_pb2.GetStatusRequest())

    def close(self) -> None:
        for process in (self.drafter, self.gateway, self.verifier):
            if process is not None:
                process.close()


@contextlib.contextmanager
def stack(model: str, *, env: dict[str, str] | None = None, **settings: object) -> Iterator[Stack]:
    opened = Stack(model, env=env, **settings)
    try:
        opened.open()
        yield opened
    finally:
        opened.close()


def wait_until(condition, timeout_s: float = 20.0, what: str = "") -> None:
    """Polls until it holds. Fails after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in {timeout_s} s: {what}"
        time.sleep(0.02)
