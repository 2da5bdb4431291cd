"""What a peer's process answers, in its own environment: standard library only.

One JSON line in, one out: {"prompts": [[token ids]], "num_tokens": n} is answered by
{"tokens_per_s": all prompts' new tokens after the first, together}. The first line out says
{"ready": true}, or {"error": text} for whatever the environment lacks.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

# Greedy, exactly so many new tokens for each prompt, all prompts at once.
Generate = Callable[[Sequence[Sequence[int]], int], object]
Rate = Callable[[Sequence[Sequence[int]], int], float]


def serve(open_peer: Callable[[], Rate]) -> None:
    """Answers until standard input ends."""
    # Libraries write what they like to standard output; the answers go where it went.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(document: dict[str, object]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        rate = open_peer()
        rate([[1, 2, 3]], 2)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        say({"tokens_per_s": rate(asked["prompts"], asked["num_tokens"])})


def timed(generate: Generate) -> Rate:
    """Tokens per second after the first: the time of one token is taken off."""

    def rate(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        seconds = []
        for count in (1, num_tokens + 1):
            start = time.perf_counter()
            generate(prompts, count)
            seconds.append(time.perf_counter() - start)
        return num_tokens * len(prompts) / (seconds[1] - seconds[0])

    return rate
