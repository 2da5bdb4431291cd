"""`paceline up` and `paceline down` with small scripts in the place of the services."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes_gateway import DEADLINE_S, free_port
from typer.testing import CliRunner

from paceline.cli import main, run_folder
from paceline.cli.processes import Spec
from paceline.cli.supervisor import supervise

# A service: says READY, notes in a journal what happens to it, and drains on SIGTERM.
SERVICE = """
import os, signal, sys, time
name, journal, behaviour, *arguments = sys.argv[1:]
def note(event):
    with open(journal, "a") as file:
        file.write(f"{name} {event} {os.getpid()}\\n")
def drain(*_):
    note("drained")
    sys.exit(0)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, drain)
note("started " + ",".join(arguments))
print("a line of the log", file=sys.stderr, flush=True)
if behaviour == "fails":
    print("no such model", file=sys.stderr)
    sys.exit(3)
if behaviour != "never ready":
    print("something else")
    print("READY", name, f"{name}.test:1", flush=True)
time.sleep(60)
"""

ORDER = ("drafter", "verifier", "gateway")


class Journal:
    """What the services noted, as (name, event, pid)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[tuple[str, str, int]]:
        if not self.path.exists():
            return []
        lines = [line.rsplit(" ", 1) for line in self.path.read_text().splitlines()]
        return [(*said.split(" ", 1), int(pid)) for said, pid in lines]  # type: ignore[misc]

    def events(self) -> list[str]:
        return [f"{name} {event}".strip() for name, event, _ in self.entries()]

    def pids(self, name: str) -> list[int]:
        return [
            pid for who, event, pid in self.entries() if who == name and event.startswith("started")
        ]

    async def shows(self, event: str, count: int = 1) -> None:
        await until(lambda: self.events().count(event) >= count, f"{count} x {event!r}")


