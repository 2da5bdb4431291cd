"""transformers as the other side of a benchmark: its own `generate`, plain and assisted."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging


class Transformers:
    """transformers' own `generate` on the same weights."""

    def __init__(self, folder: Path) -> None:
        transformers_logging.set_verbosity_error()
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def rate(self, prompt: Sequence[int], num_tokens: int, **how: Any) -> float:
        """Tokens per second after the first."""
        seconds = []
        for count in (1, num_tokens + 1):
            start = time.perf_counter()
            self._model.generate(
                torch.tensor([prompt]),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                **how,
            )
            seconds.append(time.perf_counter() - start)
        return num_tokens / (seconds[1] - seconds[0])

    @property
    def as_assistant(self) -> Any:
        """The target as its own assistant: every draft token is right, and none is cheaper."""
        return self._model
