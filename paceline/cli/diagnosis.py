"""What this machine can promise for a model: the self-check's findings, and the time of a step.

The one module of the command line that loads torch; `paceline doctor` imports it when it runs.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from paceline.model.engine import LanguageModel, Rows
from paceline.model.load import LoadError, load_model
from paceline.model.numerics import Finding, NotExact, make_exact

__all__ = ["Diagnosis", "LoadError", "diagnose"]

# What decides which kernels oneDNN and torch take for bf16, by the names of /proc/cpuinfo.
_FLAGS = {
    "avx2": "_is_avx2_supported",
    "avx512_f": "_is_avx512_supported",
    "avx512_bf16": "_is_avx512_bf16_supported",
    "avx512_vnni": "_is_vnni_supported",
    "amx_tile": "_is_amx_tile_supported",
    "amx_bf16": "_is_amx_tile_supported",
}
_STEP_ROWS = (1, 8, 32)
_CONTEXT = 128
_WARM_UP = 2
_REPEATS = 9


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`finding` is None when no canonical shape keeps the bits; `reason` says so."""

    torch_version: str
    cpu_capability: str
    cpu_flags: dict[str, bool]
    onednn_bf16: bool
    threads: int
    model: str
    dtype: str
    finding: Finding | None
    reason: str
    # Rows of one sequence -> milliseconds of a forward, the median.
    step_ms: dict[int, float]

    @property
    def exact(self) -> bool:
        return self.finding is not None

    def as_json(self) -> dict[str, Any]:
        """The document of `paceline doctor --json`."""
        found = self.finding
        return {
            "torch": self.torch_version,
            "cpu_capability": self.cpu_capability,
            "cpu_flags": self.cpu_flags,
            "onednn_bf16": self.onednn_bf16,
            "threads": self.threads,
            "model": self.model,
            "dtype": self.dtype,
            "exact": self.exact,
            "reason": self.reason,
            "comparisons": found.num_comparisons if found else 0,
            "shapes": {
                "linear_min_rows": found.linear_min_rows,
                "linear_max_rows": found.linear_max_rows,
                "key_multiple": found.attention.key_multiple,
                "min_query_rows": found.attention.min_query_rows,
            }
            if found
            else None,
            "step_ms": {str(rows): ms for rows, ms in self.step_ms.items()},
        }


def diagnose(source: str, *, dtype: str, threads: int) -> Diagnosis:
    """Loads the model and checks it as a verifier does at its start. Raises LoadError."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model = load_model(source, dtype=dtype, numerics="fast")
    finding, reason = None, ""
    try:
        finding = make_exact(model)
    except NotExact as error:
        reason = str(error)
    return Diagnosis(
        torch_version=torch.__version__,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cpu_flags=_cpu_flags(),
        onednn_bf16=bool(
            torch.backends.mkldnn.enabled and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        ),
        threads=torch.get_num_threads(),
        model=model.name,
        dtype=dtype,
        finding=finding,
        reason=reason,
        step_ms={rows: _step_ms(model, rows) for rows in _STEP_ROWS},
    )


def _cpu_flags() -> dict[str, bool]:
    """False for what is absent, and for what this torch does not tell."""
    cpu: Any = torch.cpu
    known = cpu.get_capabilities() if hasattr(cpu, "get_capabilities") else {}
    return {
        name: bool(known[name] if name in known else getattr(cpu, question, bool)())
        for name, question in _FLAGS.items()
    }


def _step_ms(model: LanguageModel, num_rows: int) -> float:
    """One sequence with this many rows after a context; in canonical shapes if there are any."""
    cache = model.new_cache()
    try:
        context = min(_CONTEXT, model.max_context - num_rows)
        token_ids = [index % model.vocab_size for index in range(context + num_rows)]
        model.forward([Rows(cache, token_ids[:context], 0)])
        times = []
        for _ in range(_WARM_UP + _REPEATS):
            start = time.perf_counter()
            model.forward([Rows(cache, token_ids[context:], num_rows)])
            times.append((time.perf_counter() - start) * 1e3)
            cache.rollback(context)
        return median(times[_WARM_UP:])
    finally:
        cache.free()
