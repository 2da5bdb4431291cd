"""vLLM's CPU build as a peer: run by a Python that has it. MODEL THREADS"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from peer_protocol import Rate, serve, timed


def open_peer() -> Rate:
    model, threads = sys.argv[1:]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{int(threads) - 1}")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=model, dtype="bfloat16", max_model_len=2048, enable_prefix_caching=False
    )

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=num_tokens, min_tokens=num_tokens, ignore_eos=True
        )
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        engine.generate(asked, params, use_tqdm=False)

    return timed(generate)


if __name__ == "__main__":
    serve(open_peer)