class Heard:
    """A narrator that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.failures: list[tuple[str, str]] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def failed(self, line: str, log: Path) -> None:
        self.failures.append((line, log.read_text()))

    @contextlib.asynccontextmanager
    async def waiting(self, name: str, log: Path) -> AsyncIterator[None]:
        yield


class Up:
    """A running `supervise` over the scripts."""

    def __init__(self, folder: Path, **behaviours: str) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal")
        self.heard = Heard()
        self.ready: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        script = folder / "service.py"
        script.write_text(SERVICE)
        specs = [
            Spec(name, self._command(script, name, behaviours), restarts=name == "drafter")
            for name in ORDER
        ]
        self.task = asyncio.create_task(
            supervise(
                specs,
                folder,
                self.heard,
                lambda addresses: self.ready.set_result(dict(addresses)),
                drain_s=5.0,
                first_pause_s=0.01,
            )
        )

    def _command(
        self, script: Path, name: str, behaviours: dict[str, str]
    ) -> Callable[[Mapping[str, str]], list[str]]:
        return lambda addresses: [
            *(sys.executable, str(script), name, str(self.journal.path)),
            *(behaviours.get(name, "serves"), *addresses.values()),
        ]

    async def code(self) -> int:
        return await asyncio.wait_for(self.task, DEADLINE_S)


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        # A zombie that nobody has waited for yet does not run.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(**behaviours: str) -> Up:
        started.append(Up(tmp_path, **behaviours))
        return started[-1]

    yield start
    for up in started:
        up.task.cancel()
        await asyncio.wait([up.task])
        left = [pid for _, _, pid in up.journal.entries() if runs(pid)]
        assert not left, "processes outlive supervise"


async def test_services_start_in_order_and_know_those_before_them(start: Callable[..., Up]):
    up = start()
    assert await up.ready == {name: f"{name}.test:1" for name in ORDER}
    assert up.journal.events() == [
        "drafter started",
        "verifier started drafter.test:1",
        "gateway started drafter.test:1,verifier.test:1",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_gateway_then_verifier_then_drafter(
    start: Callable[..., Up], number: int
):
    up = start()
    await up.ready
    os.kill(os.getpid(), number)
    assert await up.code() == 0
    assert up.journal.events()[3:] == ["gateway drained", "verifier drained", "drafter drained"]
    assert not up.heard.failures


async def test_a_second_signal_kills_what_does_not_drain(start: Callable[..., Up]):
    up = start(gateway="deaf")
    await up.ready
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    began = time.monotonic()
    assert await up.code() == 0
    assert time.monotonic() - began < 4.0, "waited for the drain"


async def test_a_signal_during_the_start_ends_what_has_started(start: Callable[..., Up]):
    up = start(verifier="never ready")
    await up.journal.shows("verifier started drafter.test:1")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await up.code() == 0
    assert up.journal.events()[2:] == ["verifier drained", "drafter drained"]


async def test_a_failed_start_tells_the_log_and_stops_the_rest(start: Callable[..., Up]):
    up = start(verifier="fails")
    assert await up.code() == 1
    ((line, log),) = up.heard.failures
    assert line == "verifier ended before it was ready (exit code 3)"
    assert log == "a line of the log\nno such model\n"
    assert up.journal.events()[2:] == ["drafter drained"]


@pytest.mark.parametrize("name", ["gateway", "verifier"])
async def test_the_end_of_gateway_or_verifier_ends_up(start: Callable[..., Up], name: str):
    up = start()
    await up.ready
    os.kill(up.journal.pids(name)[0], signal.SIGKILL)
    assert await up.code() == 1
    assert [line for line, _ in up.heard.failures] == [f"{name} ended (signal 9)"]
    drained = [event for event in up.journal.events() if event.endswith("drained")]
    assert drained == [f"{other} drained" for other in reversed(ORDER) if other != name]


async def test_a_drafter_that_dies_is_started_again_each_time_later(start: Callable[..., Up]):
    up = start()
    await up.ready
    for count in (1, 2):
        os.kill(up.journal.pids("drafter")[-1], signal.SIGKILL)
        await until(
            lambda count=count: up.heard.notes.count("drafter is ready again") == count, "again"
        )
    assert [note for note in up.heard.notes if "ended" in note] == [
        "drafter ended (signal 9); starting it again in 0.01 s",
        "drafter ended (signal 9); starting it again in 0.02 s",
    ]
    # It keeps its address, which the verifier knows, and its log.
    again = f"drafter started {','.join(f'{name}.test:1' for name in ORDER)}"
    assert up.journal.events().count(again) == 2
    assert (up.folder / "drafter.log").read_text() == "a line of the log\n" * 3
    os.kill(os.getpid(), signal.SIGTERM)
    assert await up.code() == 0
    assert up.journal.events()[-1] == "drafter drained"


# The whole command, with a package of fake services in the way of the real ones.

MODULE = """
import json, os, signal, sys, time
with open(os.environ["JOURNAL"], "a") as file:
    print(json.dumps([NAME, os.getpid(), sys.argv[1:]]), file=file)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = sys.argv[sys.argv.index("--port") + 1]
assert "PACELINE_GATEWAY" not in os.environ
print("READY", NAME, "127.0.0.1:" + port, flush=True)
time.sleep(60)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    services = {"gateway": "gateway", "verifier": "verifier_service", "drafter": "drafter_service"}
    for name, module in services.items():
        folder = tmp_path / "services" / module
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "__main__.py").write_text(f"NAME = {name!r}\n{MODULE}")
    inherited = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "services"), *filter(None, [inherited])]),
        "JOURNAL": str(tmp_path / "journal"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PACELINE_GATEWAY": "127.0.0.1:1",
    }


