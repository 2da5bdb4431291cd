"""The attention kernel for CPUs: kernels/attention.c, compiled for one model shape when first used.

Needs a C compiler (`CC`, else cc). What is compiled is kept under the cache folder, by source,
flags, compiler and processor. Without a compiler there is no kernel, and attention is computed by
torch (paceline/model/gathered.py). Knows no layout: it passes on what it is given.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.model.cache import KvShape

log = logging.getLogger(__name__)

_ELEMENTS = {torch.bfloat16: "ELEM_BF16", torch.float32: "ELEM_F32"}
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-fopenmp")


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where the rows of one forward lie; int32 tensors, in the terms of kernels/attention.c."""

    slots: Tensor
    positions: Tensor
    table_starts: Tensor
    tables: Tensor
    path_starts: Tensor
    paths: Tensor
    longest: int


class AttentionKernel:
    """`attend` of kernels/attention.c."""

    def __init__(self, library: Path, shape: KvShape) -> None:
        # Says what it was compiled from, and how.
        self.name = library.name
        self._shape = shape
        self._function: Any = ctypes.CDLL(str(library)).attend
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        located: tuple[Any, ...] = (pointer, number, number)
        self._function.argtypes = [
            number,
            *located * 3,
            *(pointer,) * 8,
            number,
            number,
            ctypes.c_float,
            pointer,
        ]

    def __call__(
        self,
        query: Tensor,  # [num_rows, num_query_heads, key_dim], any strides but the last
        key: Tensor,  # [num_rows, num_heads, key_dim]
        value: Tensor,  # [num_rows, num_heads, value_dim]
        keys: Tensor,  # one layer of BlockStore.keys
        values: Tensor,  # one layer of BlockStore.values
        rows: RowPlaces,
        *,
        scaling: float,
        window: int | None,
    ) -> Tensor:  # [num_rows, num_query_heads, value_dim]
        out = torch.empty(
            (query.shape[0], query.shape[1], self._shape.value_dim), dtype=query.dtype
        )
        failed = self._function(
            query.shape[0],
            *_located(query),
            *_located(key),
            *_located(value),
            keys.data_ptr(),
            values.data_ptr(),
            rows.slots.data_ptr(),
            rows.positions.data_ptr(),
            rows.table_starts.data_ptr(),
            rows.tables.data_ptr(),
            rows.path_starts.data_ptr(),
            rows.paths.data_ptr(),
            rows.longest,
            window or 0,
            scaling,
            out.data_ptr(),
        )
        if failed:
            raise MemoryError("no memory for attention scores")
        return out


def _located(tensor: Tensor) -> tuple[int, int, int]:
    assert tensor.stride(2) == 1
    return tensor.data_ptr(), tensor.stride(0), tensor.stride(1)


def attention_kernel(
    shape: KvShape, num_query_heads: int, dtype: torch.dtype, device: torch.device, folder: Path
) -> AttentionKernel | None:
    """The kernel for this shape; None where it cannot be had, with the reason in the log."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if device.type != "cpu" or dtype not in _ELEMENTS:
        return None
    if compiler is None:
        log.warning("no C compiler (CC or cc): attention runs on torch, which is slower")
        return None
    flags = [
        *_FLAGS,
        f"-D{_ELEMENTS[dtype]}",
        f"-DHEADS={shape.num_heads}",
        f"-DGROUP={num_query_heads // shape.num_heads}",
        f"-DDIM={shape.key_dim}",
        f"-DVALUE_DIM={shape.value_dim}",
    ]
    source = resources.files("paceline.model") / "kernels" / "attention.c"
    content = source.read_bytes()
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
        described = "\0".join([*flags, torch.__version__, _flags_of_processor()]).encode()
        key = hashlib.sha256(content + version + described).hexdigest()[:16]
        library = folder / f"attention-{key}.so"
        if not library.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _compile(compiler, flags, content, Path(scratch))
                (Path(scratch) / "attention.so").rename(library)
        return AttentionKernel(library, shape)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = error.stderr.decode(errors="replace")[-500:] if hasattr(error, "stderr") else error
        log.warning("the attention kernel did not compile, torch takes its place: %s", detail)
        return None


def _compile(compiler: str, flags: list[str], content: bytes, folder: Path) -> None:
    (folder / "attention.c").write_bytes(content)
    steps = (
        [compiler, *flags, "-c", "attention.c", "-o", "attention.o"],
        [compiler, "-shared", "attention.o", *_openmp(), "-o", "attention.so"],
    )
    for step in steps:
        subprocess.run(step, cwd=folder, capture_output=True, check=True)


def _openmp() -> list[str]:
    """torch's own OpenMP library where it brings one: a second one would have threads of its own,
    which compete with torch's for the cores."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return [str(bundled[0])] if bundled else ["-fopenmp"]


def processor() -> str:
    """What kernels are chosen by; without what changes from moment to moment, as its clock."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor() or platform.machine()
    lines = info.read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith(("cpu MHz", "bogomips")))


def _flags_of_processor() -> str:
    """What -march=native depends on."""
    lines = processor().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), processor())
