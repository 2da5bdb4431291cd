"""make test-faults: real processes are killed, frozen and restarted while they answer.

What is counted: client errors, tokens lost, tokens repeated, answers that differ from an
undisturbed run. Every fault is verified to have taken effect.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from processes import Process, free_port, wait_until
from tiny import save_tiny_llama

from paceline.client import GatewayClient
from paceline.events import Delta, Finished, Request
from paceline.params import SamplingParams
from paceline.v1 import verifier_pb2, verifier_pb2_grpc

pytestmark = pytest.mark.faults

NUM_KILLS = 10
# Long enough that a verifier is still at it when the client has read the half.
NUM_TOKENS = 400
ANSWER_S = 60.0


class Fleet:
    """Verifiers with the tiny model, a drafter, and gateways in front, each on a port it keeps."""

    def __init__(self, model: Path, num_verifiers: int = 2, num_gateways: int = 1) -> None:
        self._model = model
        self._ports: dict[str, int] = {}
        self.processes: dict[str, Process] = {}
        self.verifiers = [f"verifier{index}" for index in range(num_verifiers)]
        self.gateways = [f"gateway{index}" for index in range(num_gateways)]
        for name in ("drafter", *self.verifiers, *self.gateways):
            self._ports[name] = free_port()

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    def start(self, *names: str) -> None:
        """Starts them together and waits until all are ready."""
        for name in names:
            if name in self.processes:
                self.processes[name].close()
            self.processes[name] = Process(*self._command(name))
        for name in names:
            self.processes[name].address()

    def start_all(self) -> None:
        self.start("drafter", *self.verifiers)
        self.start(*self.gateways)

    def _command(self, name: str) -> list[str]:
        port = f"--port={self._ports[name]}"
        if name == "drafter":
            return ["drafter_service", port, "--drafter=lookup"]
        if name in self.verifiers:
            drafter = f"--drafter={self.address('drafter')}"
            return [
                "verifier_service",
                port,
                f"--model={self._model}",
                "--dtype=float32",
                "--threads=1",
                drafter,
            ]
        return ["gateway", port, *(f"--verifier={self.address(v)}" for v in self.verifiers)]

    def busy_verifier(self) -> str | None:
        """The one that decodes now."""
        for name in self.verifiers:
            with (
                contextlib.suppress(grpc.RpcError),
                grpc.insecure_channel(self.address(name)) as channel,
            ):
                stub = verifier_pb2_grpc.VerifierServiceStub(channel)
                if stub.GetStatus(verifier_pb2.GetStatusRequest(), timeout=1.0).num_running:
                    return name
        return None

    def num_live(self) -> int:
        live = 0
        for name in self.verifiers:
            with grpc.insecure_channel(self.address(name)) as channel:
                stub = verifier_pb2_grpc.VerifierServiceStub(channel)
                status = stub.GetStatus(verifier_pb2.GetStatusRequest(), timeout=5.0)
                live += status.num_running + status.num_waiting
        return live

    def wait_for_log(self, gateway: str, text: str, num: int) -> None:
        log = self.processes[gateway].log
        wait_until(lambda: sum(text in line for line in log) >= num, 30.0, text)

    def close(self) -> None:
        for process in self.processes.values():
            process.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def fleet(model: Path) -> Iterator[Fleet]:
    fleet = Fleet(model, num_gateways=2)
    try:
        fleet.start_all()
        yield fleet
    finally:
        fleet.close()


def request(number: int, num_tokens: int = NUM_TOKENS) -> Request:
    temperature = 0.0 if number % 2 else 0.9
    return Request(
        f"Answer number {number}: one two three, one two three, one two",
        SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True),
        seed=number,
    )


async def ask(
    client: GatewayClient, wanted: Request, on_tokens: Callable[[int], None] = lambda _: None
) -> tuple[list[int], Finished]:
    """(token ids, finished); `on_tokens` is told how many there are after every delta."""
    token_ids: list[int] = []
    async with asyncio.timeout(ANSWER_S):
        async for event in client.generate(wanted):
            if isinstance(event, Delta):
                token_ids += event.token_ids
                on_tokens(len(token_ids))
    assert isinstance(event, Finished)
    assert event.num_completion_tokens == len(token_ids)
    return token_ids, event


async def undisturbed(client: GatewayClient, wanted: list[Request]) -> list[list[int]]:
    return [(await ask(client, one))[0] for one in wanted]


class Killer:
    """Kills the verifier of an answer once the client has read `kill_at` of its tokens."""

    def __init__(self, fleet: Fleet, kill_at: int) -> None:
        self._fleet = fleet
        self._kill_at = kill_at
        self.victim: str | None = None
        self._is_done = False
        self.times: list[float] = []

    def see(self, num_tokens: int) -> None:
        self.victim = self.victim or self._fleet.busy_verifier()
        if num_tokens >= self._kill_at and self.victim and not self._is_done:
            self._fleet.processes[self.victim].kill()
            self._is_done = True
        self.times.append(time.monotonic())


async def test_kill_9_of_the_verifier_at_random_moments(fleet: Fleet):
    chance = random.Random(7)
    wanted = [request(number) for number in range(NUM_KILLS)]
    async with GatewayClient(fleet.address("gateway0")) as client:
        expected = await undisturbed(client, wanted)
        identical, stalls_s = 0, []
        for one, ids in zip(wanted, expected, strict=True):
            killer = Killer(fleet, kill_at=chance.randrange(1, NUM_TOKENS // 2))
            got, finished = await ask(client, one, killer.see)
            assert killer.victim and finished.num_failovers == 1, "the fault did not take effect"
            identical += got == ids
            stalls_s.append(max(b - a for a, b in itertools.pairwise(killer.times)))
            fleet.start(killer.victim)
            await wait_ready(fleet)
    print(
        f"\nkill -9 of the verifier: {NUM_KILLS} answers, 0 client errors, "
        f"{identical} identical, longest stall {max(stalls_s):.2f} s"
    )
    assert identical == NUM_KILLS


async def wait_ready(fleet: Fleet) -> None:
    """Until gateway0 has found every verifier again."""
    log = fleet.processes["gateway0"].log

    def ready() -> bool:
        state: dict[str, bool] = {}
        for line in log:
            for name in fleet.verifiers:
                if f"verifier {fleet.address(name)}: " in line:
                    state[name] = "ready with" in line or (
                        state.get(name, False) and "lost" not in line
                    )
        return all(state.get(name, False) for name in fleet.verifiers)

    await asyncio.to_thread(wait_until, ready, 30.0, "the gateway finds every verifier")


async def test_sigstop_of_the_verifier_is_noticed_and_what_it_says_later_is_fenced(fleet: Fleet):
    wanted = request(100)
    async with GatewayClient(fleet.address("gateway0")) as client:
        (expected,) = await undisturbed(client, [wanted])
        frozen: list[str] = []
        times: list[float] = []

        def freeze(num_tokens: int) -> None:
            times.append(time.monotonic())
            if num_tokens >= 40 and not frozen and (name := fleet.busy_verifier()):
                fleet.processes[name].freeze()
                frozen.append(name)
                times[-1] = time.monotonic()

        got, finished = await ask(client, wanted, freeze)
        stall_s = max(b - a for a, b in itertools.pairwise(times))
        assert frozen and finished.num_failovers == 1, "the fault did not take effect"
        assert got == expected
        fleet.processes[frozen[0]].thaw()
        await wait_ready(fleet)
        await asyncio.to_thread(wait_until, lambda: fleet.num_live() == 0, 10.0, "no live sequence")
        assert (await ask(client, wanted))[0] == expected
    print(f"\nSIGSTOP of the verifier: noticed and resumed in {stall_s:.2f} s, identical")
    assert stall_s <= 3.0


async def test_kill_9_of_the_gateway(fleet: Fleet):
    wanted = request(200)
    addresses = [fleet.address(name) for name in fleet.gateways]
    async with GatewayClient(*addresses) as client:
        (expected,) = await undisturbed(client, [wanted])
        times: list[float] = []

        def kill(num_tokens: int) -> None:
            times.append(time.monotonic())
            gateway = fleet.processes["gateway0"]
            if num_tokens >= 50 and gateway.process.poll() is None:
                gateway.kill()
                times[-1] = time.monotonic()

        got, finished = await ask(client, wanted, kill)
        assert client.address == addresses[1]
    stall_s = max(b - a for a, b in itertools.pairwise(times))
    print(f"\nkill -9 of the gateway: resumed at another in {stall_s:.2f} s, identical")
    assert finished.num_failovers == 1
    assert got == expected
    fleet.start("gateway0")
    await asyncio.to_thread(wait_until, lambda: fleet.num_live() == 0, 10.0, "no live sequence")


async def test_sigstop_of_the_gateway_is_noticed_by_the_client(fleet: Fleet):
    wanted = request(250)
    addresses = [fleet.address(name) for name in fleet.gateways]
    gateway = fleet.processes["gateway0"]
    async with GatewayClient(*addresses) as client:
        (expected,) = await undisturbed(client, [wanted])
        times: list[float] = []

        def freeze(num_tokens: int) -> None:
            times.append(time.monotonic())
            if num_tokens >= 50 and not gateway.is_frozen:
                gateway.freeze()
                times[-1] = time.monotonic()

        got, finished = await ask(client, wanted, freeze)
        assert client.address == addresses[1], "the fault did not take effect"
    gateway.thaw()
    stall_s = max(b - a for a, b in itertools.pairwise(times))
    print(f"\nSIGSTOP of the gateway: resumed at another in {stall_s:.2f} s, identical")
    assert finished.num_failovers == 1
    assert got == expected
    assert stall_s <= 3.0
    await asyncio.to_thread(wait_until, lambda: fleet.num_live() == 0, 10.0, "no live sequence")


@contextlib.asynccontextmanager
async def load(
    client: GatewayClient, wanted: list[Request], expected: list[list[int]], num_callers: int
) -> AsyncIterator[list[bool]]:
    """Callers that ask without a pause; whether each answer was the expected one."""
    outcomes: list[bool] = []
    stop = asyncio.Event()

    async def call(caller: int) -> None:
        number = caller
        while not stop.is_set():
            index = number % len(wanted)
            got, _ = await ask(client, wanted[index])
            outcomes.append(got == expected[index])
            number += num_callers

    async with asyncio.TaskGroup() as group:
        for caller in range(num_callers):
            group.create_task(call(caller))
        try:
            yield outcomes
        finally:
            stop.set()


async def test_a_rolling_restart_of_every_process_under_load_fails_nothing(fleet: Fleet):
    wanted = [request(number, 48) for number in range(300, 308)]
    addresses = [fleet.address(name) for name in fleet.gateways]
    async with GatewayClient(*addresses) as client:
        expected = await undisturbed(client, wanted)
        async with load(client, wanted, expected, num_callers=3) as outcomes:
            for name in ("drafter", *fleet.verifiers, *fleet.gateways):
                before = len(outcomes)
                process = fleet.processes[name]
                assert await asyncio.to_thread(process.stop) == 0
                await asyncio.to_thread(fleet.start, name)
                await wait_ready(fleet)
                await asyncio.to_thread(
                    wait_until, lambda before=before: len(outcomes) > before, 30.0, "answers go on"
                )
    print(f"\nrolling restart of 5 processes: {len(outcomes)} answers, 0 failed, all identical")
    assert all(outcomes)