@pytest.fixture
def command(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def command(*arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "paceline.cli.main", *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield command
    for process in started:
        with process:
            process.kill()


def started_services(environment: dict[str, str]) -> dict[str, tuple[int, list[str]]]:
    lines = Path(environment["JOURNAL"]).read_text().splitlines()
    return {name: (pid, arguments) for name, pid, arguments in map(json.loads, lines)}


def free_ports_in_a_row(count: int) -> int:
    """The first of so many ports that nobody listens on."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port))
            return first


async def test_up_prints_one_ready_line_and_down_ends_it(
    command: Callable[..., subprocess.Popen[str]], environment: dict[str, str]
):
    gateway, http, verifier, drafter = (str(free_port()) for _ in range(4))
    ports = ("--gateway-port", gateway, "--verifier-port", verifier, "--drafter-port", drafter)
    scraped = free_ports_in_a_row(3)
    ports += ("--metrics-port", str(scraped), "--http-port", http)
    up = command("up", *ports, "--model", "target", "--max-draft-tokens", "5")
    assert up.stdout is not None
    assert up.stdout.readline() == (
        f"READY gateway=127.0.0.1:{gateway} http=http://127.0.0.1:{http} "
        f"verifier=127.0.0.1:{verifier} drafter=127.0.0.1:{drafter}\n"
    )
    again = command("up", *ports)
    assert again.communicate(timeout=DEADLINE_S)[1] == (
        f"paceline: already running as process {up.pid}; end it with: paceline down\n"
    )
    assert again.returncode == 1
    down = command("down")
    assert down.communicate(timeout=DEADLINE_S)[0] == (
        f"process {up.pid} and its services have ended\n"
    )
    assert down.returncode == 0
    assert up.wait(DEADLINE_S) == 0
    assert up.stdout.read() == ""
    assert {name: arguments for name, (_, arguments) in started_services(environment).items()} == {
        "drafter": [
            *("--port", drafter, "--metrics-port", str(scraped + 1)),
            *("--drafter", "lookup", "--max-draft-tokens", "5"),
        ],
        "verifier": [
            *("--port", verifier, "--metrics-port", str(scraped + 2)),
            *("--model", "target", "--numerics", "exact"),
            *("--drafter", f"127.0.0.1:{drafter}", "--max-draft-tokens", "5"),
        ],
        "gateway": [
            *("--port", gateway, "--metrics-port", str(scraped), "--http-port", http),
            *("--verifier", f"127.0.0.1:{verifier}"),
        ],
    }


def test_lookahead_needs_no_drafter(
    command: Callable[..., subprocess.Popen[str]], environment: dict[str, str]
):
    ports = ("--gateway-port", "0", "--verifier-port", "0")
    up = command("up", "--drafter", "lookahead", *ports)
    assert up.stdout is not None
    assert up.stdout.readline().endswith(" drafter=none\n")
    services = started_services(environment)
    assert set(services) == {"verifier", "gateway"}
    _, arguments = services["verifier"]
    assert arguments[-2:] == ["--local-sources", "lookahead"]
    up.terminate()
    assert up.wait(timeout=DEADLINE_S) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
async def test_no_service_outlives_a_killed_up(
    command: Callable[..., subprocess.Popen[str]], environment: dict[str, str]
):
    ports = ("--gateway-port", "0", "--verifier-port", "0", "--metrics-port", "0")
    up = command("up", "--drafter", "none", *ports)
    assert up.stdout is not None
    assert up.stdout.readline().endswith(" drafter=none\n")
    pids = [pid for pid, _ in started_services(environment).values()]
    assert len(pids) == 2 and all(runs(pid) for pid in pids)
    # Each in a session of its own: a terminal's Ctrl-C reaches `up` alone, which drains in order.
    assert [os.getsid(pid) for pid in pids] == pids
    up.kill()
    await until(lambda: not any(runs(pid) for pid in pids), "the services' end")


def test_a_port_in_use_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], tmp_path: Path
):
    monkeypatch.setenv("JOURNAL", environment["JOURNAL"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(
            main.app,
            [
                *("up", "--verifier-port", port, "--run-dir", str(tmp_path / "run")),
                *("--gateway-port", "0", "--metrics-port", "0"),
            ],
        )
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--verifier-port" in done.stderr
    assert done.stdout == ""
    assert not Path(environment["JOURNAL"]).exists()


def test_down_without_up_says_so_and_trusts_no_stale_pid(tmp_path: Path):
    done = CliRunner().invoke(main.app, ["down", "--run-dir", str(tmp_path / "none")])
    assert (done.exit_code, done.stdout) == (0, "nothing runs\n")
    with run_folder.lock(tmp_path):
        assert run_folder.holder(tmp_path) == os.getpid()
    # The file still names this process; without the lock it means nothing.
    assert (tmp_path / "up.pid").read_text() == str(os.getpid())
    done = CliRunner().invoke(main.app, ["down", "--run-dir", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "nothing runs\n")
