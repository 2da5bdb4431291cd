"""Other engines in environments of their own, each a process that answers with its speed.

Knows nothing of our services; what such a process runs is in peer_*.py.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


class PeerError(RuntimeError):
    """A peer's environment lacks something, or its process ended; the text says which."""


class Peer:
    """A running peer."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name = name
        self._process = process
        self._answer()

    def rate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Tokens per second of all prompts together, after the first. Raises PeerError."""
        asked = {"prompts": [list(prompt) for prompt in prompts], "num_tokens": num_tokens}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self.name}: its process has ended") from None
        return float(self._answer()["tokens_per_s"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer


@contextmanager
def opened(commands: dict[str, list[str]]) -> Iterator[list[Peer]]:
    """The peers of `command`'s lines, all ready. Raises PeerError."""
    with ExitStack() as stack:
        found = []
        for name, command in commands.items():
            print(f"starting {name}", file=sys.stderr)
            found.append(stack.enter_context(_started(name, command)))
        yield found


@contextmanager
def _started(name: str, command: list[str]) -> Iterator[Peer]:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_HERE
        )
    except OSError as error:
        raise PeerError(f"{name}: {command[0]}: {error.strerror}") from None
    with process:
        try:
            yield Peer(name, process)
        finally:
            process.terminate()


def commands(
    *,
    openvino: str | None,
    vllm: str | None,
    llama_cpp: str | None,
    gguf: str,
    folder: str,
    threads: int,
) -> dict[str, list[str]]:
    """How to start the peers whose environments are named.

    openvino, vllm: a Python with the package; llama_cpp: its program llama-batched-bench.
    """
    found = {}
    if openvino:
        found["OpenVINO GenAI"] = [openvino, "peer_openvino.py", gguf, str(threads)]
    if vllm:
        found["vLLM CPU"] = [vllm, "peer_vllm.py", folder, str(threads)]
    if llama_cpp:
        found["llama.cpp"] = [sys.executable, "peer_llama_cpp.py", llama_cpp, gguf, str(threads)]
    return found
