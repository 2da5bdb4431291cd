"""python -m gateway: one line when ready, a clean exit, and flags that are checked."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import FakeVerifier, gateway_for, ids_of, served

from gateway.config import GatewaySettings
from paceline.server import open_channel
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

ROOT = Path(__file__).parents[1]
START_S = 20.0


async def started(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "--port=0",
        *flags,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_ready_is_said_once_and_sigterm_lets_answers_finish():
    fake = FakeVerifier([ids_of("a"), ids_of("b")])
    fake.pause_before = 2
    async with served(fake) as (address, _):
        process = await started(f"--verifier={address}")
        try:
            async with asyncio.timeout(START_S):
                ready = (await process.stdout.readline()).decode().split()
                assert ready[:2] == ["READY", "gateway"]
                async with open_channel(ready[2]) as channel:
                    stub = gateway_pb2_grpc.GatewayServiceStub(channel)
                    call = stub.Generate(gateway_pb2.GenerateRequest(text="a"))
                    await call.read()
                    await call.read()
                    process.send_signal(signal.SIGTERM)
                    fake.released.set()
                    kinds = [r.WhichOneof("response") async for r in rest(call)]
                    assert kinds == ["delta", "finished"]
                    out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0
    assert out == b""
    assert b"Traceback" not in err


async def rest(call):
    while response := await call.read():
        yield response


async def test_sigterm_ends_a_gateway_that_never_found_a_verifier():
    process = await started("--verifier=127.0.0.1:1")
    try:
        async with asyncio.timeout(START_S):
            while b"listening" not in (await process.stderr.readline()):
                pass
            process.send_signal(signal.SIGTERM)
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert out == b""
    assert b"Traceback" not in err


def test_a_port_beyond_loopback_needs_insecure():
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "--host=0.0.0.0"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 1
    assert b"--insecure" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [["--max-requests=0"], ["--session-ttl-s=0"], ["--trace-rounds=some"], ["--unknown=1"]],
)
def test_a_bad_flag_ends_the_process_by_name(flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        GatewaySettings.load(flags)
    assert stopped.value.code == 2
    assert flags[0].split("=")[0].lstrip("-").replace("-", "_") in capsys.readouterr().err.replace(
        "-", "_"
    )


def test_verifiers_may_be_repeated_or_listed():
    assert GatewaySettings.load([]).verifier == ["127.0.0.1:7002"]
    assert GatewaySettings.load(["--verifier=a:1", "--verifier=b:2"]).verifier == ["a:1", "b:2"]
    assert GatewaySettings.load(["--verifier=a:1,b:2"]).verifier == ["a:1", "b:2"]


async def test_reflection_can_be_left_out():
    async with gateway_for("127.0.0.1:1", reflection=False) as (gateway, _):
        assert gateway.address.startswith("127.0.0.1:")


def test_the_gateway_loads_no_model_library():
    code = (
        "import sys, gateway.__main__; "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"
