"""`python -m drafter_service` as a process: ready, draining, and what it loads."""

import signal
import subprocess
import sys

import grpc
import pytest
from drafter_fakes import Verifier, attach, hello

from drafter_service.config import DrafterSettings
from drafter_service.drafters import open_drafter
from paceline.v1 import drafter_pb2 as pb


@pytest.mark.parametrize("kind", ["lookup", "random"])
async def test_it_says_ready_serves_and_exits_with_0_on_sigterm(kind: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "drafter_service", "--port", "0", "--drafter", kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            assert ready[:2] == ["READY", "drafter"]
            async with grpc.aio.insecure_channel(ready[2]) as channel:
                verifier = Verifier(channel)
                await verifier.send(hello=hello())
                assert (await verifier.receive()).welcome.drafter
                await verifier.update(attaches=[attach(1, [1, 2, 1, 2])])
                assert await verifier.blocks()
                process.send_signal(signal.SIGTERM)
                assert (await verifier.receive()).WhichOneof("response") == "drain"
                await verifier.send(end=pb.EndOfStream())
            rest, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0
    assert rest == ""
    assert "Traceback" not in errors


def test_without_a_draft_model_torch_is_not_loaded() -> None:
    loaded = "import drafter_service.__main__, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


@pytest.mark.parametrize(("kind", "name"), [("lookup", "prompt-lookup"), ("random", "random")])
def test_the_settings_name_the_drafter(kind: str, name: str) -> None:
    settings = DrafterSettings.load(["--drafter", kind])
    assert open_drafter(settings).name == name


def test_the_defaults_are_a_prompt_lookup_on_port_7001() -> None:
    settings = DrafterSettings.load([])
    assert (settings.port, settings.drafter) == (7001, "lookup")


def test_an_unknown_drafter_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        DrafterSettings.load(["--drafter", "oracle"])
    assert "drafter" in capsys.readouterr().err
