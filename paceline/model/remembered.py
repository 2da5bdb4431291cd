"""Self-checks that passed: found again by everything that they depended on, and then probed.

A pass of `numerics.make_exact` is kept under the cache folder, under a key of weights, dtype,
threads, processor, libraries, settings in the environment and this package's own code. At the next
start it counts only if a few forwards give the very bits that they gave after the check; anything
else is checked in full. What did not pass is never kept. Knows no service.
"""

import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path

import torch

from paceline.model.engine import LanguageModel, Rows
from paceline.model.gathered import Shape
from paceline.model.native import processor
from paceline.model.numerics import Finding, adopt, make_exact

log = logging.getLogger(__name__)

# Settings by which torch and its libraries choose kernels, by the beginnings of their names.
_SETTINGS = ("ATEN", "CC", "CXX", "DNNL", "GOMP", "KMP", "MKL", "OMP", "ONEDNN", "TORCH")
_PROBE_ROWS = (40, 1, 7)


def make_exact_once(model: LanguageModel, folder: Path) -> Finding:
    """`make_exact`, or a pass of it in `folder` that holds for this model. Raises NotExact."""
    if model.device.type != "cpu":
        return make_exact(model)
    file = folder / f"{key(model, os.environ)}.json"
    finding = _remembered(model, file)
    if finding is None:
        finding = make_exact(model)
        _remember(model, finding, file)
    return finding


def key(model: LanguageModel, environment: Mapping[str, str]) -> str:
    """Equal only where the self-check would be of the same code, weights and machine."""
    facts = [
        model.model_fingerprint,
        [(layer.in_features, layer.out_features) for layer in model.linears],
        str(model.dtype),
        [model.max_context, model.store.max_sequences, model.vocab_size],
        [model.is_compiled, model.attention.kernel_name],
        [torch.get_num_threads(), os.cpu_count()],
        [torch.__version__, torch.__config__.show(), torch.backends.cpu.get_cpu_capability()],
        [metadata.version("transformers"), platform.python_version(), platform.platform()],
        processor(),
        sorted((k, v) for k, v in environment.items() if k.startswith(_SETTINGS)),
        _code(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _code() -> str:
    """This package's source text, kernels included."""
    digest = hashlib.sha256()
    package = resources.files("paceline.model")
    for folder in (package, package / "kernels"):
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith((".py", ".c")):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _remembered(model: LanguageModel, file: Path) -> Finding | None:
    try:
        record = json.loads(file.read_text())
        found = record["finding"]
        finding = Finding(**{**found, "attention": Shape(**found["attention"])})
        probe = record["probe"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    adopt(model, finding)
    if _probe(model) == probe:
        log.info("exact numerics: the self-check passed before on this machine")
        return finding
    model.numerics = "fast"
    log.warning("this machine gives other bits than after its last self-check: checking again")
    return None


def _remember(model: LanguageModel, finding: Finding, file: Path) -> None:
    record = {"finding": asdict(finding), "probe": _probe(model)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as scratch:
            json.dump(record, scratch)
        Path(scratch.name).rename(file)
    except OSError as error:
        log.warning("the passed self-check is not kept: %s", error)


def _probe(model: LanguageModel) -> str:
    """Digest of the logits of a prefill, a plain row and a draft block."""
    digest = hashlib.sha256()
    generator = torch.Generator().manual_seed(2)
    cache = model.new_cache()
    try:
        for count in _PROBE_ROWS:
            count = min(count, model.max_context - cache.length)
            ids = torch.randint(model.vocab_size, (count,), generator=generator).tolist()
            logits = model.forward([Rows(cache, ids, min(count, 8))])
            digest.update(logits.float().contiguous().numpy().tobytes())
    finally:
        cache.free()
    return digest.hexdigest()
