"""A student: a few of the target's layers, its embeddings frozen, its head reduced.

The first of its layers may stay the target's own. They are not stored then, but taken from there.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.model.distilled import (
    DraftVocab,
    ReducedHead,
    embedding_names,
    fingerprint,
    layer_of,
    origin,
    reduce_head,
    stored_tensors,
)
from paceline.model.load import TOKENIZER_FILES

# Settings under which what follows the head is more than the head, or the head's -inf is lost.
_SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class Unsupported(ValueError):
    """The target's architecture cannot be cut down to a student."""


class Keep(StrEnum):
    """Which of the target's layers a student begins with."""

    ENDS = "ends"
    FIRST = "first"


def kept_layers(num_layers: int, num_kept: int, keep: Keep, num_shared: int = 0) -> list[int]:
    """Indices, ascending: the first `num_shared`, and `num_kept` of those above them.

    ENDS: the first half of them from the beginning, the rest from the end. Raises Unsupported for
    more layers than there are.
    """
    above = num_layers - num_shared
    if num_kept > above:
        raise Unsupported(f"the target has {num_layers} layers, not {num_shared + num_kept}")
    first = num_kept if keep is Keep.FIRST else (num_kept + 1) // 2
    return [*range(num_shared + first), *range(num_layers - (num_kept - first), num_layers)]


@dataclass(slots=True)
class Student:
    """The model, and what of it is trained, by name, in float32."""

    model: Any
    layers: Sequence[int]  # of the target, ascending
    token_ids: Tensor  # int64 [num_ids], ascending
    trained: dict[str, nn.Parameter]
    # What stays the target's, as the target calls it: embeddings, and layers that are not trained.
    shared: dict[str, str]

    def hold_shared(self, dtype: torch.dtype) -> None:
        """Keeps what does not learn, and the stream between the layers with it, in this dtype."""
        learning = {id(parameter) for parameter in self.trained.values()}
        for parameter in self.model.parameters():
            if id(parameter) not in learning:
                parameter.data = parameter.data.to(dtype)

    def logits(
        self,
        input_ids: Tensor,  # [num_sequences, num_positions]
        rows: Tensor,  # int64 [num_rows], of the flattened positions
    ) -> Tensor:  # [num_rows, num_ids]
        hidden = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        head: ReducedHead = self.model.get_output_embeddings()
        logits: Tensor = head.linear(hidden.flatten(0, 1)[rows])
        return logits


def make_student(
    target: Path, layers: Sequence[int], token_ids: Sequence[int], device: str, num_shared: int = 0
) -> Student:
    """target: its folder. num_shared: layers that stay as they are. Raises Unsupported."""
    config = AutoConfig.from_pretrained(target, trust_remote_code=False)
    for name in _SCALED:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise Unsupported(f"targets with {name} cannot be distilled")
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    origins = {name: origin(name, layers) for name, _ in model.named_parameters()}
    stored = stored_tensors(target, origins.values())
    missing = [theirs for theirs in origins.values() if theirs not in stored]
    if missing:
        raise Unsupported(f"the target's folder has no tensor {missing[0]}")
    model.load_state_dict({name: stored[theirs] for name, theirs in origins.items()}, strict=False)
    kept = {*embedding_names(model), *(name for name in origins if _is_below(name, num_shared))}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    reduce_head(model, token_ids)
    trained = {
        name: parameter
        for name, parameter in model.named_parameters()
        if name in origins and name not in kept
    }
    for parameter in trained.values():
        parameter.requires_grad_(True)
    model.to(device).train()
    shared = {name: theirs for name, theirs in origins.items() if name not in trained}
    return Student(model, layers, torch.tensor(list(token_ids)), trained, shared)


def _is_below(name: str, layer: int) -> bool:
    found = layer_of(name)
    return found is not None and found < layer


def save_student(
    student: Student, folder: Path, *, target: str, target_folder: Path, with_shared: bool
) -> int:
    """Writes a folder that `load_model` opens. Returns the bytes of its weights.

    target: the source that completes it unless what they share is written too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = _stored_dtype(target_folder)
    config = student.model.config
    architecture = type(student.model).__name__
    document = config.to_dict() | {"architectures": [architecture], "dtype": str(dtype)[6:]}
    # A path of this machine.
    document.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(document, indent=2, default=str))
    tensors = {
        name: parameter.detach().to("cpu", dtype).contiguous()
        for name, parameter in student.trained.items()
    }
    shared = stored_tensors(target_folder, student.shared.values())
    if with_shared:
        tensors |= {name: shared[theirs] for name, theirs in student.shared.items()}
    file = folder / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    # Written for the owner alone otherwise; the rest of the folder is not.
    file.chmod(0o644)
    token_ids = tuple(student.token_ids.tolist())
    DraftVocab(target, tuple(student.layers), fingerprint(shared), token_ids).write(folder)
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        if (target_folder / name).is_file():
            shutil.copyfile(target_folder / name, folder / name)
    return file.stat().st_size


def _stored_dtype(folder: Path) -> torch.dtype:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    dtype = getattr(config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.bfloat16
