"""OpenVINO GenAI as a peer: run by a Python that has openvino-genai. MODEL THREADS"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from peer_protocol import Rate, serve, timed


def open_peer() -> Rate:
    model, threads = sys.argv[1:]
    ov: Any = importlib.import_module("openvino")
    np: Any = importlib.import_module("numpy")
    genai: Any = importlib.import_module("openvino_genai")
    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=int(threads))

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        longest = max(map(len, prompts))
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = num_tokens, True
        pipe.generate(genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(mask)), config)

    return timed(generate)


if __name__ == "__main__":
    serve(open_peer)
