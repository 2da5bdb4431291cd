"""llama.cpp as a peer: its llama-batched-bench, run anew for each figure. BINARY MODEL THREADS

That program makes up the tokens; the prompts' lengths are ours.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from peer_protocol import Rate, serve


def open_peer() -> Rate:
    binary, model, threads = sys.argv[1:]

    def rate(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        length = sum(map(len, prompts)) // len(prompts)
        context = (length + num_tokens) * len(prompts) + 64
        command = [binary, "-m", model, "-t", threads, "-c", str(context)]
        command += ["-npp", str(length), "-ntg", str(num_tokens), "-npl", str(len(prompts))]
        command += ["--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"{binary} failed: {done.stderr[-300:]}")
        return float(json.loads(lines[-1])["speed_tg"])

    return rate


if __name__ == "__main__":
    serve(open_peer)
