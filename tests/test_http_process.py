"""The HTTP door of a gateway process: where it listens, and what SIGTERM does to a stream."""

import asyncio
import signal
import socket
import subprocess
import sys

import httpx
from fakes import DEADLINE_S, served
from http_door import HELLO, TEXT, fake_verifier
from test_gateway_process import ROOT, START_S, started


async def http_url(process: asyncio.subprocess.Process) -> str:
    while b"HTTP on " not in (line := await process.stderr.readline()):
        assert line
    return line.decode().split()[-1]


async def test_sigterm_lets_a_stream_finish_and_takes_no_more():
    fake = fake_verifier()
    fake.pause_before = 2
    async with served(fake) as (address, _):
        process = await started(f"--verifier={address}", "--http-port=0")
        try:
            async with asyncio.timeout(START_S):
                url = await http_url(process)
                assert (await process.stdout.readline()).startswith(b"READY gateway ")
                async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                    body = {"messages": HELLO, "stream": True}
                    chat = "/v1/chat/completions"
                    async with http.stream("POST", chat, json=body) as response:
                        lines = response.aiter_lines()
                        await anext(lines)
                        process.send_signal(signal.SIGTERM)
                        while (await http.get("/health")).status_code != 503:
                            await asyncio.sleep(0.01)
                        refused = await http.post(chat, json=body)
                        fake.released.set()
                        rest = [line async for line in lines]
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert refused.status_code == 503
    assert rest[-2:] == ["data: [DONE]", ""]
    assert '"finish_reason":"stop"' in rest[-4]
    assert process.returncode == 0
    assert out == b""
    assert b"Traceback" not in err
    assert TEXT.encode() not in err


def test_a_port_that_is_not_loopback_or_is_taken_ends_the_process():
    def run(*flags: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", "--port=0", *flags],
            cwd=ROOT,
            capture_output=True,
            timeout=4 * DEADLINE_S,
        )

    exposed = run("--http-host=0.0.0.0")
    assert exposed.returncode == 1
    assert b"--insecure" in exposed.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(f"--http-port={port}")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}".encode() in done.stderr
