"""The README's code for chatbots works as it stands, but for the port."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import save_tiny_llama

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
START_S = 120
ANYWHERE = ("--gateway-port=0", "--verifier-port=0", "--drafter-port=0", "--metrics-port=0")


def snippet() -> str:
    """The first block of Python under "From your chatbot"."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## From your chatbot")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


def test_the_code_for_a_chatbot_streams_an_answer(tmp_path: Path):
    model = save_tiny_llama(tmp_path / "tiny")
    env = os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "paceline.cli.main", "up", f"--model={model}", *ANYWHERE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as up:
        try:
            assert up.stdout is not None
            ready = next(line for line in up.stdout if line.startswith("READY"))
            addresses = dict(part.split("=") for part in ready.split()[1:])
            code = snippet()
            assert code.count("http://127.0.0.1:8000/v1") == 1
            code = code.replace("http://127.0.0.1:8000", addresses["http"])
            said = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=START_S
            )
        finally:
            up.send_signal(signal.SIGINT)
    assert said.returncode == 0, said.stderr
    assert said.stdout
