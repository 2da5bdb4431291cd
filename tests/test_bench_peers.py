"""Other engines beside ours in a benchmark: their processes answer, or say what they lack."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import peers

STAND_IN = """
from peer_protocol import serve
print("a library's chatter")
serve(lambda: lambda prompts, num_tokens: float(len(prompts) * 100 + num_tokens))
"""


def test_a_peer_answers_in_tokens_per_second():
    with peers.opened({"stand-in": [sys.executable, "-c", STAND_IN]}) as (peer,):
        assert peer.rate([[1, 2, 3]], 48) == 148.0
        assert peer.rate([[1], [2], [3]], 16) == 316.0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            [sys.executable, "-S", "peer_openvino.py", "model.gguf", "2"],
            "stand-in: ModuleNotFoundError: No module named 'openvino'",
        ),
        (
            [sys.executable, "-S", "peer_vllm.py", "model", "2"],
            "stand-in: ModuleNotFoundError: No module named 'vllm'",
        ),
        (
            [sys.executable, "peer_llama_cpp.py", "/nowhere/llama-batched-bench", "m.gguf", "2"],
            "stand-in: FileNotFoundError: .*/nowhere/llama-batched-bench",
        ),
        (["/nowhere/python"], "stand-in: /nowhere/python: No such file or directory"),
        ([sys.executable, "-c", "pass"], "stand-in: its process has ended"),
    ],
)
def test_an_environment_without_it_is_a_clear_error(command, message):
    with (
        pytest.raises(peers.PeerError, match=message),
        peers.opened({"stand-in": command}),
    ):
        pass


def test_only_the_engines_that_are_named_are_started():
    named = dict.fromkeys(("openvino", "vllm", "llama_cpp"))
    given = {"gguf": "m.gguf", "folder": "m", "threads": 2}
    assert peers.commands(**named, **given) == {}
    found = peers.commands(**{**named, "openvino": "python"}, **given)
    assert found == {"OpenVINO GenAI": ["python", "peer_openvino.py", "m.gguf", "2"]}
